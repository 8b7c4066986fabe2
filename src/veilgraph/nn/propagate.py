"""One party's adjacency matrix and the linear propagations over it.

A product with the adjacency costs O(E·d) time and O(E + N·d) memory: no [E, d] tensor of messages is made. The
backward pass multiplies by the transposed matrix, which is made when first needed. A row is summed by one thread in a
fixed order, so results are bit-identical whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self, cast

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.graph.features import compact, is_sparse, to_scipy
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation


@dataclass(frozen=True, eq=False)
class Kinds:
    """The relation of each edge: ``places``, whole numbers [E] of edges sorted by target, are indices in ``relations``.

    ``degrees``: in a neighbourhood, for each relation the degrees in the whole graph, Tensor[N] float64.
    """

    relations: tuple[Relation, ...]
    places: np.ndarray
    degrees: tuple[Tensor, ...] | None = None


CPU: Final = torch.device("cpu")


def first_rows(x: Tensor, count: int) -> Tensor:
    """Return ``x[:count]``; x itself where that is all of it, so that its gradient is not copied."""
    return x if count == x.shape[0] else x[:count]


class SparseMatrix:
    """A constant sparse matrix [M, N] for products with a gradient; CSR, whose entries at one place add up."""

    def __init__(self, matrix: sp.csr_array, device: torch.device = CPU) -> None:
        self._matrix, self._device = matrix, device
        self.forward = _csr_tensor(matrix).to(device)
        self._transposed: SparseMatrix | None = None

    @property
    def transposed(self) -> SparseMatrix:
        """The transposed matrix [N, M]; made at first use."""
        if self._transposed is None:
            self._transposed = SparseMatrix(self._matrix.tocsc().T, self._device)
            self._transposed._transposed = self
        return self._transposed

    def times(self, x: Tensor) -> Tensor:
        """``matrix @ x``: Tensor[N, d] to Tensor[M, d], differentiable in x any number of times."""
        return cast(Tensor, _Product.apply(x.contiguous(), self))  # type: ignore[no-untyped-call]


class _Product(torch.autograd.Function):
    """``matrix @ x``, whose gradient is ``transposed @ gradient``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix) -> Tensor:  # noqa: ANN401 - torch's context
        ctx.matrix = matrix
        if x.device.type != "cpu":
            return matrix.forward @ x
        # Faster here than `matrix @ x` by up to five times, and as fast as scipy's product on one thread.
        return cast(Tensor, torch.sparse.mm(matrix.forward, x, "sum"))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's context
        return ctx.matrix.transposed.times(gradients[0]), None


def _csr_tensor(matrix: sp.csr_array) -> Tensor:
    pointers, columns, values = map(torch.from_numpy, (matrix.indptr, matrix.indices, matrix.data))
    return torch.sparse_csr_tensor(pointers, columns, values, matrix.shape, check_invariants=False)


