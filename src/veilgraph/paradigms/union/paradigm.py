"""The union as a paradigm: holders' own nodes, edges between nodes of different holders, only results opened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, TypeVar

from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.text import counted, listed
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.dataset import load_at_home, load_named_graphs
from veilgraph.graph.party import PartyGraph
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.correlations import AHEAD_STRIDES, STRIDE_BYTES
from veilgraph.mpc.sealed.functions import MOST_CLASSES
from veilgraph.paradigms.horizontal.paradigm import SameColumnsData, SameColumnsPrivacy, SameColumnsSessions
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.inputs import padded, plan_of, stated_neighbours
from veilgraph.paradigms.sealed.paradigm import bytes_of_one
from veilgraph.paradigms.sealed.plan import MOST_JUDGED, Context, is_apart
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE
from veilgraph.paradigms.sealed.trust import PART, dealing
from veilgraph.paradigms.sealed.words import SealedWords, network_words
from veilgraph.paradigms.union.addresses import LISTED_BYTES
from veilgraph.paradigms.union.inputs import blocks_of, network_of, scale_own, union_sizes
from veilgraph.paradigms.union.roles import UnionDealer, UnionHolder, UnionNetwork
from veilgraph.paradigms.union.rows import ROWS
from veilgraph.paradigms.union.settings import UnionJob, union
from veilgraph.paradigms.union.twin import alone, one_graph, pooled
from veilgraph.protocol import paradigm as seam
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.costs import Costs, PartySizes, Stage, size_of
from veilgraph.protocol.facets import InputRules
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.organisation import Aligned
from veilgraph.protocol.plain_fitting import Inputs, PlainResult, Progress
from veilgraph.protocol.role import Role, RoleContext

_LIKELY: Final = 8190  # edges of a node, where tables do not say


J = TypeVar("J", bound=JobSettings)


class JoinedData(SameColumnsData[J]):
    """Loading and checks of graphs whose edges may join own nodes with other holders', behind the own ones."""

    @override
    def load(self, job: J) -> Inputs:
        """Load saved graphs, or a data set divided by holder, with a graph of edges only for ``inputs.across``."""
        across = job.inputs.across
        if job.data.graphs is not None:
            whole = load_named_graphs(job.data)
        else:
            owners = tuple(name for name in job.data.names if name != across)
            found = load_at_home(job.data.model_copy(update={"holders": owners}), job.seed)
            made = [] if across is None else [network_of(across, found)]
            whole = sorted([*found, *made], key=lambda part: job.data.names.index(part[0].party))
        return self.accept(job, [graph for graph, _ in whole], {graph.party: each for graph, each in whole})

    @override
    def label_party(self, job: J, graphs: Sequence[PartyGraph]) -> PartyId:
        super().label_party(job, graphs)
        labelled = [graph.party for graph in graphs if graph.labels is not None]
        return self.labels_at(job, [graph.party for graph in graphs], labelled)

    @override
    def labels_at(self, job: J, holders: Sequence[PartyId], labelled: Sequence[PartyId]) -> PartyId:
        return job.data.label_holder or next(iter(labelled), holders[0])

    @staticmethod
    @override
    def _check_own(graphs: Sequence[PartyGraph]) -> None:
        """Check nothing: a union's graphs may have other holders' nodes behind their own."""

    @override
    def accept(self, job: J, graphs: Sequence[PartyGraph], ids: Mapping[PartyId, Sequence[str]]) -> Inputs:
        """Scale own nodes' features together; nodes behind a graph's own are others', and need ids ``holder/id``.

        Raises ``DataError``: such an id names no holder, or ``across`` is not the one holder without nodes.
        """
        across = job.inputs.across
        for graph in graphs:
            if (graph.common == 0) != (graph.party == across):
                raise DataError(
                    f"party {graph.party!r}: num_common: it has {graph.common:,} nodes of its own, and across="
                    f"{across or 'null'} names the one holder that has none; set across to that holder, or null",
                    key="across",
                    value=across,
                    party=graph.party,
                )
            for text in ids[graph.party][graph.common :]:
                if text.split("/", 1)[0] not in job.data.names or "/" not in text:
                    raise DataError(
                        f"party {graph.party!r}: ids: {text!r} of a node behind its own {graph.common} names no "
                        "holder; call it by that holder's name and its id there, as in bank/17",
                        key="ids",
                        value=text,
                        party=graph.party,
                    )
        return Inputs(job, scale_own(graphs, job.data.feature_scaling), ids)


