"""What a party's data must satisfy before anything is computed on it, said of its tensors.

Every rule raises ``DataError`` naming the party, the argument, the offending value with its place, the rule and
the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import torch
from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER

FEATURE_DTYPES = (torch.float32, torch.float64)


def refuse(party: str, argument: str, problem: str, way_out: str) -> NoReturn:
    """Raises the ``DataError`` of a broken rule."""
    raise DataError(f"party {party!r}: {argument}: {problem}; {way_out}")


def check_name(party: str) -> None:
    """A name, and not the server's."""
    if not party or party == SERVER:
        refuse(party, "party", f"a holder may be called neither '' nor {SERVER!r}", "rename it")


def check_common(party: str, num_common: int, num_nodes: int) -> None:
    """At least one common node, and no more than nodes."""
    if not 1 <= num_common <= num_nodes:
        refuse(
            party,
            "num_common",
            f"{num_common} must lie in 1..{num_nodes}, the number of nodes",
            "put the common nodes first and give their number",
        )


def check_shape(party: str, features: Tensor) -> None:
    """Floating point, two-dimensional, at least one row and column."""
    if features.layout not in (torch.strided, torch.sparse_csr):
        refuse(party, "features", f"layout {features.layout} is neither strided nor sparse_csr", "convert them")
    if features.dtype not in FEATURE_DTYPES:
        refuse(party, "features", f"dtype {features.dtype} is neither float32 nor float64", "convert them")
    if features.dim() != 2:
        refuse(party, "features", f"shape {list(features.shape)} must be [nodes, columns]", "reshape them")
    if features.shape[0] == 0:
        refuse(party, "features", "0 rows, and a graph has at least one node", "give one row per node")
    if features.shape[1] == 0:
        refuse(
            party,
            "features",
            "0 columns, and every holder needs at least one",
            "give this holder a column (a constant one will do) or leave it out",
        )


def check_features(party: str, features: Tensor) -> None:
    """Of a shape as ``check_shape`` has it, and finite everywhere."""
    check_shape(party, features)
    if features.layout == torch.sparse_csr:
        _check_csr(party, features)
        values = features.values()
    else:
        values = features
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    first = tuple(int(index) for index in (~finite).nonzero()[0])
    value = float(values[first])
    row = first[0]
    if features.layout == torch.sparse_csr:
        row = int(torch.searchsorted(features.crow_indices(), torch.tensor(row), right=True)) - 1
    refuse(party, "features", f"value {value} in row {row} is not finite", "replace or impute it")


def _check_csr(party: str, features: Tensor) -> None:
    pointers, columns = features.crow_indices(), features.col_indices()
    if int(pointers[0]) != 0 or int(pointers[-1]) != len(columns) or bool((pointers.diff() < 0).any()):
        refuse(party, "features", "the sparse row pointers do not rise from 0 to the number of values", "rebuild them")
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < features.shape[1]:
        refuse(
            party,
            "features",
            f"a sparse column index lies outside 0..{features.shape[1] - 1}",
            "rebuild the sparse matrix",
        )


INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Types of whole numbers that are taken as int64."""


def check_edges(party: str, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> None:
    """Existing nodes only; finite weights ≥ 0, one per edge."""
    if edge_index.dtype != torch.int64 or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        refuse(
            party,
            "edge_index",
            f"{edge_index.dtype} {list(edge_index.shape)} must be whole numbers [2, edges]",
            "give source and target rows",
        )
    outside = (edge_index < 0) | (edge_index >= num_nodes)
    if bool(outside.any()):
        edge = int(outside.any(dim=0).nonzero()[0])
        refuse(
            party,
            "edge_index",
            f"edge {edge} is {edge_index[:, edge].tolist()}, and nodes are 0..{num_nodes - 1}",
            "align the edges' node ids with the features' rows",
        )
    if edge_weight is None:
        return
    if not edge_weight.is_floating_point() or tuple(edge_weight.shape) != (edge_index.shape[1],):
        refuse(
            party,
            "edge_weight",
            f"{edge_weight.dtype} {list(edge_weight.shape)} must be floating point [{edge_index.shape[1]}]",
            "give one weight per edge, or none at all",
        )
    wrong = ~torch.isfinite(edge_weight) | (edge_weight < 0)
    if bool(wrong.any()):
        edge = int(wrong.nonzero()[0])
        refuse(
            party,
            "edge_weight",
            f"value {float(edge_weight[edge])} of edge {edge} must be finite and at least 0",
            "mend it or drop the edge",
        )


def check_edge_features(party: str, edge_features: Tensor | None, num_edges: int) -> None:
    """Check the columns of edges: finite floating point numbers, one row per edge."""
    if edge_features is None:
        return
    shape = list(edge_features.shape)
    if not edge_features.is_floating_point() or len(shape) != 2 or shape[0] != num_edges or not shape[1]:
        refuse(
            party,
            "edge_features",
            f"{edge_features.dtype} {shape} must be floating point [{num_edges}, columns]",
            "give one row per edge, or none at all",
        )
    if not bool(torch.isfinite(edge_features).all()):
        edge = int((~torch.isfinite(edge_features)).any(dim=1).nonzero()[0])
        refuse(party, "edge_features", f"edge {edge} has a value that is not finite", "mend it or drop the edge")


def check_labels(
    party: str,
    labels: Tensor | None,
    masks: Mapping[str, Tensor | None],
    num_classes: int | None,
    num_nodes: int,
    num_common: int,
) -> None:
    """Labels in −1..num_classes−1; disjoint masks over labelled nodes; common training and validation nodes exist.

    Args:
        party: whose.
        labels: Tensor[N] int64, or None.
        masks: name → Tensor[N] bool, or None, in the order of ``MASKS``.
        num_classes: where there are labels.
        num_nodes: N.
        num_common: C.
    """
    if labels is None:
        for name, mask in masks.items():
            if mask is not None:
                refuse(party, name, "there is a mask but there are no labels", "give labels too, or no masks")
        return
    if labels.dtype != torch.int64 or tuple(labels.shape) != (num_nodes,):
        refuse(
            party,
            "labels",
            f"{labels.dtype} {list(labels.shape)} must be int64 [{num_nodes}]",
            "give one per node, -1 where unknown",
        )
    if num_classes is None or num_classes < 2:
        refuse(
            party,
            "num_classes",
            f"{num_classes} must be at least 2 where there are labels",
            "give the number of classes",
        )
    outside = (labels < -1) | (labels >= num_classes)
    if bool(outside.any()):
        node = int(outside.nonzero()[0])
        refuse(
            party,
            "labels",
            f"value {int(labels[node])} of node {node} lies outside -1..{num_classes - 1}",
            "mend it or raise num_classes",
        )
    _check_masks(party, labels >= 0, masks, num_common)


def check_targets(party: str, targets: Tensor, masks: Mapping[str, Tensor | None], num_nodes: int) -> None:
    """Finite numbers, or NaN where unknown; masks over known ones, as of labels.

    Args:
        party: whose.
        targets: Tensor[N] float.
        masks: as for ``check_labels``.
        num_nodes: N.
    """
    if not targets.is_floating_point() or tuple(targets.shape) != (num_nodes,):
        refuse(
            party,
            "targets",
            f"{targets.dtype} {list(targets.shape)} must be floating point [{num_nodes}]",
            "give one number per node, NaN where unknown",
        )
    infinite = targets.isinf()
    if bool(infinite.any()):
        node = int(infinite.nonzero()[0])
        refuse(party, "targets", f"value {float(targets[node])} of node {node} is not finite", "mend it, or give NaN")
    _check_masks(party, ~targets.isnan(), masks, num_nodes)


def check_membership(party: str, membership: Tensor, values: Mapping[str, Tensor | None], edge_index: Tensor) -> None:
    """A whole number of every node; edges within graphs; nodes of one graph agree on what is of the graph.

    Args:
        party: whose.
        membership: Tensor[N] int64, the graph that each node is of.
        values: name → Tensor[N], of what must be the same at all nodes of a graph; None where there is none.
        edge_index: Tensor[2, E] int64.
    """
    nodes = int(membership.numel())
    if membership.dtype != torch.int64 or membership.dim() != 1 or bool((membership < 0).any()):
        refuse(
            party,
            "membership",
            f"{membership.dtype} {list(membership.shape)} must be int64 [{nodes}] of at least 0",
            "number the graphs",
        )
    between = membership[edge_index[0]] != membership[edge_index[1]]
    if bool(between.any()):
        edge = int(between.nonzero()[0])
        source, target = (int(end) for end in edge_index[:, edge])
        refuse(
            party,
            "membership",
            f"edge {edge} joins node {source} of graph {int(membership[source])} with node {target} of graph "
            f"{int(membership[target])}, and graphs have no edges between them",
            "drop it or mend the nodes' graphs",
        )
    _, place = torch.unique(membership, return_inverse=True)
    first = torch.full((int(place.max()) + 1,), nodes).scatter_reduce(0, place, torch.arange(nodes), "amin")[place]
    for name, value in values.items():
        if value is None:
            continue
        differs = ~torch.isclose(value.double(), value.double()[first], rtol=0, atol=0, equal_nan=True)
        if bool(differs.any()):
            node = int(differs.nonzero()[0])
            refuse(
                party,
                name,
                f"nodes {int(first[node])} and {node} of graph {int(membership[node])} differ, and it is of the graph",
                "give all nodes of a graph the same",
            )


def _check_masks(party: str, known: Tensor, masks: Mapping[str, Tensor | None], num_common: int) -> None:
    nodes = len(known)
    seen = torch.zeros(nodes, dtype=torch.int64)
    for name, mask in masks.items():
        if mask is None:
            continue
        if mask.dtype != torch.bool or tuple(mask.shape) != (nodes,):
            refuse(party, name, f"{mask.dtype} {list(mask.shape)} must be bool [{nodes}]", "give one value per node")
        unlabelled = mask & ~known
        if bool(unlabelled.any()):
            refuse(
                party,
                name,
                f"node {int(unlabelled.nonzero()[0])} is in the mask and has no label",
                "label it or take it out of the mask",
            )
        overlap = mask & (seen > 0)
        if bool(overlap.any()):
            refuse(
                party,
                name,
                f"node {int(overlap.nonzero()[0])} is in an earlier mask too, and masks may not overlap",
                "keep it in one of them",
            )
        seen += mask
    train, val, common = masks["train_mask"], masks["val_mask"], " common to all holders" if num_common < nodes else ""
    if train is None or not bool(train[:num_common].any()):
        refuse(
            party,
            "train_mask",
            f"0 labelled training nodes among the {num_common} nodes{common}, and at least 1 is needed",
            "mark some as training nodes",
        )
    if val is None or not bool(val[:num_common].any()):
        refuse(
            party,
            "val_mask",
            f"0 validation nodes among the {num_common} nodes{common}, and the best epoch is chosen on them",
            "move some training nodes into val_mask",
        )
