"""The plaintext twin of a job with ``averaging.symbols``: edges compared by name, symbols counted in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.union.edge_lists import node_names
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.symbols.exchange import counted, pairs_across
from veilgraph_averaging.symbols.home import AtHome, own_model
from veilgraph_averaging.symbols.roles import bytes_of, law_of


class PlainSymbols:
    """All holders of a job in one process.

    Args:
        ids: holder → names of its graph's nodes, its own first and others' as ``holder/id``.
        symbols: holder → what its publisher released, Tensor[n] int64.
    """

    def __init__(
        self,
        job: AveragingJob,
        graphs: Sequence[PartyGraph],
        ids: Mapping[PartyId, Sequence[str]],
        symbols: Mapping[PartyId, Tensor],
    ) -> None:
        self._job, self._graphs, self._ids = job, {graph.party: graph for graph in graphs}, ids
        self._names = {party: node_names(graph, ids[party]) for party, graph in self._graphs.items()}
        self._bytes = {party: bytes_of(job, graph, symbols[party]) for party, graph in self._graphs.items()}
        self._classes = max(graph.num_classes or 0 for graph in graphs)

    def counts(self, party: PartyId) -> Tensor:
        """Count the symbols at a holder's own nodes, of the edges that both ends' holders have: float64 [n, C]."""
        graph, names, found = self._graphs[party], self._names[party], list[tuple[int, int]]()
        for other in self._graphs:
            if other == party:
                continue
            rows = {name: row for row, name in enumerate(self._names[other][: self._graphs[other].common])}
            theirs, mine = (
                {
                    frozenset((self._names[holder][first], self._names[holder][second]))
                    for first, second in pairs_across(self._graphs[holder], self._ids[holder], [peer])[peer].T.tolist()
                }
                for holder, peer in ((other, party), (party, other))
            )
            own = {name: row for row, name in enumerate(names[: graph.common])}
            for pair in mine & theirs:
                (end,), (far,) = ([name for name in pair if name in known] for known in (own, rows))
                found.append((own[end], int(self._bytes[other][rows[far]])))
        ends = torch.tensor(found, dtype=torch.int64).reshape(-1, 2)
        return counted(ends[:, 1].to(torch.uint8), ends[:, 0], graph.common, self._classes)

    def logits(self, party: PartyId) -> Tensor:
        """What a holder would predict of its own nodes: float64 [n, C]."""
        graph, seed = self._graphs[party], self._job.seed
        own = own_model(graph, self._ids[party], seed).output
        return AtHome.of(graph.common_part(), own, seed).mixed(self.counts(party), law_of(self._job, self._classes))[1]