class _UnionSessions(SameColumnsSessions[UnionJob]):
    has_costs: ClassVar[bool] = True

    @override
    def costs(self, job: UnionJob, nodes: int, sizes: Mapping[PartyId, PartySizes]) -> Costs:
        """Count rounds, bytes and memory of a training, the address exchange included where sizes have ``shared``."""
        judged = MOST_JUDGED // len(sizes) if job.passes.evaluates else 0
        blocks = blocks_of(
            {holder: padded(own.nodes) if own.nodes else 0 for holder, own in sizes.items()},
            {holder: (own.training, min(own.validation, judged), 0) for holder, own in sizes.items()},
        )
        whole = union_sizes(
            job,
            blocks,
            next(own.columns for own in sizes.values() if own.nodes),
            {holder: padded(own.edges) for holder, own in sizes.items()},
            max(own.classes for own in sizes.values()),
            {holder: stated_neighbours(job, holder, own.neighbours or _LIKELY) for holder, own in sizes.items()},
        )
        every = job.train.evaluate_every if job.passes.evaluates else None
        context = Context(whole, plan_of(job, whole), job.data.label_party, {})
        costs = costs_of(context, job.train.epochs, every, dealer=job.dealing_party)
        sent = Counter[PartyId]()
        for holder, own in sizes.items():
            told = [padded(own.shared.get(other, 0)) for other in sizes if other != holder] if own.shared else []
            for each in told if job.across is None else [blocks[holder].size] * (holder != job.across):
                sent[holder] += 2 * HEADER_BYTES + LISTED_BYTES * each
        return replace(costs, stages=[*costs.stages, Stage("addresses", 1, sent)])

    @override
    def stated(self, job: UnionJob, party: PartyId, *, releases: bool) -> dict[str, seam.Range]:
        """Bounds of the sizes that a party states in its hello: of edges alone for ``across``, none for the server."""
        if party == SERVER:
            return dict(seam.NO_NUMBERS)
        judged = (0, MOST_JUDGED if job.passes.evaluates else 0)
        many = (1, seam.MAX_NODES)
        edges: dict[str, seam.Range] = {"edges": many, "neighbours": (1, LARGEST_DEGREE)}
        if party == job.across:
            return {**seam.NO_NUMBERS, **edges}
        return {
            **{"rows": many, "features": (1, seam.MAX_FEATURES), **edges},
            **{"classes": (0, MOST_CLASSES), "training": (0, seam.MAX_NODES), "validation": judged},
            "asked": (0, job.named_nodes or 0),
        }

    @override
    def unread_bytes(self, job: UnionJob, hellos: Mapping[PartyId, Hello]) -> int:
        plan, (one, *_) = plan_of(job), [hello for hello in hellos.values() if hello.rows]
        nodes, classes = (sum(hello.rows for hello in hellos.values()), max(hello.classes for hello in hellos.values()))
        columns = sum(plan.width_of(block, one.features, classes) * (1 + is_apart(block)) for block in plan.blocks)
        learned = sum(hello.training + hello.validation for hello in hellos.values())
        width = max(columns, classes + job.model.hidden, 256)
        slots = nodes + max(hello.edges for hello in hellos.values())
        matrix = 2 * nodes * width + learned * width + 4 * slots
        return bytes_of_one(job) * matrix + (AHEAD_STRIDES + 1) * STRIDE_BYTES + SLACK_BYTES

    @override
    def role(self, session: RoleContext, aligned: Aligned) -> Role:
        if aligned.graph is None:
            return UnionDealer(session)
        kind = UnionNetwork if session.link.party == union(session.settings).across else UnionHolder
        return kind(session, aligned.graph, aligned.ids or ())


