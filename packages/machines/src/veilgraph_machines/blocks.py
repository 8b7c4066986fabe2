"""A graph cut into blocks of nodes, one for each machine of a party."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.nn.propagate import Adjacency

Partition = Callable[[np.ndarray, int], np.ndarray]
"""(int64 [N] edges into each node, M) to int64 [M + 1], rising from 0 to N: machine m has the rows from the m-th number
to the next."""


@dataclass(frozen=True, eq=False)
class Block:
    """One machine's part of the graph: its own nodes, and as its *halo* the others that have edges into them.

    Attributes:
        incoming: [n, n + halo] CSR, the edges into its own nodes by their target; columns are its own nodes, then its
            halo, machine after machine. Values are the weights, of any dtype.
        degrees: Tensor[n + halo] float64, in the whole graph.
        sends: Tensor[s] int64, those of its own nodes that lie in others' halos, machine after machine.
        send_counts: how many of them each machine gets.
        receive_counts: how many nodes of its halo each machine has.
    """

    incoming: sp.csr_array
    degrees: Tensor
    sends: Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]

    def tensors(self) -> dict[str, Tensor]:
        """All of it as tensors."""
        return {
            "pointers": torch.from_numpy(self.incoming.indptr),
            "columns": torch.from_numpy(self.incoming.indices),
            "weights": torch.from_numpy(self.incoming.data),
            "degrees": self.degrees,
            "sends": self.sends,
            "send_counts": torch.tensor(self.send_counts),
            "receive_counts": torch.tensor(self.receive_counts),
        }

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor]) -> Block:
        """The inverse of ``tensors``."""
        parts = tuple(tensors[name].numpy() for name in ("weights", "columns", "pointers"))
        degrees = tensors["degrees"]
        shape = (len(tensors["pointers"]) - 1, len(degrees))
        counts = (tuple(tensors[name].tolist()) for name in ("send_counts", "receive_counts"))
        return cls(sp.csr_array(parts, shape=shape), degrees, tensors["sends"], *counts)


def balanced(edges: np.ndarray, machines: int) -> np.ndarray:
    """Contiguous blocks of about the same number of nodes and edges together. A ``Partition``.

    It takes the rows in the order they have. What is exchanged before a hop is every block's halo, and that is the
    smaller the nearer neighbours stand to each other: an order with locality (METIS, or of reverse Cuthill and McKee)
    makes it a fraction of what a random order gives.
    """
    cost = np.concatenate([[0], (edges + 1).cumsum()])
    bounds: np.ndarray = np.searchsorted(cost, cost[-1] * np.arange(machines + 1) / machines)
    return bounds.astype(np.int64)


def cut(adjacency: Adjacency, bounds: np.ndarray) -> Iterator[Block]:
    """Cuts a graph into blocks, made one after another.

    Args:
        adjacency: of the whole graph.
        bounds: int64 [M + 1], as a ``Partition`` gives them.
    """
    incoming = adjacency.incoming
    degrees = np.asarray(incoming @ np.ones(adjacency.num_nodes))
    ranges = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True))
    halos = [_halo(incoming, low, high) for low, high in ranges]
    owners = [np.searchsorted(halo, bounds) for halo in halos]
    for machine, (low, high) in enumerate(ranges):
        halo = halos[machine]
        sent = [other[at[machine] : at[machine + 1]] - low for other, at in zip(halos, owners, strict=True)]
        yield Block(
            _local(incoming, low, high, halo),
            torch.from_numpy(degrees[np.concatenate([np.arange(low, high), halo])]),
            torch.from_numpy(np.concatenate(sent)),
            tuple(map(len, sent)),
            tuple(np.diff(owners[machine]).tolist()),
        )


def _halo(incoming: sp.csr_array, low: int, high: int) -> np.ndarray:
    """Nodes outside of [low, high) with an edge into it, rising: int64."""
    sources = incoming.indices[incoming.indptr[low] : incoming.indptr[high]]
    is_source = np.zeros(incoming.shape[1], dtype=bool)
    is_source[sources] = True
    is_source[low:high] = False
    return np.flatnonzero(is_source)


def _local(incoming: sp.csr_array, low: int, high: int, halo: np.ndarray) -> sp.csr_array:
    """Rows [low, high) with columns renamed, each row's edges in the order they have."""
    first, last = incoming.indptr[low], incoming.indptr[high]
    place = np.empty(incoming.shape[1], dtype=incoming.indices.dtype)
    place[low:high] = np.arange(high - low)
    place[halo] = np.arange(high - low, high - low + len(halo))
    pointers = incoming.indptr[low : high + 1] - first
    shape = (high - low, high - low + len(halo))
    return sp.csr_array((incoming.data[first:last], place[incoming.indices[first:last]], pointers), shape=shape)
