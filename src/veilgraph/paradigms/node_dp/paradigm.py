"""LPGNN as a paradigm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from veilgraph.core.types import SERVER, PartyId
from veilgraph.core.words import listed
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.node_dp import words
from veilgraph.paradigms.node_dp.inputs import check_values, learner_of, local_graphs
from veilgraph.paradigms.node_dp.learner import Bystander, LocalLearner, own_features
from veilgraph.paradigms.node_dp.rows import ROWS
from veilgraph.paradigms.node_dp.settings import NodeDpJob
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import align
from veilgraph.protocol.feature_release import released_features
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned, Preparation, Prepared
from veilgraph.protocol.paradigm import MAX_CLASSES, MAX_FEATURES, MAX_NODES, MAX_STEPS, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.released import agreed, checked
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.rows import Row
from veilgraph.protocol.space import LEARNING, Options, Space, Span
from veilgraph.protocol.unread import unread_of_passes

_LIKE: Final = ModelSettings()
"""What waits unread is bounded as in a vertical job of the usual size."""


class NodeDp(Paradigm[NodeDpJob]):
    """Nodes release perturbed features once, and one holder, which knows the graph, learns alone."""

    title: ClassVar[str] = "local: nodes perturb their own values"
    rows: ClassVar[tuple[Row[Any], ...]] = ROWS

    def largest_epsilon(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> float:
        """Of one release, of a node's features and label: changed tables are released anew."""
        if job.release.features is None or party not in job.releasing:
            return 0.0
        labels = job.release.labels
        of_labels = labels.epsilon if labels is not None and labels.holder == party else 0.0
        return job.release.features.epsilon + of_labels

    def unbounded(self, job: NodeDpJob) -> str:
        return "its noise bounds nothing: lower release.features.epsilon"

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
        return replace(aligned, releases=agreed(session, aligned.graph))

    def role(self, session: Session, aligned: Aligned) -> Role:
        graph, releases = aligned.graph, aligned.releases
        if graph is None or releases is None or session.link.party not in session.settings.learning:
            return Bystander(session)
        with checked(session):
            features = released_features(session, releases, graph.common)
            labels = releases.labels(graph.common)
        return LocalLearner(session, graph, [own_features(graph), *features], labels)

    def space(self, job: NodeDpJob) -> Space:
        return {**LEARNING, "model.hops": Options((0, 2, 4, 8, 16)), "model.dropout": Span(0, 0.8)}

    def describe(self, job: NodeDpJob) -> list[str]:
        return words.describe(job)

    def part_of(self, job: NodeDpJob, holder: PartyId) -> str:
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
