"""LPGNN as a paradigm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.words import listed
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp import words
from veilgraph.paradigms.node_dp.edge_learner import EdgePrivateLearner
from veilgraph.paradigms.node_dp.inputs import check_values, learner_of, local_graphs
from veilgraph.paradigms.node_dp.learner import Bystander, LocalLearner, own_features
from veilgraph.paradigms.node_dp.private import release_plan
from veilgraph.paradigms.node_dp.rows import ROWS
from veilgraph.paradigms.node_dp.settings import NodeDpJob, node_dp
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.privacy.degree import too_many_neighbours
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import align
from veilgraph.protocol.feature_release import released_features
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import MAX_CLASSES, MAX_FEATURES, MAX_NODES, MAX_STEPS, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.released import agreed, checked
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row
from veilgraph.protocol.unread import unread_of_passes

_LIKE: Final = ModelSettings()
"""What waits unread is bounded as in a vertical job of the usual size."""


class NodeDp(Paradigm[NodeDpJob]):
    """Nodes release perturbed features once, and one holder, which knows the graph, learns alone."""

    title: ClassVar[str] = "local: nodes perturb their own values"
    way: ClassVar[str] = "node-dp, noise on the learner's edges"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS

    def plan(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> Plan | None:
        return release_plan(job, party, nodes)

    def largest_epsilon(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> float:
        """Of one release, of a node's features and label. The learner's is of edges,
        and 0 where its sums over them have no noise, for it sends nothing.
        """
        if (own := release_plan(job, party, nodes)) is not None:
            return own.epsilon_bound
        if job.release.features is None or party not in job.releasing:
            return 0.0
        labels = job.release.labels
        of_labels = labels.epsilon if labels is not None and labels.holder == party else 0.0
        return job.release.features.epsilon + of_labels

    def unbounded(self, job: NodeDpJob) -> str:
        if job.privacy is not None:
            return "its noise bounds nothing: raise privacy.noise_multiplier"
        return "its noise bounds nothing: lower release.features.epsilon"

    def holds_against(self, job: NodeDpJob) -> str:
        return words.against(job) if job.privacy is not None else "everybody"

    def whose_noise(self, job: NodeDpJob) -> str:
        return f"this ε is about {listed(job.summing)}'s own edges, and counts its own noise alone"

    def privacy_notes(self, job: NodeDpJob) -> list[str]:
        return [] if job.privacy is None else [words.once(job), *words.not_bounded(job)]

    def privacy_limits(self, job: NodeDpJob) -> list[str]:
        return words.not_bounded(job)

    def stated(self, job: NodeDpJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party == SERVER:
            return fields
        fields |= {"steps": (0, MAX_STEPS), "nodes": (1, MAX_NODES)}
        if releases:
            fields["release"] = (-MAX_NODES, MAX_NODES)
            private = job.release.labels
            if party in job.releasing:
                fields["features"] = (1, MAX_FEATURES)
            if private is not None and party == private.holder:
                fields["classes"] = (2, MAX_CLASSES)
        return fields

    def unread_bytes(self, job: NodeDpJob, hellos: Mapping[PartyId, Hello]) -> int:
        return unread_of_passes(
            max(hello.nodes for hello in hellos.values()),
            [hello.features for hello in hellos.values()],
            width=_LIKE.dim,
            dim=_LIKE.dim,
            rounds=_LIKE.rounds,
        )

    def load(self, job: NodeDpJob) -> Inputs:
        return Inputs(job, local_graphs(job))

    def label_party(self, job: NodeDpJob, graphs: Sequence[PartyGraph]) -> PartyId:
        return learner_of(job, graphs)

    def labels_at(self, job: NodeDpJob, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        learns = holders if job.label_release is not None else (*labelled, *holders)
        return job.data.label_holder or learns[0]

    def accept(self, job: NodeDpJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        check_values(job, graphs)
        return Inputs(job, graphs)

    def prepare(self, own: Preparation) -> Prepared:
        return align(own)

    def release(self, session: Session, aligned: Aligned) -> Aligned:
        graph = aligned.graph
        if graph is not None:
            rule = session.settings.degree_rule(graph.party)
            session = replace(session, refuses=session.refuses or too_many_neighbours(rule, graph.common_part()))
        return replace(aligned, releases=agreed(session, graph))

    def role(self, session: Session, aligned: Aligned) -> Role:
        graph, releases = aligned.graph, aligned.releases
        if graph is None or releases is None or session.link.party not in session.settings.learning:
            return Bystander(session)
        with checked(session):
            features = released_features(session, releases, graph.common)
            labels = releases.labels(graph.common)
        job = node_dp(session.settings)
        if job.privacy is None:
            return LocalLearner(session, graph, [own_features(graph), *features], labels)
        return EdgePrivateLearner(session, graph, [*([own_features(graph)] if job.uses_own_columns else []), *features])

    def describe(self, job: NodeDpJob) -> list[str]:
        return words.describe(job)

    def part_of(self, job: NodeDpJob, holder: PartyId) -> str:
        if holder in job.summing:
            return "learns; knows the graph, and computes over it with noise"
        return "learns; knows the graph" if holder in job.learning else "its nodes perturb their values"

    def collusion(self, job: NodeDpJob) -> str:
        """What parties could find out that work together, in a sentence."""
        return (
            "What nodes release was perturbed before anybody saw it: ε bounds what all parties together infer from it."
        )

    def server_part(self, job: NodeDpJob) -> str:
        return "computes nothing"

    def verdict(self, job: NodeDpJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.learning)} trained a model that predicts {what}, from what {nodes} had perturbed of "
            f"themselves at {listed(job.releasing)}."
        )


NODE_DP: Final = NodeDp()
