"""Local updates φ(h, m) and the server's aggregation over holders (SAPGNN 4.2).

**Why the result is the combined graph's.** A holder's aggregate with ``max`` is m_v^p = max({0} ∪ {m_vu : u ∈ N^p(v)}):
zero is what a node says that is not there, so a holder that knows v and has no edge of it gives φ(h_v, 0). For φ that
rises with m, max_p φ(h_v, m_v^p) = φ(h_v, max_p m_v^p) (eq. 13), and max_p m_v^p is the maximum over zero and the
messages of all holders' edges, however often they occur: what one party with the combined graph computes, for a node
without any edge too. Holders that do not know v take no part, as if they sent −∞ (eq. 6). ``min`` is ``max`` of the
negatives.

``mean`` and ``sum`` do not commute with φ. All updates here are φ(h, m) = join(own(h), scaled(h, m)) with ``scaled``
linear in m, so a holder sends the two parts with its sum over neighbours as m; the server adds up ``scaled``, divides
by the node's degree in all holders where the mean is wanted, and joins.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.nn.linear import linear


class Update(nn.Module, ABC):
    """A local update φ(h, m) = join(parts(h, m)) (eq. 6).

    Args:
        width: of h and m.
        hidden: width of hidden layers, where there are any.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()

    @abstractmethod
    def parts(self, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """The part that depends on h alone, [N, own_dim], and one that is linear in m, [N, width]."""

    @staticmethod
    @abstractmethod
    def join(own: Tensor, scaled: Tensor) -> Tensor:
        """Φ from its parts; has no weights."""

    @staticmethod
    def own_dim(width: int) -> int:
        """Columns of the own part."""
        return width

    @staticmethod
    def output_dim(width: int) -> int:
        """Columns of φ."""
        return width

    def forward(self, h: Tensor, m: Tensor) -> Tensor:
        """φ(h, m): twice [N, width] to [N, output_dim]."""
        return self.join(*self.parts(h, m))


class SumUpdate(Update):
    """H + m."""

    @override
    def parts(self, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return h, m

    @override
    @staticmethod
    def join(own: Tensor, scaled: Tensor) -> Tensor:
        return own + scaled


class DifferenceUpdate(SumUpdate):
    """H − m, which falls with m."""

    @override
    @staticmethod
    def join(own: Tensor, scaled: Tensor) -> Tensor:
        return own - scaled


class ConcatUpdate(SumUpdate):
    """H ∥ m."""

    @override
    @staticmethod
    def join(own: Tensor, scaled: Tensor) -> Tensor:
        return torch.cat([own, scaled], dim=1)

    @override
    @staticmethod
    def output_dim(width: int) -> int:
        return 2 * width


class GatedUpdate(Update):
    """ReLU(MLP(h)) · m, element-wise; the MLP has one hidden layer with ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.gate = nn.Sequential(
            linear(width, hidden, bias=True), nn.ReLU(), linear(hidden, width, bias=True), nn.ReLU()
        )

    @override
    def parts(self, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return h[:, :0], self.gate(h) * m

    @override
    @staticmethod
    def join(own: Tensor, scaled: Tensor) -> Tensor:
        return scaled

    @override
    @staticmethod
    def own_dim(width: int) -> int:
        return 0


UPDATES: dict[str, type[Update]] = {
    "sum": SumUpdate,
    "concat": ConcatUpdate,
    "gated": GatedUpdate,
    "difference": DifferenceUpdate,
}
"""Local updates by the name the settings use."""


class _Maximum(torch.autograd.Function):
    """Scatters pieces into −∞ and keeps the largest, and the first of the largest for the way back."""

    @staticmethod
    def forward(ctx: Any, rows: Sequence[Tensor], num_nodes: int, *pieces: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        shape = num_nodes, pieces[0].shape[1]
        largest = pieces[0].new_full(shape, -float("inf"))
        winner = torch.full(shape, -1, dtype=torch.int8)
        for index, (piece, at) in enumerate(zip(pieces, rows, strict=True)):
            before = largest[at]
            winner[at] = torch.where(piece > before, index, winner[at]).to(torch.int8)
            largest[at] = torch.maximum(before, piece)  # unlike where(), it lets a NaN through
        ctx.winner, ctx.rows = winner, rows
        return largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401 - torch's
        (gradient,) = gradients
        pieces = [gradient[at] * (ctx.winner[at] == index) for index, at in enumerate(ctx.rows)]
        return None, None, *pieces


def maximum(pieces: Sequence[Tensor], rows: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Element-wise maximum over the holders that know a node (eq. 7).

    The gradient goes to the holder that attained the maximum, of several to the first.

    Args:
        pieces: of each holder, Tensor[N_p, w].
        rows: of each holder, Tensor[N_p] int64, where its nodes stand among all; distinct.
        num_nodes: N.

    Returns:
        Tensor[N, w], −∞ for a node that nobody knows.
    """
    return cast(Tensor, _Maximum.apply(rows, num_nodes, *pieces))  # type: ignore[no-untyped-call]


def total(pieces: Sequence[Tensor], rows: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Sum over the holders that know a node: Tensor[N_p, w] of each to Tensor[N, w]. Arguments as of ``maximum``."""
    added = pieces[0].new_zeros(num_nodes, pieces[0].shape[1])
    for piece, at in zip(pieces, rows, strict=True):
        added = added.index_add(0, at, piece)
    return added
