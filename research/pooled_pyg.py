"""What plain torch_geometric reaches with all holders' tables in one place, tuned on validation nodes.

A network of two layers is trained on all nodes at once for each cell of ``GRID``. The step with the best validation
figure is taken, and the cell with the best one. No consortium may have these tables in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch_geometric.nn import APPNP, GCNConv, SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judge import Objective

_HIDDEN: Final = 64
_EPOCHS: Final = 200
_EVERY: Final = 5
"""Epochs between two that are judged on validation nodes."""
_PATIENCE: Final = 6
"""Judged epochs without a better figure, after which a cell ends."""
_HOPS, _BACK = 10, 0.1
"""Of APPNP."""


@dataclass(frozen=True)
class Cell:
    """Of the grid.

    Attributes:
        network: ``gcn``, ``sage`` or ``appnp``.
        rate: of Adam.
        decay: of its L2.
        dropout: before each layer.
    """

    network: str
    rate: float
    decay: float
    dropout: float


GRID: Final = tuple(Cell(*each) for each in product(("gcn", "sage", "appnp"), (0.01,), (5e-4, 5e-3), (0.2, 0.6)))
FEWER: Final = tuple(cell for cell in GRID if cell.decay == 5e-4)
"""For graphs on which a cell takes a minute."""


class _Linear(nn.Module):
    """Of dense columns, or of sparse ones."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(columns, width)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.inner.weight, self.inner.bias
        return torch.sparse.mm(x, weight.T) + bias if is_sparse(x) else nn.functional.linear(x, weight, bias)


class _Layer(nn.Module):
    """A hop of ``torch_geometric`` behind its linear layers, which is faster where columns are many and sparse.

    Means and weighted sums over neighbours are linear, so that the order of both does not matter.
    """

    def __init__(self, network: str, columns: int, width: int, *, last: bool) -> None:
        super().__init__()
        self._own = _Linear(columns, width) if network == "sage" else None
        self._others = _Linear(columns, width)
        self._hop: nn.Module | None = None
        if network == "gcn":
            self._hop = GCNConv(width, width, bias=False, cached=True)
            self._hop.lin = nn.Identity()
        elif network == "sage":
            self._hop = SAGEConv(width, width, root_weight=False)
            self._hop.lin_l = nn.Identity()
        elif last:
            self._hop = APPNP(_HOPS, _BACK, cached=True)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Rows [N, width] of rows x and the adjacency matrix."""
        made: Tensor = self._others(x)
        if self._hop is not None:
            made = self._hop(made, edges)
        return made if self._own is None else made + self._own(x)


class _Network(nn.Module):
    """Two layers."""

    def __init__(self, cell: Cell, columns: int, classes: int) -> None:
        super().__init__()
        self._first = _Layer(cell.network, columns, _HIDDEN, last=False)
        self._second = _Layer(cell.network, _HIDDEN, classes, last=True)
        self._dropout = cell.dropout

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Logits [N, C]."""
        hidden = self._first(self._dropped(x), edges).relu()
        logits: Tensor = self._second(self._dropped(hidden), edges)
        return logits

    def _dropped(self, x: Tensor) -> Tensor:
        if not is_sparse(x):
            return nn.functional.dropout(x, self._dropout, self.training)
        values = nn.functional.dropout(x.values(), self._dropout, self.training)
        return torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), values, x.shape)


def tuned(
    graph: PartyGraph, settings: TrainSettings, seed: int, grid: Sequence[Cell] = GRID
) -> tuple[Tensor, float, Cell]:
    """Logits [N, C] of the best cell, its validation figure, and the cell.

    Args:
        graph: with labels and masks.
        settings: ``select_by`` says what a step and a cell are judged by, ``class_weights`` how classes weigh.
        seed: of initial weights and dropout.
        grid: the cells.
    """
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    with checks(enable=False):  # torch warns where neither is said
        found = [(*_trained(graph, settings, seed, cell), cell) for cell in grid]
    return max(found, key=lambda each: each[1])


def _trained(graph: PartyGraph, settings: TrainSettings, seed: int, cell: Cell) -> tuple[Tensor, float]:
    """Logits of the best step, and its validation figure."""
    torch.manual_seed(seed)
    objective = Objective(graph, settings, torch.float32)
    x, val = graph.features.float(), objective.val_nodes
    edges = to_torch_csr_tensor(graph.edge_index.flip(0), graph.edge_weight, (graph.num_nodes,) * 2)
    network = _Network(cell, graph.num_features, objective.classes)
    optimizer = torch.optim.Adam(network.parameters(), cell.rate, weight_decay=cell.decay)
    best, taken, since = (-1.0, 0.0), torch.empty(0), 0
    for epoch in range(1, _EPOCHS + 1):
        network.train()
        optimizer.zero_grad()
        objective.training_loss(network(x, edges)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if epoch % _EVERY:
            continue
        network.eval()
        with torch.no_grad():
            logits = network(x, edges)
        figures = objective.validation(logits[val])
        best, taken, since = (figures, logits, 0) if figures > best else (best, taken, since + 1)
        if since == _PATIENCE:
            break
    return taken.double(), best[0]