class Adjacency:
    """A party's edges as a matrix A with A[v, u] = Σ weights of the edges u → v, ready for propagation.

    Rows v are the first T of the N nodes: all of them in a whole graph, fewer in a step over a neighbourhood.
    ``incoming`` is [T, N] CSR, the edges by their target, with their weights; every product and ``x`` are of ``dtype``.
    In a neighbourhood ``degrees`` [N] and ``lengths`` [T] of rows, float64, are those of the whole graph; ``boost`` [T]
    is, where edges are drawn, a node's degree over how many were: products that add up multiply by it; a maximum,
    attention or a sequence does not. ``edge_features`` are [E, F_e].
    """

    def __init__(
        self,
        incoming: sp.csr_array,
        dtype: torch.dtype,
        degrees: Tensor | None = None,
        kinds: Kinds | None = None,
        lengths: Tensor | None = None,
        boost: np.ndarray | None = None,
        edge_features: Tensor | None = None,
    ) -> None:
        self.incoming, self.kinds, self._lengths = incoming, kinds, lengths
        self.boost, self.edge_features = boost, edge_features
        self.dtype = dtype
        self.num_targets, self.num_nodes = map(int, incoming.shape)
        self.exact_degrees = torch.from_numpy(_row_sums(incoming)) if degrees is None else degrees
        self.degrees = self.exact_degrees.to(dtype)
        self._matrices: dict[tuple[str, torch.device], SparseMatrix] = {}
        self._related: dict[str, Adjacency] = {}

    @classmethod
    def of_edges(
        cls,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        dtype: torch.dtype,
        *,
        relations: tuple[Relation, ...] = (),
        edge_relation: Tensor | None = None,
        edge_features: Tensor | None = None,
    ) -> Self:
        """Build the adjacency of a whole graph from edges u → v, int64 [2, E]; one given twice counts twice.

        Without ``edge_weight`` [E] each weighs 1; ``edge_relation`` [E] are places in ``relations``, if any.
        """
        weights = None if edge_weight is None else edge_weight.double()
        degrees = torch.bincount(edge_index[1], weights=weights, minlength=num_nodes).double()
        kinds = None
        if edge_relation is not None:
            kinds = Kinds(relations, by_target(edge_index, edge_relation, num_nodes).data)
        features = None if edge_features is None else edge_features.to(dtype)
        incoming = by_target(edge_index, edge_weight, num_nodes)
        adjacency = cls(incoming, dtype, degrees, kinds, edge_features=features)
        adjacency.edge_index = edge_index
        adjacency.edge_weight = None if edge_weight is None or bool((edge_weight == 1).all()) else edge_weight.to(dtype)
        return adjacency

    @classmethod
    def from_graph(cls, graph: PartyGraph, dtype: torch.dtype, *, relational: bool = False) -> Self:
        """The adjacency of a party's graph; ``relational`` where a model tells its relations apart."""
        return cls.of_edges(
            graph.edge_index,
            graph.edge_weight,
            graph.num_nodes,
            dtype,
            relations=graph.relations if relational else (),
            edge_relation=graph.edge_relation if relational else None,
            edge_features=graph.edge_features,
        )

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations by which edges are told apart; empty where all edges are alike."""
        return () if self.kinds is None else self.kinds.relations

    def of_relation(self, name: str) -> Adjacency:
        """Return the adjacency of one relation's edges, with its own degrees; this one where all edges are alike."""
        if self.kinds is None:
            return self
        if name not in self._related:
            edges, place = self.incoming, [relation.name for relation in self.relations].index(name)
            mine = self.kinds.places == place
            before = np.concatenate([[0], mine.cumsum()])
            matrix = sp.csr_array((edges.data[mine], edges.indices[mine], before[edges.indptr]), shape=edges.shape)
            degrees = None if self.kinds.degrees is None else self.kinds.degrees[place]
            self._related[name] = Adjacency(matrix, self.dtype, degrees, boost=self.boost)
        return self._related[name]

    def corner(self, targets: int, nodes: int) -> Adjacency:
        """Return, of a neighbourhood, the edges into its first ``targets`` nodes, all from its first ``nodes``."""
        edges, kinds = self.incoming, self.kinds
        count = edges.indptr[targets]
        if kinds is not None:
            degrees = None if kinds.degrees is None else tuple(each[:nodes] for each in kinds.degrees)
            kinds = Kinds(kinds.relations, kinds.places[:count], degrees)
        parts = edges.data[:count], edges.indices[:count], edges.indptr[: targets + 1]
        lengths, boost = self.lengths[:targets], None if self.boost is None else self.boost[:targets]
        matrix = sp.csr_array(parts, shape=(targets, nodes))
        return Adjacency(matrix, self.dtype, self.exact_degrees[:nodes], kinds, lengths, boost)

    @cached_property
    def edge_index(self) -> Tensor:
        """Tensor[2, E] int64, source and target of every edge, in the order given."""
        target = np.repeat(np.arange(self.num_targets), np.diff(self.incoming.indptr))
        return torch.from_numpy(np.stack([self.incoming.indices.astype(np.int64), target]))

    @cached_property
    def edge_weight(self) -> Tensor | None:
        """Tensor[E] ``dtype``, the weights in the order of ``edge_index``; None where all are 1."""
        weights = self.incoming.data
        return None if bool((weights == 1).all()) else torch.from_numpy(weights).to(self.dtype)

    @cached_property
    def by_edge(self) -> Adjacency:
        """An adjacency [T, E] from edges to their targets, for sums over messages [E, d] in ``edge_index``'s order."""
        edges = self.edge_index.shape[1]
        order = by_target(self.edge_index, torch.arange(edges), self.num_nodes)
        matrix = sp.csr_array(
            (self.incoming.data, order.data, order.indptr[: self.num_targets + 1]), (self.num_targets, edges)
        )
        return Adjacency(matrix, self.dtype, self.exact_degrees)

    @property
    def lengths(self) -> Tensor:
        """√Σ w² over a target's edges, an edge given twice being two; without weights √degree: Tensor[T] float64."""
        if self._lengths is None:
            edges = self.incoming
            squared = sp.csr_array((np.square(edges.data, dtype=float), edges.indices, edges.indptr), edges.shape)
            self._lengths = torch.from_numpy(np.sqrt(_row_sums(squared)))
        return self._lengths

    def layers(self, hops: int) -> Sequence[Adjacency]:
        """Return the adjacency of each of ``hops`` hops, the first first: in a whole graph this one for all."""
        return [self] * hops

    def sum(self, x: Tensor) -> Tensor:
        """Weighted sum over neighbours, A·x: Tensor[N, d] to Tensor[T, d]."""
        return self._product("sum", x)

    def mean(self, x: Tensor) -> Tensor:
        """Weighted mean over neighbours, (A·x)/degree; zero where a node has none. Tensor[N, d] to Tensor[T, d]."""
        inverse = torch.where(self.exact_degrees > 0, 1 / self.exact_degrees, 0.0).numpy()
        return self._product("mean", x, inverse)

    def unit_variance_sum(self, x: Tensor, correlation: float = 0.0) -> Tensor:
        """Weighted sum over neighbours, divided by its standard deviation: Tensor[N, d] to Tensor[T, d].

        (A·x)/√((1 − ρ)·Σ w² + ρ·(Σ w)²), which has variance 1 where neighbours have variance 1 and correlate by ρ,
        however many there are; zero where a node has none. With ρ = 0 and without weights it is the sum by √degree
        (Schneckenreiter, Freinschlag, Sestak, Brandstetter, Klambauer & Mayr 2024, GNN-VPA), with ρ = 1 the mean.
        """
        sums = self.exact_degrees[: self.num_targets]
        deviation = ((1 - correlation) * self.lengths.square() + correlation * sums.square()).sqrt()
        inverse = torch.where(deviation > 0, 1 / deviation, 0.0).numpy()
        return self._product(f"unit variance {correlation}", x, inverse)

    def self_loop_mean(self, x: Tensor, self_weight: float) -> Tensor:
        """(A·x + s·x)/(degree + s) with s = ``self_weight`` > 0: Tensor[N, d] to Tensor[T, d].

        With s = 1/P at each of P holders, the mean weighted by degree + 1/P of the holders' results is the pooled
        graph's result with s = 1.
        """
        inverse = 1 / (self.exact_degrees + self_weight)
        neighbours = self._product(f"self-loop {self_weight}", x, inverse.numpy())
        own = (self_weight * inverse[: self.num_targets]).to(x).unsqueeze(1)
        return neighbours + own * first_rows(x, self.num_targets)

    def gcn(self, x: Tensor) -> Tensor:
        """D^-1/2·(A + I)·D^-1/2·x with D the degrees of A + I (Kipf & Welling 2017): Tensor[N, d] to Tensor[T, d]."""
        inverse = 1 / (self.exact_degrees + 1)
        root = inverse.sqrt().numpy()
        neighbours = self._product("gcn", x, root, root)
        return neighbours + inverse[: self.num_targets].to(x).unsqueeze(1) * first_rows(x, self.num_targets)

    def maximum(self, x: Tensor) -> Tensor:
        """Element-wise maximum over neighbours of weight·x, Tensor[T, d]; zero where a node has none."""
        weights = self._matrix("maximum", CPU)
        # PyTorch has this product for the CPU alone.
        return cast(Tensor, torch.sparse.mm(weights.forward, x.cpu().contiguous(), "amax")).to(x.device)

    def _product(
        self, key: str, x: Tensor, of_target: np.ndarray | None = None, of_source: np.ndarray | None = None
    ) -> Tensor:
        """Sum over neighbours, weights times ``boost``, ``of_target`` and ``of_source``; ``key`` names the matrix."""
        return self._matrix(key, x.device, self.boost, of_source, of_target).times(x)

    def _matrix(
        self,
        key: str,
        device: torch.device,
        boost: np.ndarray | None = None,
        of_source: np.ndarray | None = None,
        of_target: np.ndarray | None = None,
    ) -> SparseMatrix:
        """The matrix of ``key``, made at first use from float64 entries rounded once to ``dtype``."""
        if (key, device) not in self._matrices:
            edges = self.incoming
            target = np.repeat(np.arange(self.num_targets, dtype=edges.indices.dtype), np.diff(edges.indptr))
            entries = edges.data
            for factor, ends in ((boost, target), (of_source, edges.indices), (of_target, target)):
                entries = entries if factor is None else entries * factor[ends]
            values = torch.from_numpy(entries).to(self.dtype).numpy()
            self._matrices[key, device] = SparseMatrix(
                sp.csr_array((values, edges.indices, edges.indptr), edges.shape), device
            )
        return self._matrices[key, device]


