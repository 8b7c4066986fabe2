"""The parties of a union run the program of sealed jobs: holders of nodes or of edges alone, and the dealer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.horizontal.roles import joint_and_alone_scores
from veilgraph.paradigms.sealed.inputs import max_degree_of, padded, plan_of, stated_neighbours
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.named_nodes import check_learning
from veilgraph.paradigms.sealed.plan import OwnData, Sizes
from veilgraph.paradigms.sealed.roles import SealedDealer, SealedHolder, SealedRole
from veilgraph.paradigms.union.addresses import exchange_rows
from veilgraph.paradigms.union.inputs import (
    Places,
    blocks_of,
    own_edges_and_columns,
    symmetric_graph,
    union_sizes,
    with_coins,
    with_no_labels,
    with_own_labels,
)
from veilgraph.paradigms.union.settings import union
from veilgraph.paradigms.union.twin import alone
from veilgraph.protocol.agreement import Hello, same_count
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.judge import SharedJudge
from veilgraph.protocol.role import RoleContext


class _UnionRole(SealedRole):
    @override
    def sizes(self, hellos: Mapping[PartyId, Hello]) -> Sizes:
        job = union(self.session.settings)
        columns = same_count("columns", {holder: hellos[holder].features for holder in job.owners})
        classes = {holder: hello.classes for holder, hello in hellos.items() if hello.classes}
        if self._trains:
            check_learning(job, job.data.label_party, hellos[job.data.label_party])
        self._check_named(hellos)
        counts = {holder: (hello.training, hello.validation, hello.asked) for holder, hello in hellos.items()}
        return union_sizes(
            job,
            blocks_of({holder: hello.rows for holder, hello in hellos.items()}, counts),
            columns,
            {holder: hello.edges for holder, hello in hellos.items()},
            same_count("classes", classes),
            {holder: hello.neighbours for holder, hello in hellos.items()},
        )

    def _check_named(self, hellos: Mapping[PartyId, Hello]) -> None:
        """Check how many nodes holders name: ``ProtocolError`` above one's limit, ``ConfigError`` if none names any."""
        job, trains = union(self.session.settings), self._trains
        for holder in job.owners:
            stated = hellos[holder]
            self._naming.agreed(holder, stated.asked, trains=trains, nodes=stated.rows, least=0)
        if job.outcome.predicts_named and not trains and not any(hello.asked for hello in hellos.values()):
            raise ConfigError(
                f"named_nodes={job.named_nodes}: no holder has named a node of its own for this prediction; let one "
                "name some (veilgraph predict RUN --nodes or --ids, across organisations with --ask)",
                code="none-named",
                key="named_nodes",
                value=job.named_nodes,
            )


class UnionDealer(_UnionRole, SealedDealer):
    """Deals randomness; no message to it depends on anybody's data."""


class UnionNetwork(_UnionRole, SealedHolder):
    """Has edges, and learns which of their ends are nodes of the union; ``ids`` name its graph's nodes, its own first.

    Raises ``DataError``: its edges do not fit the job.
    """

    def __init__(self, session: RoleContext, graph: PartyGraph, ids: Sequence[str]) -> None:
        super().__init__(session, graph)
        self._ids = ids
        self._places: Places | None = None
        self._sizes: Sizes | None = None

    @override
    def put_in(self) -> OwnData:
        job = union(self.session.settings)
        return own_edges_and_columns(plan_of(job), self.graph, job)

    @override
    def hello(self) -> Hello:
        size = size_of(self.graph, self._job.inputs)
        told = stated_neighbours(self._job, self.graph.party, size.neighbours or 0)
        max_degree_of(self._job, [told])  # before others refuse what it states
        own = {
            "nodes": 0,
            "rows": padded(size.nodes) if size.nodes else 0,
            "features": size.columns if size.nodes else 0,
            "edges": padded(size.edges),
            "neighbours": told,
        }
        return super().hello().model_copy(update=own)

    @override
    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        session, (own,) = self.session, super().data(sizes, name).values()
        self._sizes = sizes
        self._places = exchange_rows(session.link, name, self.graph, self._ids, sizes.blocks, session.secrets)
        return {session.link.party: with_coins(self._places.of(own), sizes.nodes, session.secrets)}


class UnionHolder(UnionNetwork, SealedLabelHolder, SharedJudge):
    """Has nodes, columns, edges and perhaps labels of its own, and learns the predictions of its own nodes."""

    @override
    def with_labels(self) -> OwnData:
        session = self.session
        job, classes = union(session.settings), self._objective.classes
        return with_own_labels(self._own, self.graph, job, session.streams, classes)

    @override
    def labelled(self) -> PartyGraph:
        return symmetric_graph(with_no_labels(self.graph), plan_of(self._job))

    @override
    def declines(self) -> str:
        """Why it may not name so many nodes in this prediction; empty where it may, or names none."""
        named = 0 if self._learns or self.predicted is None else self.predicted.numel()
        return self._naming.refusal(self.session.link.party, named, least=0) if named else ""

    @override
    def learn(self, found: Tensor | None) -> None:
        """Keep logits of the named nodes, in their order, or of all own nodes without the block's other rows."""
        assert self._places is not None
        if self.predicted is None:
            assert found is not None
            found = self._places.own(found)
        elif found is None:  # of no node
            found = torch.empty((0, 1 if self._job.output == "classes" else self._classes - 1), dtype=torch.float64)
        super().learn(found)

    @override
    def judge(self, found: Tensor | None) -> None:
        """Keep the share of all holders' validation nodes, or pairs, that are right, of ``found`` [1, 1 or 2]."""
        assert found is not None
        assert self._sizes is not None
        right, most = float(found[0, 0]), float(found[0, -1]) if found.shape[1] > 1 else self._sizes.validation
        self._right = right / max(most, 1)

    @override
    def audience(self) -> list[PartyId]:
        across = union(self.session.settings).across
        return super().audience() + ([across] if across is not None and self.reports else [])

    @override
    def alone(self) -> Record | None:
        if self.graph.labels is None or self.predicted is not None:
            return None
        self.close()  # what it lets go of is as large as what follows
        found = alone(union(self.session.settings), self.graph, self._ids, lambda _: None)
        return joint_and_alone_scores(self.scores(everything=True), found)
