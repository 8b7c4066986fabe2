"""LPGNN as a paradigm: what a job sends and reveals, where its data come from, its roles, and its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from scipy.sparse import issparse

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.text import counted, listed
from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.build import read_table
from veilgraph.graph.dataset import load_for_learner
from veilgraph.graph.features import to_numbers
from veilgraph.graph.federation import check_federation
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.network import ModelSettings
from veilgraph.privacy.aggregation import too_many_neighbours
from veilgraph.privacy.plan import Plan
from veilgraph.protocol import messages as table
from veilgraph.protocol import paradigm as seam
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.aligning import AlignedSessions, table_ids
from veilgraph.protocol.costs import unread_of_passes
from veilgraph.protocol.messages import Condition, Exposed, MessageSpec, Revelation, Route, WireFormat
from veilgraph.protocol.organisation import Aligned, Organisation
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.tables.encode import encode, fit_encoding
from veilgraph_node_dp.learner import Bystander, EdgePrivateLearner, LocalLearner, own_features
from veilgraph_node_dp.mechanisms import feature_mechanism
from veilgraph_node_dp.release import agree_on_release, checked, misplaced_labels, released_features
from veilgraph_node_dp.released import Releases
from veilgraph_node_dp.settings import NodeDpJob, node_dp, release_plan


def _epsilon(release: Any, setting: str) -> str:  # noqa: ANN401 - of either of the two kinds of values
    return "" if release is None else f"release.{setting}.epsilon={release.epsilon:g}"


def _releasers(job: NodeDpJob) -> tuple[str, ...]:
    return () if job.release.labels is None else (job.release.labels.holder,)


# One row, few lines: a table is read across.
# fmt: off
LABELS: Final = Revelation[NodeDpJob](
    "perturbed-labels", "The label holder sees labels under randomised response with the job's ε, and in the clear "
    "which nodes have one for training or validation.", lambda job: _epsilon(job.release.labels, "labels"), _releasers)
FEATURES: Final = Revelation[NodeDpJob](
    "perturbed-features", "The label holder sees every node's features as the node itself perturbed them, with the "
    "job's ε, and in the clear the number of columns.",
    lambda job: _epsilon(job.release.features, "features"), lambda job: job.duties.releasing)
PRIVATE_LABELS: Final = Condition[NodeDpJob]("`release.labels`", lambda job: job.release.labels is not None)
_TO_LEARNER: Final = Route[NodeDpJob]("holder of private labels", "learner",
    lambda job, sender, receiver: sender in _releasers(job) and receiver == job.data.label_party)
_RELEASED: Final = Route[NodeDpJob]("holder", "holder",
    lambda job, sender, receiver: sender in job.duties.releasing and receiver in job.duties.learning)
_PERTURBED: Final = (
    "Local differential privacy, paid for in the sender's ledger: ε bounds what anybody can infer from it of a node's "
    "own value, whatever else is known and computed afterwards.")
ROWS: Final[tuple[MessageSpec[NodeDpJob], ...]] = (
    *table.COMMON_ROWS,
    *table.ALIGNMENT_ROWS,
    MessageSpec(Kind.PERTURBED_FEATURES, _RELEASED,
        "every node's features, perturbed by itself, a single time", "noise", _PERTURBED, (FEATURES,), paid=True,
        exposed=Exposed("releases", "features that {sender}'s nodes perturbed"),
        forms=(WireFormat("0, 0", "int64 [N, m], uint8 [N, F_i] or float32 [N, F_i]", "[release](#a-local-job)"),)),
    MessageSpec(Kind.PERTURBED_LABELS, _TO_LEARNER,
        "labels under randomised response, a single time; who has one, and is trained on, in the clear", "noise",
        _PERTURBED, (LABELS,), (PRIVATE_LABELS,), paid=True,
        forms=(WireFormat("0, 0", "uint8 [N, 2]; with 255 classes or more int64", "[release](#a-local-job)"),)),
)
# fmt: on


def _learning_words(settings: NodeDpJob) -> str:
    learner = settings.data.label_party
    if settings.privacy is None:
        *fewer, most = settings.network.tried
        far = f"{counted(most, 'hop')} far{' or less, as its validation nodes choose' if fewer else ''}"
        return f"{learner} averages the noise out over neighbours, {far}, and trains a network of two layers alone."
    return (
        f"{learner} trains a network of two layers alone, without its graph. Of its edges it computes nothing but sums "
        f"of what that takes a node's neighbours for, in {counted(settings.privacy.hops, 'hop')}, once and with noise, "
        "which its ledger counts; what it predicts, and its model, follow from these."
    )


def _check_graphs(job: NodeDpJob, graphs: Sequence[PartyGraph]) -> None:
    """Refuse graphs that a party would refuse later: misplaced labels, too many neighbours, values out of range."""
    for graph in graphs:
        if reason := misplaced_labels(job, graph):
            raise ConfigError(f"{graph.party} refuses the job: {reason}", code="refused")
        if reason := too_many_neighbours(job.inputs.degree_rules.get(graph.party), graph.common_part()):
            raise ConfigError(
                f"{graph.party} refuses the job: {reason}",
                code="refused",
                key="privacy.degree_bound",
                party=graph.party,
            )
        if job.release.features is None or graph.party not in job.duties.releasing:
            continue
        try:
            feature_mechanism(job.release.features, graph.num_features).check(graph.common_part().features)
        except DataError as error:
            raise DataError(f"party {graph.party!r}: {error}") from error


class _NodeDpData(seam.Data[NodeDpJob]):
    def load(self, job: NodeDpJob) -> Inputs:
        private, data = job.release.labels, job.data
        if private is not None and data.dataset is not None and (data.split is None or data.stratify):
            raise ConfigError(
                f"{private.holder} refuses the job: the learner sees who is trained on, and a split by classes tells "
                "the labels that release.labels protects; give data.split, as in [0.5, 0.25, 0.25], with "
                "data.stratify: false",
                code="refused",
                key="data.split",
                party=private.holder,
            )
        graphs = load_for_learner(data, data.label_party if private is None else private.holder, job.seed)
        _check_graphs(job, graphs)
        return Inputs(job, graphs)

    def check_tables(self, job: NodeDpJob) -> None:
        """Raise ``DataError`` where a common node has a feature outside the range that the job releases."""
        release, ids = job.release.features, table_ids(job)
        if release is None or not (common := set.intersection(*map(set, ids.values())) if ids else set()):
            return
        for party in job.duties.releasing:
            own = Organisation.read((job.data.parties or {})[party], party)
            table = read_table(own.settings, own.folder, None, job.data.feature_scaling)
            encoding = fit_encoding(table, job.data.feature_scaling)
            rows = [row for row, each in enumerate(table.ids.to_pylist()) if each in common]
            x = to_numbers(encode(table.take(np.array(rows)), encoding, per_node=party in job.inputs.per_node))
            ends = [each.toarray() if issparse(each) else each for each in (x.min(axis=0), x.max(axis=0))]
            for column, value in zip(encoding.sources * 2, np.concatenate(ends, axis=None), strict=True):
                if not release.low <= value <= release.high:
                    raise DataError(
                        f"party {party!r}: column {column!r} becomes {value:g}, outside the range from "
                        f"release.features.low={release.low:g} to high={release.high:g}; give the column a declared "
                        "range in the party file (nodes.features, scale), or have the job release a wider one",
                        key=column,
                        value=float(value),
                        party=party,
                    )

    def label_party(self, job: NodeDpJob, graphs: Sequence[PartyGraph]) -> PartyId:
        private = job.release.labels
        if not graphs:
            check_federation(graphs, "")
        labelled = next((graph.party for graph in graphs if graph.labels is not None), graphs[0].party)
        learner = job.data.label_holder or (labelled if private is None else graphs[0].party)
        check_federation(graphs, learner if private is None else private.holder)
        return learner

    def labels_at(self, job: NodeDpJob, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        learns = holders if job.release.labels is not None else (*labelled, *holders)
        return job.data.label_holder or learns[0]

    def accept(self, job: NodeDpJob, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        _check_graphs(job, graphs)
        return Inputs(job, graphs)


@dataclass(frozen=True)
class _Released(Aligned):
    """A party's aligned data, with the releases agreed on."""

    releases: Releases | None = None