def by_target(edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> sp.csr_array:
    """Return the edges' weights (without: 1) as [N, N] CSR, rows by target, each in the order given, copies kept."""
    weight = np.ones(edge_index.shape[1], dtype=np.int8) if edge_weight is None else edge_weight.numpy()
    source, target = edge_index
    if bool((target[1:] >= target[:-1]).all()):  # as in a saved graph, whose edges are then used where they lie
        edges = sp.csr_array((num_nodes, num_nodes), dtype=weight.dtype)
        edges.indptr = np.concatenate([[0], torch.bincount(target, minlength=num_nodes).numpy()]).cumsum()
        edges.indices, edges.data = source.numpy(), weight
        return edges
    short = torch.int32 if num_nodes < 2**31 else torch.int64
    places = target.to(short).numpy(), source.to(short).numpy()
    unsorted = sp.coo_array((weight, places), shape=(num_nodes, num_nodes))
    unsorted.has_canonical_format = True  # so that copies of an edge are not added up
    return unsorted.tocsr()


def _row_sums(matrix: sp.csr_array) -> np.ndarray:
    sums: np.ndarray = np.asarray(matrix @ np.ones(matrix.shape[1]))
    return sums


class FixedInput:
    """A network's input [N, F] that stays the same in every pass: if sparse, it is transposed once for the way back."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self._matrix = matrix.to(dtype)
        self._sparse = SparseMatrix(to_scipy(self._matrix)) if is_sparse(matrix) else None

    @classmethod
    def compacted(cls, matrix: Tensor, dtype: torch.dtype) -> FixedInput:
        """Make one of a dense matrix, stored sparse where few entries are non-zero; no gradient flows into it."""
        return cls(compact(matrix.detach()), dtype)

    def times(self, weight: Tensor) -> Tensor:
        """x·weight: Tensor[F, d] to Tensor[N, d]."""
        return self._matrix @ weight if self._sparse is None else self._sparse.times(weight)

    def dense(self) -> Tensor:
        """X itself, Tensor[N, F] strided."""
        return self._matrix.to_dense() if self._sparse is not None else self._matrix
