"""The network of the horizontal paradigm: local weights, the same at all holders, and the server's (SAPGNN 4.2).

The roles run the parts apart, the plaintext twin together. Layers count from 0 in lists.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.layers import ACTIVATIONS, FactNetwork, dropout, linear
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.paradigms.horizontal.settings import HorizontalSettings


@dataclass(frozen=True)
class _UpdateKind:
    """A local update φ(h, m) = join(own, scaled), without weights."""

    join: Callable[[Tensor, Tensor], Tensor]  # of the part that depends on h alone, and the one that is linear in m
    own: int = 1  # columns of the first part, in widths of h
    output: int = 1  # columns of φ, in widths of h


UPDATES: Final[Mapping[str, _UpdateKind]] = {
    "sum": _UpdateKind(torch.add),
    "concat": _UpdateKind(lambda own, scaled: torch.cat([own, scaled], dim=1), output=2),
    "gated": _UpdateKind(lambda _, scaled: scaled, own=0),
    "difference": _UpdateKind(torch.sub),
}
"""Local updates by the name the settings use: h + m; h ∥ m; ReLU(MLP(h))·m; h − m, which falls with m."""


class Update(nn.Module):
    """φ(h, m) (eq. 6), with the weights of its gate where it has one."""

    def __init__(self, name: str, width: int, hidden: int) -> None:
        super().__init__()
        self.kind = UPDATES[name]
        self.gate: nn.Module | None = None
        if not self.kind.own:
            layers = linear(width, hidden, bias=True), nn.ReLU(), linear(hidden, width, bias=True), nn.ReLU()
            self.gate = nn.Sequential(*layers)

    def parts(self, h: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """Split φ(h, m) into the part that depends on h alone, [N, own·width], and one linear in m, [N, width]."""
        return (h, m) if self.gate is None else (h[:, :0], self.gate(h) * m)

    def forward(self, h: Tensor, m: Tensor) -> Tensor:
        """Compute φ of h and m, each [N, width]: [N, output·width]."""
        return self.kind.join(*self.parts(h, m))


class _Maximum(torch.autograd.Function):
    """Element-wise maximum of scattered pieces as in ``maximum``; gradients go to the first piece that attains it."""

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
    """Element-wise maximum over the holders that know a node (eq. 7): Tensor[N, w], −∞ for one that nobody knows.

    ``pieces`` are Tensor[N_p, w] of each holder; ``rows`` Tensor[N_p] int64, where its nodes stand. The gradient goes
    to the first holder that attained the maximum.
    """
    return cast(Tensor, _Maximum.apply(rows, num_nodes, *pieces))  # type: ignore[no-untyped-call]


def total(pieces: Sequence[Tensor], rows: Sequence[Tensor], num_nodes: int) -> Tensor:
    """Sum over the holders that know a node: Tensor[N, w], 0 where nobody does. Arguments as for ``maximum``."""
    added = pieces[0].new_zeros(num_nodes, pieces[0].shape[1])
    for piece, at in zip(pieces, rows, strict=True):
        added = added.index_add(0, at, piece)
    return added


@dataclass(frozen=True)
class LayerWidths:
    """Columns of a layer's tensors."""

    input: int  # h^(l) at the holders
    message: int  # m_vu, and h after the message's W
    sent: int  # t, what a holder sends: φ, or with mean and sum its two parts
    combined: int  # the server's aggregate of φ
    output: int  # h^(l+1)


def layer_widths(settings: HorizontalSettings, features: int) -> list[LayerWidths]:
    """Widths of every layer's tensors, for ``features`` input columns."""
    update, widths, input_ = UPDATES[settings.update], list[LayerWidths](), features
    for layer in range(1, settings.layers + 1):
        message = input_ if settings.message == "none" else settings.dim
        combined = update.output * message
        sent = combined if settings.pools else update.own * message + message
        output = settings.dim if settings.server.linear and layer < settings.layers else combined
        widths.append(LayerWidths(input_, message, sent, combined, output))
        input_ = output
    return widths