class _NodeDpSessions(AlignedSessions[NodeDpJob]):
    def stated(self, job: NodeDpJob, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        fields = {"steps": (0, seam.MAX_STEPS), "nodes": (1, seam.MAX_NODES)}
        if releases:
            fields["release"] = (-seam.MAX_NODES, seam.MAX_NODES)
            private = job.release.labels
            if party in job.duties.releasing:
                fields["features"] = (1, seam.MAX_FEATURES)
            if private is not None and party == private.holder:
                fields["classes"] = (2, seam.MAX_CLASSES)
        return fields

    def unread_bytes(self, job: NodeDpJob, hellos: Mapping[PartyId, Hello]) -> int:
        like = ModelSettings()  # what waits unread is bounded as in a vertical job of the usual size
        return unread_of_passes(hellos, width=like.dim, dim=like.dim, rounds=like.rounds)

    def release(self, session: RoleContext, aligned: Aligned) -> Aligned:
        graph = aligned.graph
        if graph is not None:
            rule = session.settings.inputs.degree_rules.get(graph.party)
            session = replace(session, refuses=session.refuses or too_many_neighbours(rule, graph.common_part()))
        releases = agree_on_release(session, graph)
        return _Released(**vars(replace(aligned, released_now=releases.is_new)), releases=releases)

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        graph, releases = aligned.graph, aligned.releases if isinstance(aligned, _Released) else None
        if graph is None or releases is None or session.link.party not in session.settings.duties.learning:
            return Bystander(session)
        with checked(session):
            features = released_features(session, releases, graph.common)
            labels = releases.labels(graph.common)
        job = node_dp(session.settings)
        if job.privacy is None:
            return LocalLearner(session, graph, [own_features(graph), *features], labels)
        return EdgePrivateLearner(session, graph, [*([own_features(graph)] if job.uses_own_columns else []), *features])


class _NodeDpPrivacy(seam.Privacy[NodeDpJob]):
    protects = ("node",)
    always = "node"

    def protecting(self, unit: str, epsilon: float, *, joined: bool = False) -> dict[str, Any]:
        features = {"mechanism": "multi-bit", "epsilon": epsilon, "low": 0.0, "high": 1.0}
        return {"release": {"features": features}}

    def plan(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> Plan | None:
        return release_plan(job, party, nodes)

    def largest_epsilon(self, job: NodeDpJob, party: PartyId, nodes: int | None = None) -> float:
        """Return the ε of one release of a node's features and label; at the learner that of its edges, or 0 without
        noise, as it sends nothing.
        """
        if (own := release_plan(job, party, nodes)) is not None:
            return own.epsilon_total
        if job.release.features is None or party not in job.duties.releasing:
            return 0.0
        labels = job.release.labels
        of_labels = labels.epsilon if labels is not None and labels.holder == party else 0.0
        return job.release.features.epsilon + of_labels


class _NodeDpGuarantee(seam.Guarantee[NodeDpJob]):
    def way(self, job: NodeDpJob) -> str:
        return "node-dp, noise on the learner's edges"

    def protection(self, job: NodeDpJob, nodes: int | None) -> Any:  # noqa: ANN401 - as the seam has it
        from veilgraph_node_dp.protection import protection_of  # noqa: PLC0415 - loads what reports are made with

        return protection_of(job, nodes)

    def unbounded(self, job: NodeDpJob) -> str:
        if job.privacy is not None:
            return "its noise bounds nothing: lower privacy.epsilon_total"
        return "its noise bounds nothing: lower release.features.epsilon"

    def threat_model(self, job: NodeDpJob) -> str:
        if job.privacy is None:
            return "everybody"
        return f"whoever is given {listed(job.duties.summing)}'s model, predictions or scores"

    def noise_source(self, job: NodeDpJob) -> str:
        return f"this ε is about {listed(job.duties.summing)}'s own edges, and counts its own noise alone"

    def privacy_notes(self, job: NodeDpJob) -> list[str]:
        if job.privacy is None:
            return []
        costs = (
            "predictions of the same nodes are of the same sums and cost nothing more; where nodes enter, "
            "all sums are made anew and paid for"
        )
        return [costs, *self.privacy_limits(job)]

    def privacy_limits(self, job: NodeDpJob) -> list[str]:
        """Return what the ε of the learner's edges does not cover, a sentence each; [] without that ε."""
        if job.privacy is None:
            return []
        learner = listed(job.duties.summing)
        uses = (
            f"{learner} uses its own columns and labels in the clear"
            if job.uses_own_columns
            else f"{learner} does not use its own columns. It uses labels in the clear"
        )
        return [
            f"{uses}: what its model tells of these no ε bounds.",
            f"It does not hold against {learner} itself, which has the edges and keeps them in the run's directory.",
        ]


class _NodeDpWords(seam.Words[NodeDpJob]):
    def describe(self, job: NodeDpJob) -> list[str]:
        release, labels = job.release.features, job.release.labels
        if release is None:
            return []
        learner, others = job.data.label_party, listed(job.duties.releasing)
        sentences = [
            f"{learner} knows the graph, and learns. At {others} every node perturbs its own features a single time, "
            f"by {release.mechanism} with ε = {release.epsilon:g}, before anybody sees them.",
            _learning_words(job),
        ]
        if labels is not None:
            sentences.append(
                f"Labels are {labels.holder}'s: each node perturbs its own by randomised response, with ε = "
                f"{labels.epsilon:g}; which nodes have one is in the clear."
            )
        else:
            sentences.append(f"{learner} has the labels itself and shows them to nobody.")
        return [
            *sentences,
            "What nodes release needs no trust in anybody: ε bounds what all parties together can infer.",
        ]

    def part_of(self, job: NodeDpJob, holder: PartyId) -> str:
        if holder in job.duties.summing:
            return "learns; knows the graph, and computes over it with noise"
        return "learns; knows the graph" if holder in job.duties.learning else "its nodes perturb their values"

    def collusion(self, job: NodeDpJob) -> str:
        return (
            "What nodes release was perturbed before anybody saw it: ε bounds what all parties together infer from it."
        )

    def server_part(self, job: NodeDpJob) -> str:
        return "computes nothing"

    def verdict(self, job: NodeDpJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.duties.learning)} trained a model that predicts {what}, from what {nodes} had perturbed of "
            f"themselves at {listed(job.duties.releasing)}."
        )


NODE_DP: Final = seam.Paradigm[NodeDpJob](
    title="local: nodes perturb their own values",
    rows=ROWS,
    data=_NodeDpData(),
    session=_NodeDpSessions(),
    privacy=_NodeDpPrivacy(),
    guarantee=_NodeDpGuarantee(),
    baselines=seam.Baselines(),
    words=_NodeDpWords(),
)
"""Nodes release perturbed features once, and one holder, which knows the graph, learns alone."""