class _UnionPrivacy(SameColumnsPrivacy[UnionJob]):
    protects: ClassVar[tuple[str, ...]] = ()

    def largest_epsilon(self, job: UnionJob, party: PartyId, nodes: int | None = None) -> float:
        return math.inf

    def most_edges_at_a_node(self, graph: PartyGraph) -> float:
        return size_of(graph, InputRules(joins_others=True)).neighbours or 0


class _UnionGuarantee(seam.Guarantee[UnionJob]):
    def unbounded(self, job: UnionJob) -> str:
        return "a union job tells predictions as they are, without differential privacy; sealed, for edges, has some"


class _UnionBaselines(seam.Baselines[UnionJob]):
    @override
    def alone(self, inputs: Inputs, holder: PartyId, progress: Progress) -> PlainResult | None:
        graph = next(graph for graph in inputs.graphs if graph.party == holder)
        return None if graph.labels is None else alone(union(inputs.settings), graph, inputs.ids[holder], progress)

    @override
    def pooled(self, inputs: Inputs, progress: Progress) -> PlainResult:
        return pooled(union(inputs.settings), inputs.graphs, inputs.ids, progress)

    @override
    def one_graph(self, inputs: Inputs) -> PartyGraph | None:
        return one_graph(inputs.graphs, inputs.ids)


class _UnionWords(SealedWords[UnionJob]):
    def describe(self, job: UnionJob) -> list[str]:
        names = listed(job.owners)
        told = "the class" if job.output == "classes" else "a score of every class"
        judged = ", and at every evaluation how well the step does over all" if job.passes.evaluates else ""
        nodes, named = "each of its own nodes", job.outcome.predicts_named
        if job.named_nodes is not None:
            nodes = (
                f"at most {counted(job.named_nodes, 'node')} of its own in all, which it names in later predictions "
                "and nobody else learns"
            )
        who_has = ", also to nodes of each other"
        addressed = (
            "Two holders tell each other hashes of the edges between their nodes: each learns which of those that it "
            "has the other has as well, and these alone are used."
        )
        if job.across is not None:
            who_has = f"; {job.across} has those between nodes of different ones, and no nodes"
            addressed = (
                f"Every holder tells {job.across} hashes of its nodes: it learns which ends of its edges are nodes of "
                "the job, and uses the edges that join two of these. Nobody else sees whether such an edge is there."
            )
        return [
            f"{names} have the same columns of nodes of their own, labels of these, and edges between them{who_has}. "
            "All that they compute with is masked: nobody sees another's features, edges, degrees, labels or training "
            "nodes, nor any weight, gradient or score.",
            network_words(job, plan_of(job)),
            f"Every holder learns {told} that is predicted for {nodes}{judged}. {dealing(job)}.",
            addressed,
            "All are told sizes: rounded numbers of nodes and edges, columns, training and validation nodes, classes"
            + ", and how many nodes each names" * named
            + ".",
        ]

    def part_of(self, job: UnionJob, holder: PartyId) -> str:
        part = "holder, reports" if holder == job.data.label_party else "holder"
        return ("edges across" if holder == job.across else part) + PART * (holder == job.dealing_party)

    def verdict(self, job: UnionJob, what: str, nodes: str) -> str:
        return (
            f"{listed(job.owners)} trained one model together that predicts {what}, each for its own nodes; "
            f"{job.data.label_party} scored it on its {nodes}, and nobody sees the model."
        )


UNION: Final = seam.Paradigm[UnionJob](
    title="union: everybody's own nodes, and edges between them",
    rows=ROWS,
    data=JoinedData(),
    session=_UnionSessions(),
    privacy=_UnionPrivacy(),
    guarantee=_UnionGuarantee(),
    baselines=_UnionBaselines(),
    words=_UnionWords(),
)
"""Holders of nodes of their own train one network over all edges between them; nothing is opened but results."""