def first_is_fixed(settings: HorizontalSettings) -> bool:
    """Whether the first layer's embedding t at holders has no weights, and so is the same in every pass."""
    return settings.message == "none" and settings.update != "gated"


def published_layers(settings: HorizontalSettings, step: int) -> range:
    """Layers, from 0, whose embeddings t holders send in pass ``step``: a fixed first layer's only in pass 0."""
    return range(int(step > 0 and first_is_fixed(settings)), settings.layers)


def learning_layers(settings: HorizontalSettings) -> range:
    """Layers, from 0, for whose embeddings t the server returns gradients: all but a fixed first."""
    return range(int(first_is_fixed(settings)), settings.layers)


def _apply_linear(layer: nn.Linear | None, h: Tensor | FixedInput) -> Tensor:
    if layer is None:
        return h.dense() if isinstance(h, FixedInput) else h
    if isinstance(h, FixedInput):
        product = h.times(layer.weight.t())
        return product if layer.bias is None else product + layer.bias
    output: Tensor = layer(h)
    return output


class HolderLayer(nn.Module):
    """A holder's part of a layer: message, aggregation over its own neighbours, update (eqs. 4-6)."""

    def __init__(self, settings: HorizontalSettings, widths: LayerWidths, edge_columns: int = 0) -> None:
        super().__init__()
        self._aggregate = settings.aggregate
        self._pools = settings.pools
        is_full = settings.message == "full"

        def message_part(columns: int) -> nn.Linear:
            return linear(columns, widths.message, bias=False)

        self.message = None if settings.message == "none" else message_part(widths.input)
        self.target = message_part(widths.input) if is_full else None
        self.edge = message_part(edge_columns) if is_full and edge_columns else None
        self.update = Update(settings.update, widths.message, settings.dim)

    def forward(self, h: Tensor | FixedInput, adjacency: Adjacency) -> Tensor:
        """Compute the local embedding t of the holder's nodes, Tensor[N_p, sent], from h [N_p, input] or features."""
        own = messages = _apply_linear(self.message, h)
        over = adjacency
        if self.target is not None:
            messages, over = self._edge_messages(own, _apply_linear(self.target, h), adjacency), adjacency.by_edge
        if not self._pools:
            return torch.cat(self.update.parts(own, over.sum(messages)), dim=1)
        # The maximum of no messages is zero there; relu makes it the least that a node can get.
        sign = 1 if self._aggregate == "max" else -1
        embedding: Tensor = self.update(own, sign * torch.relu(over.maximum(sign * messages)))
        return embedding

    def _edge_messages(self, source: Tensor, target: Tensor, adjacency: Adjacency) -> Tensor:
        """Messages ρ(h_v, h_u, h_e) of edges (eq. 4), from mapped sources and targets [N_p, d]: [E_p, d]."""
        at, to = adjacency.edge_index
        messages = source.index_select(0, at) + target.index_select(0, to)
        if self.edge is None:
            return messages
        of_edges: Tensor = self.edge(adjacency.edge_features)
        return messages + of_edges


