"""A graph divided into blocks of nodes, one for each machine of a party."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pymetis
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.nn.propagate import Adjacency

Partition = Callable[[sp.csr_array, int], np.ndarray]
"""(edges into each node [N, N], M) to int64 [N], the machine of each node, from 0 to M - 1."""

_EDGES_SEEN: Final = 4
"""Into each node, by METIS: its memory then grows with nodes alone. Halos of a block model grow by a fiftieth."""


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


def metis(incoming: sp.csr_array, machines: int) -> np.ndarray:
    """Divide the nodes so that few edges join two machines, each with about as many nodes and edges. A ``Partition``.

    Karypis & Kumar 1998, of the graph without directions, weights and self-loops. The same graph is divided alike.
    """
    degrees = np.diff(incoming.indptr)
    seen = np.minimum(degrees, _EDGES_SEEN)
    number = np.arange(seen.sum()) - np.repeat(seen.cumsum() - seen, seen)  # of each edge, among those of its node
    places = np.repeat(incoming.indptr[:-1], seen) + number * np.repeat(degrees, seen) // np.repeat(seen, seen)
    pointers = np.concatenate([[0], seen.cumsum()])
    edges = sp.csr_array((np.ones(len(places), dtype=np.int8), incoming.indices[places], pointers), incoming.shape)
    both = sp.csr_array(edges + edges.T)
    both.setdiag(0)
    both.eliminate_zeros()
    neighbours = pymetis.CSRAdjacency(both.indptr.astype(np.int64), both.indices.astype(np.int64))
    found = pymetis.part_graph(machines, neighbours, vweights=degrees.astype(np.int64) + 1)
    return np.array(found.vertex_part, dtype=np.int64)


def own_nodes(owner: np.ndarray, machines: int) -> list[np.ndarray]:
    """Each machine's nodes, rising, from the machine of each node."""
    return [np.flatnonzero(owner == machine) for machine in range(machines)]


def cut(adjacency: Adjacency, owner: np.ndarray, machines: int) -> Iterator[Block]:
    """Divide a graph into blocks, made one after another; ``owner`` is as a ``Partition`` gives it."""
    incoming, nodes = adjacency.incoming, own_nodes(owner, machines)
    degrees = np.asarray(incoming @ np.ones(adjacency.num_nodes))
    halos = [_halo(incoming, owner, machine) for machine in range(machines)]
    place = np.empty(adjacency.num_nodes, dtype=np.int64)
    for rows in nodes:
        place[rows] = np.arange(len(rows))
    for machine, own in enumerate(nodes):
        sent = [place[halo[owner[halo] == machine]] for halo in halos]
        yield Block(
            _local(incoming, own, halos[machine]),
            torch.from_numpy(degrees[np.concatenate([own, halos[machine]])]),
            torch.from_numpy(np.concatenate(sent)),
            tuple(map(len, sent)),
            tuple(np.bincount(owner[halos[machine]], minlength=machines).tolist()),
        )


def _halo(incoming: sp.csr_array, owner: np.ndarray, machine: int) -> np.ndarray:
    """Others' nodes with an edge into the machine's, machine after machine: int64."""
    is_own = owner == machine
    is_source = np.zeros(len(owner), dtype=bool)
    is_source[incoming.indices[np.repeat(is_own, np.diff(incoming.indptr))]] = True
    halo = np.flatnonzero(is_source & ~is_own)
    return halo[np.argsort(owner[halo], kind="stable")]


def _local(incoming: sp.csr_array, own: np.ndarray, halo: np.ndarray) -> sp.csr_array:
    """The rows of the own nodes with columns renamed, each row's edges in the order they have: sums stay the same."""
    rows = incoming[own]
    place = np.empty(incoming.shape[1], dtype=rows.indices.dtype)
    place[own] = np.arange(len(own))
    place[halo] = np.arange(len(own), len(own) + len(halo))
    return sp.csr_array((rows.data, place[rows.indices], rows.indptr), shape=(len(own), len(own) + len(halo)))
