"""VFGNN as a paradigm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.words import listed
from veilgraph.graph.datasets import load_parties
from veilgraph.graph.features import scale_features
from veilgraph.graph.federation import find_only_label_holder, only_labelled
from veilgraph.graph.party import PartyGraph, check_federation
from veilgraph.graph.rows import rows_between
from veilgraph.mpc.ring import MAX_DETECTED_BITS
from veilgraph.nn.combine.strategy import build_combine
from veilgraph.nn.local.model import not_partitioned
from veilgraph.paradigms.vertical import words
from veilgraph.paradigms.vertical.baselines import isolated, pooled
from veilgraph.paradigms.vertical.costs import costs_of
from veilgraph.paradigms.vertical.data_holder import DataHolder
from veilgraph.paradigms.vertical.initial.ranges import IN_THE_RING, check_together
from veilgraph.paradigms.vertical.label_holder import LabelHolder
from veilgraph.paradigms.vertical.once import ReleaseServer, ReleasingHolder
from veilgraph.paradigms.vertical.once_learner import LearningHolder
from veilgraph.paradigms.vertical.plan import plan
from veilgraph.paradigms.vertical.released import off_the_ring
from veilgraph.paradigms.vertical.rows import ROWS
from veilgraph.paradigms.vertical.server import Server
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.privacy.degree import too_many_neighbours
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import align, check_split, encoded_tables
from veilgraph.protocol.costs import Costs, PartySizes
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import LABELS_ALONE, MAX_FEATURES, MAX_NODES, MAX_STEPS, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.protocol.released import with_released_features
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row
from veilgraph.protocol.unread import unread_of_passes


class Vertical(Paradigm[VerticalJob]):
    """Holders of the same nodes train one network; embeddings are combined at a server."""

    title: ClassVar[str] = "vertical: the same nodes, different columns"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS
    has_costs: ClassVar[bool] = True
    protects: ClassVar[tuple[str, ...]] = ("edge", "node", "node-edges", "label")

    def plan(self, job: VerticalJob, party: PartyId, nodes: int | None = None) -> Plan | None:
        return plan(job, party, nodes)

    def largest_epsilon(self, job: VerticalJob, party: PartyId, nodes: int | None = None) -> float:
        own = plan(job, party, nodes)
        return math.inf if own is None or job.model.initial.method != "individual" else own.epsilon_bound

    def holds_against(self, job: VerticalJob) -> str:
        """Where h0 goes to all holders without noise, the server alone; noise made jointly withstands so many."""
        if job.has_joint_noise:
            return words.withstood(job)
        return super().holds_against(job) if job.model.initial.method == "individual" else "the server only"

    def whose_noise(self, job: VerticalJob) -> str:
        joint = job.joint_noise
        if joint is None:
            return super().whose_noise(job)
        return (
            "each holder's ε is about its own data and counts the noise that holders make together: each adds "
            f"{joint.share:.3g} of the deviation that ε needs, and any {joint.honest} of the {joint.holders} that "
            f"publish have all of it; where more than {joint.colluding} of them help the server, or add none, ε does "
            "not hold"
        )

    def privacy_notes(self, job: VerticalJob) -> list[str]:
        method = job.model.initial.method
        if job.privacy is None:
            return [
                "to have it, add to the job, for example, privacy: {unit: row, epsilon_total: 4}, which needs "
                "model.initial.method=individual and model.local.model=appnp"
            ]
        if job.has_joint_noise and not job.learns_alone:
            return [
                f"the noise of a sum is as much as {job.data.label_party} needs, which releases a gradient beside it "
                "in every step: of the others the total ε is less with the same noise"
            ]
        if method == "individual":
            return []
        return [
            f"model.initial.method={method}: h0 goes to the other holders without noise; against them per-release ε "
            "and total ε are infinite",
            f"h0 has all holders' features in it, so what the {len(job.data.names) - 1} others publish counts as "
            "releases of each holder's data (others); the server knows no less if one of them adds no noise",
        ]

    def privacy_limits(self, job: VerticalJob) -> list[str]:
        if job.has_joint_noise:
            return [
                "It rests on the noise of other holders: where more of them help the server, or add none, than it is "
                "said to hold against, a row has less noise than ε needs, down to one holder's share."
            ]
        if job.gives_columns:
            return [
                f"It is about edges: {job.data.label_party} is given the others' columns as they are, and of features "
                "ε is infinite against it."
            ]
        if job.model.initial.method == "individual":
            return []
        return [
            "It does not hold against the other holders: the first layer's result h⁰ goes to them without noise, and "
            "against them per-release ε and total ε are infinite."
        ]

    def label_epsilon(self, job: VerticalJob, party: PartyId) -> float:
        if party != job.data.label_party or job.learns_alone:
            return 0.0
        return super().label_epsilon(job, party)

    def unbounded(self, job: VerticalJob) -> str:
        if job.label_privacy is not None:
            return LABELS_ALONE
        if job.privacy is None:
            if job.feature_release is not None:
                return "model.initial.method=perturbed noises features and nothing of edges and labels: take individual"
            return "it has no privacy part: set privacy.epsilon_total"
        if job.model.initial.is_joint:
            return f"model.initial.method={job.model.initial.method} shows h0 without noise: take individual"
        return "its noise bounds nothing: raise privacy.noise_multiplier"

    def costs(self, job: VerticalJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs | None:
        return costs_of(job, nodes, sizes)

    def stated(self, job: VerticalJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party == SERVER:
            return fields
        fields |= {"steps": (0, MAX_STEPS), "nodes": (1, MAX_NODES)}
        if releases or job.learns_alone:
            fields["release"] = (-MAX_NODES, MAX_NODES)
        if releases:
            if party in job.releasing:
                fields["features"] = (1, MAX_FEATURES)
        elif job.gives_columns and party in job.publishing:
            fields["features"] = (1, MAX_FEATURES)
        elif job.model.initial.is_joint and not job.learns_alone:
            fields["features"] = (1, MAX_FEATURES)
            if job.model.initial.method == "collaborative":
                bits = job.feature_bits
                fields["feature_bits"] = (0, MAX_DETECTED_BITS) if bits is None else (bits, bits)
        return fields

    def unread_bytes(self, job: VerticalJob, hellos: Mapping[PartyId, Hello]) -> int:
        model = job.model
        return unread_of_passes(
            max(hello.nodes for hello in hellos.values()),
            [hello.features for hello in hellos.values()],
            width=build_combine(model.combine).output_dim(max(model.dim, job.released_dim), len(job.data.names)),
            dim=model.dim,
            rounds=model.rounds,
            batch_size=job.train.batch_size,
        )

    def unspreadable(self, job: VerticalJob) -> str | None:
        if job.learns_alone:
            return super().unspreadable(job)
        if job.device != "cpu":
            return f"machines: they compute on their CPUs, and device={job.device!r}; set it to cpu, or use one machine"
        return not_partitioned(job.model.local)

    def load(self, job: VerticalJob) -> Inputs:
        check_split(job)
        graphs = load_parties(job.data, job.seed)
        find_only_label_holder(graphs, job.data.label_party)
        return Inputs(job, graphs)

    def label_party(self, job: VerticalJob, graphs: Sequence[PartyGraph]) -> PartyId:
        return find_only_label_holder(graphs, job.data.label_holder)

    def labels_at(self, job: VerticalJob, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        return only_labelled(holders, labelled, job.data.label_holder)

    def accept(self, job: VerticalJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        scaled = [scale_features(graph, job.data.feature_scaling) for graph in graphs]
        check_federation(scaled, job.data.label_party)
        return Inputs(job, scaled)

    def check_graphs(self, job: VerticalJob, graphs: Sequence[PartyGraph]) -> None:
        common = {graph.party: rows_between(graph.features, 0, graph.common) for graph in graphs}
        check_together(job.model.initial, job.model.dim, common, job.feature_bits)
        for graph in graphs:
            if graph.party not in job.publishing:
                continue
            if why := too_many_neighbours(job.degree_rule(graph.party), graph):
                raise ConfigError(f"{graph.party} refuses the job: {why}", key="privacy.degree_bound")
            if why := off_the_ring(job, graph):
                raise ConfigError(f"{graph.party} refuses the job: {why}", key=why.partition("=")[0])

    def check_tables(self, job: VerticalJob) -> None:
        """Of all nodes of a table, for which of them are common is not known before they are aligned."""
        check_together(job.model.initial, job.model.dim, encoded_tables(job), job.feature_bits)

    def unknown_range(self, job: VerticalJob) -> str:
        method = job.model.initial.method
        if method not in IN_THE_RING or not job.data.is_apart:
            return ""
        return (
            f"whether features fit the ring of model.initial.method={method} each holder finds out of its own when the "
            "job begins: their tables are not here"
        )

    def prepare(self, own: Preparation) -> Prepared:
        return align(own)

    def release(self, session: Session, aligned: Aligned) -> Aligned:
        if session.settings.feature_release is None:
            return aligned
        return with_released_features(session, aligned)

    def role(self, session: Session, aligned: Aligned) -> Role:
        job, graph = session.settings, aligned.graph
        if graph is None:
            return ReleaseServer(session) if job.learns_alone else Server(session)
        if session.link.party == job.data.label_party:
            return LearningHolder(session, graph) if job.learns_alone else LabelHolder(session, graph)
        return ReleasingHolder(session, graph) if job.learns_alone else DataHolder(session, graph)

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult:
        return isolated(inputs.settings, inputs.graphs, holder, progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        return pooled(inputs.settings, inputs.graphs, progress)

    def beside(self, job: VerticalJob) -> Mapping[str, Any]:
        return {"paradigm": "sealed", "output": "probabilities"}

    def describe(self, job: VerticalJob) -> list[str]:
        return words.describe(job)

    def collusion(self, job: VerticalJob) -> str:
        """What parties could find out that work together, in a sentence."""
        said = super().collusion(job)
        if job.model.initial.method == "collaborative":
            said += " The first layer is on shares: all features of all other holders are among that."
        return said

    def server_part(self, job: VerticalJob) -> str:
        return "joins the releases" if job.learns_alone else super().server_part(job)

    def verdict(self, job: VerticalJob, what: str, nodes: str) -> str:
        holders = job.data.names
        both = "both" if len(holders) == 2 else "all"
        names = listed(holders)
        return f"{names} trained one model together that predicts {what}, on the {nodes} that {both} of them have."


VERTICAL: Final = Vertical()
