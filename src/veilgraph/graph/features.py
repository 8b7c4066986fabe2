"""Feature matrices, dense or sparse: choosing rows and columns, joining, scaling.

Sparse matrices are ``torch.sparse_csr`` at the seams and scipy's CSR inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import check_features

with deferred():  # a twentieth of a second to import, and for sparse features alone
    from scipy.sparse.linalg import norm as sparse_norm

SPARSE_BELOW = 0.15
"""Share of non-zeros under which a feature matrix is kept sparse."""


def is_sparse(features: Tensor) -> bool:
    """Whether ``features`` is ``torch.sparse_csr``."""
    return features.layout == torch.sparse_csr


def to_scipy(features: Tensor) -> sp.csr_matrix:
    """The scipy matrix behind a ``torch.sparse_csr`` matrix."""
    parts = features.values().numpy(), features.col_indices().numpy(), features.crow_indices().numpy()
    return sp.csr_matrix(parts, shape=(features.shape[0], features.shape[1]))


def to_numbers(features: Tensor) -> Any:  # noqa: ANN401 - scipy has no types
    """The scipy matrix behind a sparse matrix, or the values of a dense one as float64, [N, F]."""
    return to_scipy(features) if is_sparse(features) else features.double().numpy()


def from_scipy(matrix: sp.csr_matrix) -> Tensor:
    """``torch.sparse_csr`` with int64 indices; duplicates summed, zeros dropped (in ``matrix`` too)."""
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(matrix.data)),
        matrix.shape,
        check_invariants=True,
    )


def compact(features: Tensor) -> Tensor:
    """Dense features as ``torch.sparse_csr`` when fewer than ``SPARSE_BELOW`` of them are non-zero."""
    if is_sparse(features) or features.numel() == 0:
        return features
    if int(torch.count_nonzero(features)) / features.numel() >= SPARSE_BELOW:
        return features
    return from_scipy(sp.csr_matrix(features.numpy()))


def choose_rows(features: Tensor, rows: Tensor) -> Tensor:
    """The rows with the given numbers, in their order and in the same layout."""
    return from_scipy(to_scipy(features)[rows.numpy()]) if is_sparse(features) else features[rows]


def choose_columns(features: Tensor, columns: Tensor) -> Tensor:
    """The given columns in the given order, in the same layout."""
    if is_sparse(features):
        return from_scipy(to_scipy(features)[:, columns.numpy()])
    return features[:, columns].contiguous()


def join_columns(parts: Sequence[Tensor]) -> Tensor:
    """Join matrices of the same rows, [N, F_i], side by side: [N, ΣF_i], sparse if all are."""
    if all(is_sparse(part) for part in parts):
        return from_scipy(sp.csr_matrix(sp.hstack([to_scipy(part) for part in parts])))
    return torch.cat([part.to_dense() for part in parts], dim=1)


Scaling = Literal["none", "row", "length", "standard"]


def scale_together(graphs: Sequence[PartyGraph], scaling: Scaling) -> list[PartyGraph]:
    """Scale graphs with the same columns: ``standard`` over all their rows, a shared node once per graph."""
    if scaling != "standard":
        return [scale_features(graph, scaling) for graph in graphs]
    counts = {graph.party: graph.num_features for graph in graphs}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{party} has {count}" for party, count in counts.items())
        raise DataError(f"holders: columns differ ({listed}), and they must be the same; mend one")
    together = _standardise(torch.cat([graph.features.to_dense() for graph in graphs]))
    parts = torch.split(together, [graph.num_nodes for graph in graphs])
    return [_with_features(graph, part.to(graph.features.dtype)) for graph, part in zip(graphs, parts, strict=True)]


def scale_features(graph: PartyGraph, scaling: Scaling) -> PartyGraph:
    """A party's graph with its own columns scaled; nothing of another holder's is needed.

    ``row`` divides a row by the sum of its absolute values, ``length`` by its length (ℓ2), and both keep sparsity;
    ``standard`` shifts and scales a column to mean 0 and variance 1 and is dense. A row of zeros, or a constant column,
    becomes zeros. Raises ``DataError``: numbers too large, or too small.
    """
    if scaling == "none":
        return graph
    features = graph.features
    if scaling == "standard":
        return _with_features(graph, _standardise(features.to_dense()).to(features.dtype))
    if is_sparse(features):
        matrix = to_scipy(features).astype(np.float64)
        sums = sparse_norm(matrix, 1 if scaling == "row" else 2, axis=1)
        scaled = sp.diags(1 / np.where(sums > 0, sums, 1.0)) @ matrix
        return _with_features(graph, from_scipy(scaled.astype(features.values().numpy().dtype)))
    wide = features.to_dense().double()
    sizes = wide.abs().sum(dim=1, keepdim=True) if scaling == "row" else wide.norm(dim=1, keepdim=True)
    return _with_features(graph, (wide / torch.where(sizes > 0, sizes, 1.0)).to(features.dtype))


def _with_features(graph: PartyGraph, features: Tensor) -> PartyGraph:
    check_features(graph.party, features)
    return replace(graph, features=features)


def _standardise(features: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1, constant ones 0: Tensor[N, F] float64."""
    wide = features.double()
    centred = wide - wide.mean(dim=0)
    deviation = wide.std(dim=0, correction=0)
    varies = wide.amax(dim=0) > wide.amin(dim=0)
    return torch.where(varies, centred / torch.where(varies, deviation, 1.0), 0.0)


def reorder_nodes(graph: PartyGraph, order: Tensor) -> PartyGraph:
    """Make node ``order[n]`` the n-th; sort edges by target, source and weight; keep only features, labels, masks."""
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order))
    edges, weight = places[graph.edge_index], graph.edge_weight
    keys = (() if weight is None else (weight.numpy(),)) + (edges[0].numpy(), edges[1].numpy())
    sorting = torch.from_numpy(np.lexsort(keys))
    moved = {name: values[order] for name, values in graph.node_values.items() if name in ("labels", *MASKS)}
    return PartyGraph(
        graph.party,
        choose_rows(graph.features, order),
        edges[:, sorting],
        None if weight is None else weight[sorting],
        num_classes=graph.num_classes,
        **moved,  # type: ignore[arg-type]
    )
