"""LPGNN as a paradigm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.revelations import Revelation
from veilgraph.core.types import SERVER, Link, PartyId
from veilgraph.core.words import listed
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.network import CustomModel
from veilgraph.nn.settings import ModelSettings
from veilgraph.paradigms.node_dp import words
from veilgraph.paradigms.node_dp.inputs import check_values, learner_of, local_graphs
from veilgraph.paradigms.node_dp.release import local_role
from veilgraph.paradigms.node_dp.settings import NodeDpJob
from veilgraph.privacy.local.publish import LocalPublisher
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import align
from veilgraph.protocol.cast import Cast
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.organisation import Aligned, Organisation, Prepared
from veilgraph.protocol.paradigm import MAX_CLASSES, MAX_FEATURES, MAX_NODES, MAX_STEPS, NO_NUMBERS, Paradigm, Range
from veilgraph.protocol.role import Session
from veilgraph.protocol.unread import unread_of_passes
from veilgraph.tables.encode import FeatureEncoding

_LIKE: Final = ModelSettings()
"""What waits unread is bounded as in a vertical job of the usual size."""


class NodeDp(Paradigm[NodeDpJob]):
    """Nodes release perturbed features once, and one holder, which knows the graph, learns alone."""

    title: ClassVar[str] = "local: nodes perturb their own values"

    def facts(self, job: NodeDpJob, sender: PartyId, receiver: PartyId) -> dict[str, bool]:
        return {}

    def reveals(self, job: NodeDpJob) -> dict[Revelation, str]:
        features, labels = job.local.features, job.local.labels
        causes = dict[Revelation, str]()
        if features is not None:
            causes["perturbed-features"] = f"local.features.epsilon={features.epsilon:g}"
        if labels is not None:
            causes["perturbed-labels"] = f"local.labels.epsilon={labels.epsilon:g}"
        return causes

    def concerns(self, name: Revelation, job: NodeDpJob, party: PartyId) -> bool:
        private = job.label_release
        return party in job.releasing if name != "perturbed-labels" else private is not None and party == private.holder

    def largest_epsilon(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> float:
        """Of one release, of a node's features and label: changed tables are released anew."""
        if job.local.features is None or party not in job.releasing:
            return 0.0
        labels = job.local.labels
        of_labels = labels.epsilon if labels is not None and labels.holder == party else 0.0
        return job.local.features.epsilon + of_labels

    def unbounded(self, job: NodeDpJob) -> str:
        return "its noise bounds nothing: lower local.features.epsilon"

    def stated(self, job: NodeDpJob, party: PartyId, *, releases: bool) -> dict[str, Range]:
        fields = dict(NO_NUMBERS)
        if party == SERVER:
            return fields
        fields |= {"steps": (0, MAX_STEPS), "nodes": (1, MAX_NODES)}
        if releases:
            fields["release"] = (-MAX_NODES, MAX_NODES)
            private = job.local.labels
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

    def accept(self, job: NodeDpJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        check_values(job, graphs)
        return Inputs(job, graphs)

    def prepare(
        self,
        link: Link,
        job: NodeDpJob,
        organisation: Organisation | None,
        encoding: FeatureEncoding | None,
        streams: LearningStreams,
    ) -> Prepared:
        return align(link, job, organisation, encoding, streams)

    def cast(
        self,
        session: Session,
        folder: Path,
        aligned: Aligned,
        custom: CustomModel | None,
        publisher: LocalPublisher | None,
    ) -> Cast:
        return Cast(local_role(session, folder, aligned.graph, publisher))

    def describe(self, job: NodeDpJob) -> list[str]:
        return words.describe(job)

    def part_of(self, job: NodeDpJob, holder: PartyId) -> str:
        return "learns; knows the graph" if holder in job.learning else "its nodes perturb their values"

    def server_part(self, job: NodeDpJob) -> str:
        return "relays; computes nothing"

    def verdict(self, job: NodeDpJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.learning)} trained a model that predicts {what}, from what {nodes} had perturbed of "
            f"themselves at {listed(job.releasing)}."
        )


NODE_DP: Final = NodeDp()
