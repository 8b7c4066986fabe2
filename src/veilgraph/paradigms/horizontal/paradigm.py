"""SAPGNN as a paradigm, and what it shares with averaging: holders of the same columns, each with nodes of its own.

No ids are compared while graphs are built; the holders' roles list them to the server under a key. What holders tell
each other is whether their columns and classes are the same and, where the features need statistics, sums over all
their rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final, TypeVar

import numpy as np
import torch

from veilgraph.core.errors import DataError
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.core.text import TRUST, counted, listed
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.graph.build import build_graph, read_table
from veilgraph.graph.dataset import load_named_graphs, load_parts
from veilgraph.graph.features import scale_together
from veilgraph.graph.federation import check_names
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import exchange
from veilgraph.mpc.mask import PairwiseMasks, sum_integers_among
from veilgraph.paradigms.horizontal import twin as baselines
from veilgraph.paradigms.horizontal.roles import HorizontalHolder, HorizontalServer
from veilgraph.paradigms.horizontal.rows import COLUMNS, ROWS
from veilgraph.paradigms.horizontal.settings import HorizontalJob, horizontal
from veilgraph.paradigms.horizontal.tally import VALUE_WORDS
from veilgraph.protocol import paradigm as seam
from veilgraph.protocol.aligning import check_split
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Aligned, Organisation, Preparation, Prepared
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.releases import noised_labels
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.tables.column_settings import CategoricalFeatures, NumericFeatures
from veilgraph.tables.columns import (
    HASH_BYTES,
    Compared,
    check_same_columns,
    column_hashes,
    edge_columns,
    prediction_kind,
    reorder_columns,
    split_hash,
)
from veilgraph.tables.encode import fit_encoding
from veilgraph.tables.nodes import feature_columns, read_nodes

J = TypeVar("J", bound=JobSettings)

_NONCES: Final = 3  # round of the messages from which an identity is made
_KEYS: Final = 1  # round of the keys for sums over columns; those of training come later in the session


class SameColumnsData(seam.Data[J]):
    """Loading and checks of graphs and tables, for jobs whose holders have the same columns of nodes of their own."""

    def load(self, job: J) -> Inputs:
        """Load the holders' graphs: of a data set, divided by nodes, or of saved graphs, whose features it scales."""
        check_split(job)
        if job.data.graphs is None:
            parts = load_parts(job.data, job.seed)
            names = {part.graph.party: [str(node) for node in part.ids.tolist()] for part in parts}
            return Inputs(job, [part.graph for part in parts], names)
        graphs, found = map(list, zip(*load_named_graphs(job.data), strict=True))
        self._check_own(graphs)
        return self.accept(job, graphs, {graph.party: each for graph, each in zip(graphs, found, strict=True)})

    def label_party(self, job: J, graphs: Sequence[PartyGraph]) -> PartyId:
        check_names([graph.party for graph in graphs])
        self._check_own(graphs)
        return job.data.label_holder or graphs[0].party

    @staticmethod
    def _check_own(graphs: Sequence[PartyGraph]) -> None:
        for graph in graphs:
            if graph.common != graph.num_nodes:
                raise DataError(
                    f"party {graph.party!r}: num_common={graph.num_common} is for paradigm vertical; a horizontal "
                    "holder does not know which nodes are common: leave it out"
                )

    def accept(self, job: J, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        """Scale the features of all holders' graphs together."""
        return Inputs(job, scale_together(graphs, job.data.feature_scaling), ids)

    def check_tables(self, job: J) -> None:
        """Check, where all party files are here, that holders' columns, classes and split keys are the same.

        Raises ``ConfigError``: a party file breaks a rule; ``DataError``: a table cannot be read, or they differ.
        """
        found = []
        for party, path in (job.data.parties or {}).items():
            own = Organisation.read(path, party)
            if not own.settings.has_nodes:
                continue
            columns: list[Compared] = [*feature_columns(own.settings, own.folder), *edge_columns(own.settings.edges)]
            nodes = own.settings.nodes
            found.append((party, columns, column_hashes(columns, prediction_kind(nodes), None, split_hash(nodes, ""))))
        for place, (party, columns, mine) in enumerate(found):
            for other, _, theirs in found[place + 1 :]:
                check_same_columns(party, columns, mine, other, theirs)


class SameColumnsSessions(seam.Sessions[J]):
    """Preparation and stated sizes of jobs whose holders have the same columns of nodes of their own."""

    def stated(self, job: J, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        """Bounds of what a holder states in its hello: training steps, columns and classes."""
        return {"steps": (0, seam.MAX_STEPS), "features": (1, seam.MAX_FEATURES), "classes": (0, seam.MAX_CLASSES)}

    def prepare(self, own: Preparation) -> Prepared:
        return collect(own)


class SameColumnsPrivacy(seam.Privacy[J]):
    """Label privacy of jobs whose holders have the same columns of nodes of their own."""

    has_privacy: ClassVar[bool] = False
    protects: ClassVar[tuple[str, ...]] = ("label",)

    def disclosed_by_tables(self, job: J, features: Sequence[NumericFeatures | CategoricalFeatures]) -> dict[str, str]:
        filled = any(feature.missing == "mean" for feature in features) and not job.passes.learns_alone
        return {COLUMNS.name: "nodes.features with missing=mean"} if filled else {}


class SameColumnsWords(seam.Words[J]):
    """Words in reports on jobs whose holders have the same columns of nodes of their own."""

    def part_of(self, job: J, holder: PartyId) -> str:
        return "evaluator" if holder == job.data.label_party else "holder"

    def verdict(self, job: J, what: str, nodes: str) -> str:
        scored = job.data.label_party
        names = listed(job.data.names)
        return f"{names} trained one model together that predicts {what}; {scored} scored it on its {nodes}."


def collect(own: Preparation) -> Prepared:
    """Agree on a data identity and on columns with the other parties, and build this one's graph from its tables.

    All parties call it together; one without tables, as the server, gets the identity alone. Nodes are shuffled, so
    that a row does not tell an id's rank. Raises ``DataError``: a table breaks a rule, or columns or classes differ.
    """
    link, settings, organisation, encoding = own.link, own.job, own.organisation, own.encoding
    identity = _fresh_identity(link, settings.data.names)
    if organisation is None:
        return Prepared(identity, {})
    party, names = organisation.settings, [name for name in settings.data.names if name != settings.inputs.across]
    folder, others = organisation.folder, [holder for holder in names if holder != link.party]
    joined = others if settings.inputs.joins_others else ()
    if not party.has_nodes:
        table = read_table(party, folder, None, "none")
        built = build_graph(party, folder, table, fit_encoding(table, "none"), then=own.then, others=joined)
        return Prepared(identity, {"nodes": 0}, built)
    columns = feature_columns(party, organisation.folder) if encoding is None else encoding.columns
    compared: list[Compared] = [*columns, *edge_columns(party.edges)]
    split = split_hash(party.nodes, identity) if encoding is None else None  # in a prediction nothing learns
    # Where no model is shared, missing values are filled in from own rows. Their means are neither summed nor hashed.
    is_alone = settings.passes.learns_alone
    mine = column_hashes(compared, prediction_kind(party.nodes), None if is_alone else encoding, split)
    received = check_columns(link, others, compared, mine)
    if encoding is not None:
        table = read_table(party, organisation.folder, encoding, settings.data.feature_scaling, own.streams)
    else:
        first = received.get(names[0], mine)  # all holders' columns stand as the first holder's do
        table = read_nodes(party, organisation.folder, reorder_columns(columns, mine, first), own.streams)
        total = list if is_alone else Totals(link, names)
        encoding = fit_encoding(table, settings.data.feature_scaling, total)
    order = np.array(own.streams.order("nodes", table.ids.to_pylist()), dtype=np.int64)
    table = table.take(order)  # in place of the other: tables may be large
    per_node = link.party in settings.inputs.per_node
    built = build_graph(party, folder, table, encoding, per_node=per_node, then=own.then, others=joined)
    return Prepared(identity, {"nodes": built.graph.common}, built)


def _fresh_identity(link: Link, holders: Sequence[PartyId]) -> str:
    """Exchange fresh nonces with all parties: SHA-256 (hex) of all, in the job's order; no data goes into it."""
    mine = torch.frombuffer(bytearray(system_secrets(SEED_BYTES)), dtype=torch.uint8)
    parties = (*holders, SERVER)
    nonces = exchange(link, [party for party in parties if party != link.party], Tag(Kind.HELLO, 0, _NONCES), mine)
    return hashlib.sha256(b"".join(nonces.get(party, mine).numpy().tobytes() for party in parties)).hexdigest()


def check_columns(
    link: Link, others: Sequence[PartyId], columns: Sequence[Compared], mine: Sequence[bytes]
) -> dict[PartyId, list[bytes]]:
    """Exchange the hashes of columns with the other holders, and return theirs; ``DataError`` where columns differ."""
    told = torch.from_numpy(np.frombuffer(b"".join(mine), np.uint8).reshape(-1, HASH_BYTES).copy())
    received = exchange(link, others, Tag(Kind.COLUMN_HASHES), told, shape=(None, HASH_BYTES))
    theirs = {other: [row.tobytes() for row in hashes.numpy()] for other, hashes in received.items()}
    for other, hashes in theirs.items():
        check_same_columns(link.party, columns, mine, other, hashes)
    return theirs


class Totals:
    """Callable: sums lists of integers element-wise over all holders, who alone learn sums; agrees on keys at first."""

    def __init__(self, link: Link, holders: Sequence[PartyId]) -> None:
        self._link, self._holders = link, holders
        self._masks: PairwiseMasks | None = None
        self._asked = 0

    def __call__(self, values: Sequence[int]) -> list[int]:
        link = self._link
        if self._masks is None:
            self._masks = PairwiseMasks.agree(link, self._holders, system_secrets, round_=_KEYS)
        others = [holder for holder in self._holders if holder != link.party]
        tag = Tag(Kind.COLUMN_SUMS, self._asked)
        self._asked += 1
        return sum_integers_among(link, others, self._masks, values, tag, purpose="column sums")


class _HorizontalSessions(SameColumnsSessions[HorizontalJob]):
    def stated(self, job: HorizontalJob, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        """Bounds of what a holder states in its hello: also columns of edges, if messages use them."""
        columns = (0, seam.MAX_FEATURES if job.inputs.edge_features else 0)
        return {**super().stated(job, party, releases=releases), "edge_columns": columns}

    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if aligned.graph is None:
            return HorizontalServer(session)
        return HorizontalHolder(session, aligned.graph, aligned.ids or ())


class _HorizontalPrivacy(SameColumnsPrivacy[HorizontalJob]):
    def largest_epsilon(self, job: HorizontalJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf


class _HorizontalGuarantee(seam.Guarantee[HorizontalJob]):
    def way(self, job: HorizontalJob) -> str:
        return "labels, horizontal"

    def unbounded(self, job: HorizontalJob) -> str:
        if job.label_privacy is not None:
            return seam.LABELS_ALONE
        return "paradigm=horizontal has no differential privacy but label_privacy's: take that, or node-dp"


class _HorizontalBaselines(seam.Baselines[HorizontalJob]):
    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        (part,) = (part for part in baselines.parts_of(inputs.graphs, inputs.ids) if part.graph.party == holder)
        found = baselines.alone(horizontal(inputs.settings), part, progress)
        rank = baselines.places_of(inputs.ids)[holder].argsort().argsort()
        return None if found is None else replace(found, output=found.output[rank])

    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        """Train on the combined graph; ``output`` has every holder's rows in turn, a shared node more than once."""
        parts, places = baselines.parts_of(inputs.graphs, inputs.ids), baselines.places_of(inputs.ids)
        found = baselines.pooled(horizontal(inputs.settings), parts, progress)
        rows = torch.cat([places[graph.party] for graph in inputs.graphs])
        return replace(found, output=found.output[rows])

    def beside(self, job: HorizontalJob) -> Mapping[str, Any] | None:
        part = job.data.partition  # averaging refuses data of which holders have nodes in common
        is_apart = job.data.dataset is None or (part.by != "edges" and part.knows == "own")
        learns_true_classes = not job.horizontal.task.is_values and job.label_privacy is None
        is_there = "averaging" in seam.PARADIGMS
        return {"paradigm": "averaging"} if is_there and is_apart and learns_true_classes else None


class _HorizontalWords(SameColumnsWords[HorizontalJob]):
    def describe(self, job: HorizontalJob) -> list[str]:
        split, task = job.model, job.horizontal.task
        alone = " It learns that maximum alone: neither the other values nor whose it is."
        return [
            f"{listed(job.data.names)} have the same columns of different nodes, some of them perhaps the same, with "
            "edges and labels of their own.",
            f"The network has {counted(split.layers, 'layer')}. In each, every holder takes the {split.aggregate} over "
            f"a node's neighbours at it, and the server the {split.aggregate} over the holders."
            f"{alone if split.combine == 'secure-max' else ''}",
            *(task.describe() if task.is_values else ()),
            "The result is that of one network on the combined graph. Every holder gets it for its own nodes.",
            "Holders share their weights, and add up gradients, losses and counts among themselves.",
            noised_labels(job),
            TRUST,
        ]

    def predicts(self, job: HorizontalJob, classes: int | None) -> str:
        return VALUE_WORDS if job.horizontal.task.is_values else super().predicts(job, classes)


HORIZONTAL: Final = seam.Paradigm[HorizontalJob](
    title="horizontal: the same columns, different nodes",
    rows=ROWS,
    data=SameColumnsData(),
    session=_HorizontalSessions(),
    privacy=_HorizontalPrivacy(),
    guarantee=_HorizontalGuarantee(),
    baselines=_HorizontalBaselines(),
    words=_HorizontalWords(),
)
"""Holders of the same columns train one network, layer by layer; what they add is pooled at a server."""