class _ServerLayer(nn.Module):
    """The server's part of a layer: aggregation over holders (eq. 7) and the global update (eq. 8)."""

    def __init__(self, settings: HorizontalSettings, widths: LayerWidths, *, is_last: bool) -> None:
        super().__init__()
        self._settings, self._is_last = settings, is_last
        kind = UPDATES[settings.update]
        self._join, self._own = kind.join, kind.own * widths.message
        has_linear = settings.server.linear and not is_last
        has_norm = settings.server.batch_norm and not is_last
        # Batch norm subtracts any bias, whose gradient would be rounding noise, which Adam blows up.
        self.linear = linear(widths.combined, widths.output, bias=not has_norm) if has_linear else None
        self.norm = nn.BatchNorm1d(widths.output) if has_norm else None

    def combine(
        self, pieces: Sequence[Tensor], rows: Sequence[Tensor], num_nodes: int, degrees: Tensor | None = None
    ) -> Tensor:
        """Aggregate all holders' local embeddings: Tensor[N, combined]; −∞ (max), ∞ (min) where nobody knows a node.

        Arguments as for ``maximum``. The mean needs ``degrees``, Tensor[N, 1] summed over the holders, or raises
        ``DataError``. The gradient of a maximum, and of the part of a mean or sum from h alone, goes to the first
        holder that attains it.
        """
        aggregate = self._settings.aggregate
        if aggregate == "max":
            return maximum(pieces, rows, num_nodes)
        if aggregate == "min":
            return -maximum([-piece for piece in pieces], rows, num_nodes)
        own = maximum([piece[:, : self._own] for piece in pieces], rows, num_nodes)  # alike at all that know the node
        scaled = total([piece[:, self._own :] for piece in pieces], rows, num_nodes)
        if aggregate == "mean":
            if degrees is None:
                raise DataError("aggregate='mean' divides by degrees, and they are missing; pass the holders' sum")
            scaled = scaled * torch.where(degrees > 0, 1 / degrees, 0.0)
        return self._join(own, scaled)

    def update(self, m: Tensor | FixedInput, generator: torch.Generator | None) -> Tensor:
        """Apply the global update to m, Tensor[N, combined]: linear, batch norm, activation, dropout; none if last.

        Returns h^(l+1), Tensor[N, output]. Without ``generator`` it is evaluation, by running statistics. Raises
        ``DataError``: batch norm of a single node.
        """
        h = _apply_linear(self.linear, m)
        if self._is_last:
            return h
        if self.norm is not None:
            if len(h) < 2:
                raise DataError("server.batch_norm=true needs at least 2 nodes, and all holders together know 1")
            self.norm.train(generator is not None)
            h = self.norm(h)
        server = self._settings.server
        return dropout(ACTIVATIONS[server.activation](h), server.dropout, generator)


class LayeredHolder(FactNetwork):
    """A holder's network, with weights that all holders share: every layer's Θ_ρ and Θ_φ, and the output layer ψ."""

    def __init__(
        self,
        settings: HorizontalSettings,
        features: int,
        outputs: int,
        streams: LearningStreams,
        dtype: torch.dtype,
        edge_columns: int = 0,
    ) -> None:
        super().__init__()
        widths = layer_widths(settings, features)
        with streams.global_generator("local"):
            self.layers = nn.ModuleList(HolderLayer(settings, layer, edge_columns) for layer in widths)
            self.predict = linear(widths[-1].output, outputs, bias=True)
        self.to(dtype)

    def layer(self, index: int) -> HolderLayer:
        """The part of layer ``index``, from 0."""
        return cast(HolderLayer, self.layers[index])


class LayeredServer(nn.Module):
    """The server's network: aggregation over holders and global update of every layer, with weights Θ_φ."""

    _first: FixedInput | None

    def __init__(
        self, settings: HorizontalSettings, features: int, streams: LearningStreams, dtype: torch.dtype
    ) -> None:
        super().__init__()
        widths = layer_widths(settings, features)
        self._dtype, self._is_fixed, self._first = dtype, first_is_fixed(settings), None
        with streams.global_generator("global"):
            self.layers = nn.ModuleList(
                _ServerLayer(settings, layer, is_last=index == len(widths) - 1) for index, layer in enumerate(widths)
            )
        self.to(dtype)

    def layer(self, index: int) -> _ServerLayer:
        """The part of layer ``index``, from 0."""
        return cast(_ServerLayer, self.layers[index])

    def aggregated(self, index: int, combine: Callable[[], Tensor]) -> Tensor | FixedInput:
        """The aggregate of layer ``index``, from 0: ``combine()``, cached for a first layer that is fixed."""
        if index or not self._is_fixed:
            return combine()
        if self._first is None:
            self._first = FixedInput.compacted(combine(), self._dtype)
        return self._first
