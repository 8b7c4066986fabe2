"""Sealed training as a paradigm."""

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
from veilgraph.graph.partition import isolate, pool
from veilgraph.graph.party import PartyGraph, check_federation
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.drawing import AHEAD_STRIDES, STRIDE_BYTES
from veilgraph.mpc.sealed.functions import LARGEST_DIVISOR
from veilgraph.paradigms.sealed import words
from veilgraph.paradigms.sealed.baselines import in_one_place
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.entering import most_edges_at_a_node, plan_of, slots_of, suited
from veilgraph.paradigms.sealed.plan import Context, Sizes
from veilgraph.paradigms.sealed.private import release_plan
from veilgraph.paradigms.sealed.roles import SealedDealer, SealedHolder, SealedLabelHolder
from veilgraph.paradigms.sealed.rows import ROWS
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.twin import check_ranges
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import align
from veilgraph.protocol.costs import Costs, PartySizes
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import MAX_FEATURES, MAX_NODES, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row

_WIDE: Final = 3 * 8
"""Bytes of what the dealer sends for an element of a result, at most."""


class Sealed(Paradigm[SealedJob]):
    """Holders of the same nodes train one network of which nothing is opened but predictions."""

    title: ClassVar[str] = "sealed: nothing is opened but predictions"
    way: ClassVar[str] = "sealed, noise on votes"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS
    has_costs: ClassVar[bool] = True
    protects: ClassVar[tuple[str, ...]] = ("edge",)

    def protecting(self, unit: str, epsilon: float, degree_bound: int | None) -> dict[str, Any]:
        return {
            **super().protecting(unit, epsilon, degree_bound),
            "model": {"network": "linear", "edge_slots": 1 << 16},
        }

    def plan(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> Plan | None:
        return release_plan(job, party, nodes)

    def largest_epsilon(self, job: SealedJob, party: PartyId, nodes: int | None = None) -> float:
        own = release_plan(job, party, nodes)
        return math.inf if own is None else own.epsilon_bound

    def most_edges_at_a_node(self, graph: PartyGraph) -> float:
        return most_edges_at_a_node(graph)

    def holds_against(self, job: SealedJob) -> str:
        return f"{job.data.label_party} and all other holders together, without the dealer, which draws the noise"

    def whose_noise(self, job: SealedJob) -> str:
        return "each holder's ε is about its own edges; the noise is the dealer's, and one for all holders together"

    def privacy_notes(self, job: SealedJob) -> list[str]:
        if job.privacy is None:
            return [
                "to have it, for edges, add to the job privacy: {unit: edge, epsilon_total: 4, aggregation: {}}, which "
                "needs model.network=linear and model.edge_slots"
            ]
        return [
            "columns have no noise: what predictions tell of features, ε does not bound",
            "all predictions of a run have the same noise, and later ones of it cost nothing more",
        ]

    def privacy_limits(self, job: SealedJob) -> list[str]:
        return [
            f"What {job.data.label_party} predicts depends on all holders' features, which have no noise.",
            "Whoever deals knows the noise: with it, a holder that works together with the dealer has no bound.",
        ]

    def to_be_private(self) -> Mapping[str, Any]:
        return {"unit": "edge", "aggregation": {}}

    def unbounded(self, job: SealedJob) -> str:
        if job.privacy is not None:
            return "its noise bounds nothing: raise privacy.noise_multiplier"
        return "a sealed job without privacy tells predictions as they are: set privacy.epsilon_total, for edges"

    def costs(self, job: SealedJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs:
        label_holder, plan = sizes[job.data.label_party], plan_of(job, nodes)
        if job.evaluates and not label_holder.validation:
            raise ConfigError(
                f"train.select_by={job.train.select_by}: the job counts validation nodes, and there are none; give "
                "--validation"
            )
        context = Context(
            Sizes(
                nodes,
                label_holder.training,
                label_holder.classes,
                {holder: (1 + plan.own_hops) * own.columns for holder, own in sizes.items()},
                {holder: slots_of(job, own.edges) for holder, own in sizes.items()},
                job.model.max_degree,
                label_holder.validation,
                0 if job.predicts_named else None,
            ),
            plan,
            job.data.label_party,
            {},
        )
        every = job.train.evaluate_every if job.evaluates else None
        return costs_of(context, job.train.epochs, every, job.dealer_checks)

    def stated(self, job: SealedJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party == SERVER or releases:
            return fields
        fields |= {"nodes": (1, MAX_NODES), "features": (1, MAX_FEATURES), "edges": (1, MAX_NODES)}
        if party == job.data.label_party:
            # None of them where nothing is trained: the role holds a training to at least one.
            judged = (0, MAX_NODES) if job.evaluates else (0, 0)
            fields |= {"classes": (2, LARGEST_DIVISOR), "training": (0, MAX_NODES), "validation": judged}
            fields["asked"] = (0, job.named_nodes or 0)
        return fields

    def unread_bytes(self, job: SealedJob, hellos: Mapping[PartyId, Hello]) -> int:
        nodes = max(hello.nodes for hello in hellos.values())
        relations = len(job.data.names) if job.model.relations == "each" else 1
        columns = relations * sum(hello.features for hello in hellos.values())
        training = max(hello.training for hello in hellos.values())
        classes = max(hello.classes for hello in hellos.values())
        width = max(columns, classes, job.model.hidden) if training >= columns else max(columns, training, classes)
        return 2 * _WIDE * nodes * max(width, 256) + (AHEAD_STRIDES + 1) * STRIDE_BYTES + SLACK_BYTES

    def load(self, job: SealedJob) -> Inputs:
        graphs = load_parties(job.data, job.seed)
        find_only_label_holder(graphs, job.data.label_party)
        return Inputs(job, graphs)

    def label_party(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> PartyId:
        return find_only_label_holder(graphs, job.data.label_holder)

    def labels_at(self, job: SealedJob, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        return only_labelled(holders, labelled, job.data.label_holder)

    def accept(self, job: SealedJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        scaled = [scale_features(graph, job.data.feature_scaling) for graph in graphs]
        check_federation(scaled, job.data.label_party)
        return Inputs(job, scaled)

    def check_graphs(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> None:
        check_ranges(job, graphs)

    def unknown_range(self, job: SealedJob) -> str:
        if job.model.unit_rows:
            return ""
        return (
            "model.unit_rows=false: whether columns fit the ring follows from all holders' nodes and edges together. "
            "Where they do not, the job ends without predictions. Set model.unit_rows to true, or check it on graphs "
            "that are on one machine (data.graphs, of veilgraph data align)"
        )

    def prepare(self, own: Preparation) -> Prepared:
        return align(own)

    def role(self, session: Session, aligned: Aligned) -> Role:
        if aligned.graph is None:
            return SealedDealer(session)
        labelled = session.link.party == session.settings.data.label_party
        return (SealedLabelHolder if labelled else SealedHolder)(session, aligned.graph)

    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return in_one_place(job, isolate(inputs.graphs, holder, job.data.label_party), progress)

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        job = sealed(inputs.settings)
        return in_one_place(job, pool(inputs.graphs, job.data.label_party), progress)

    def beside(self, job: SealedJob) -> Mapping[str, Any]:
        return {"paradigm": "vertical"}

    def suited(self, job: SealedJob, graphs: Sequence[PartyGraph]) -> SealedJob:
        return suited(job, graphs)

    def describe(self, job: SealedJob) -> list[str]:
        return words.describe(job)

    def collusion(self, job: SealedJob) -> str:
        """What parties could find out that work together, in a sentence."""
        return (
            "Whoever deals the random numbers and one holder together could read everything of all others. All holders "
            "but one together, without it, learn nothing but what they had and are told."
        )

    def server_part(self, job: SealedJob) -> str:
        return "deals random numbers; has no data"

    def verdict(self, job: SealedJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.data.names)} trained one model together that predicts {what}, for {nodes}; only "
            f"{job.data.label_party} sees the predictions, and nobody sees the model."
        )


SEALED: Final = Sealed()
