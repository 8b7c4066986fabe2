"""Gradients of single training nodes where no edge is used: of a node's own row alone, in closed form.

With z = U·x + b, h = f(z), logits V·h + c and p their softmax, e the label as a row of zeros and a one:

    ∂/∂c = p − e = d,    ∂/∂V = d·hᵀ,    ∂/∂b = (Vᵀd) ∘ f′(z) = g,    ∂/∂U = g·xᵀ

Where x is zero, so is a column of the last. Each is computed from one row, of the same shape every time, so a node that
is not this one changes no bit of it. ``terms`` computes the same by autograd; NumPy takes a tenth of the time of a
single row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit

from veilgraph.graph.features import is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.activation import Activation
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.privacy.sampled_sum import Places

_Row = NDArray[Any]

_ACTIVATIONS: Final[Mapping[Activation, Callable[[_Row], _Row]]] = {
    "none": lambda z: z,
    "tanh": np.tanh,
    "relu": lambda z: np.maximum(z, 0),
    "sigmoid": expit,
}
"""f."""
_SLOPES: Final[Mapping[Activation, Callable[[_Row], _Row]]] = {
    "none": np.ones_like,
    "tanh": lambda h: 1 - h * h,
    "relu": lambda h: (h > 0).astype(h.dtype),
    "sigmoid": lambda h: h * (1 - h),
}
"""f′(z), of f(z)."""


class RowTerms:
    """The training nodes of a holder, ready for their gradients by a network without hops.

    Args:
        graph: of the holder, with labels.
        activation: f.
        dtype: of the weights.
    """

    def __init__(self, graph: PartyGraph, activation: Activation, dtype: torch.dtype) -> None:
        assert graph.labels is not None
        assert graph.train_mask is not None
        self._activation, self._slope = _ACTIVATIONS[activation], _SLOPES[activation]
        nodes = torch.nonzero(graph.train_mask).flatten()
        self._labels: list[int] = graph.labels[nodes].tolist()
        self._rows, self._places = list[tuple[_Row, _Row]](), dict[int, torch.Tensor]()
        sparse = to_scipy(graph.features).copy() if is_sparse(graph.features) else None
        if sparse is not None:
            sparse.sum_duplicates()  # a place twice in a term would be clipped as two
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        for node in nodes.tolist():
            if sparse is None:
                row = graph.features[node].numpy()
                columns = np.flatnonzero(row)
                values = row[columns]
            else:
                start, end = sparse.indptr[node : node + 2]
                columns, values = sparse.indices[start:end].astype(np.int64), sparse.data[start:end]
            self._rows.append((columns, values.astype(kind)))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._rows)

    def at(self, network: Averaged) -> Callable[[int], Places]:
        """Number of a training node → the gradient of its loss in all weights.

        Args:
            network: with the weights of the round: a map of the features, f, a map to logits, each with a bias.
        """
        first, bias, last, lift = (weight.detach().numpy() for weight in network.shared())

        def gradient(number: int) -> Places:
            columns, values = self._rows[number]
            hidden = self._activation(first[:, columns] @ values + bias)
            logits = last @ hidden + lift
            off = np.exp(logits - logits.max())
            off /= off.sum()
            off[self._labels[number]] -= 1
            back = (off @ last) * self._slope(hidden)
            if number not in self._places:
                mine = np.arange(len(bias))[:, None] * first.shape[1] + columns
                rest = first.size + np.arange(len(bias) + last.size + len(lift))
                self._places[number] = torch.from_numpy(np.concatenate([mine.ravel(), rest]))
            parts = (np.outer(back, values).ravel(), back, np.outer(off, hidden).ravel(), off)
            return Places(self._places[number], torch.from_numpy(np.concatenate(parts)))

        return gradient
