"""What the tensors of a party's graph must satisfy.

Every rule raises ``DataError`` naming the party, the argument, the offending value with its place, the rule and the way
out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, NoReturn

import torch
from pydantic_core import from_json
from torch import Tensor

from veilgraph.core.arguments import kind_of
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER

FEATURE_DTYPES = (torch.float32, torch.float64)
INTEGERS: Final = (torch.uint8, torch.int8, torch.int16, torch.int32)
"""Types of whole numbers that are taken as int64."""
MOST_HOPS: Final = 32
"""As many as a local model has at most."""
DTYPE: Final = torch.int16
"""Of an edge's relation."""
_MOST_RELATIONS: Final = 2**15
_DTYPES: Final[Mapping[str, tuple[torch.dtype, ...]]] = {
    "floating point": (torch.float16, torch.bfloat16, *FEATURE_DTYPES),
    "int64": (torch.int64,),
    "whole numbers": (torch.int16, torch.int32, torch.int64),
    "bool": (torch.bool,),
}


def refuse(party: str, argument: str, problem: str, way_out: str) -> NoReturn:
    """Raises the ``DataError`` of a broken rule."""
    raise DataError(f"party {party!r}: {argument}: {problem}; {way_out}")


def _refuse_first(party: str, argument: str, wrong: Tensor, problem: Callable[[int], str], way_out: str) -> None:
    """Refuse the first place of a vector that is wrong, if there is one; ``problem`` says what is wrong there."""
    if bool(wrong.any()):
        refuse(party, argument, problem(int(wrong.nonzero()[0])), way_out)


def _type_and_shape(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _check_vector(party: str, argument: str, values: Tensor, dtypes: str, length: int, way_out: str) -> None:
    """Refuse what is no vector of so many values of a type; ``dtypes``: a key of ``_DTYPES``."""
    if values.dtype not in _DTYPES[dtypes] or tuple(values.shape) != (length,):
        refuse(party, argument, f"{_type_and_shape(values)} must be {dtypes} [{length}]", way_out)


def check_name(party: str) -> None:
    """Refuse an empty name, and the server's."""
    if not party or party == SERVER:
        refuse(party, "party", f"a holder may be called neither '' nor {SERVER!r}", "rename it")


def check_common(party: str, num_common: int, num_nodes: int) -> None:
    """Refuse ``num_common`` outside 0..N; a holder with edges between others' nodes alone has 0."""
    if not 0 <= num_common <= num_nodes:
        problem = f"{num_common} must lie in 0..{num_nodes}, the number of nodes"
        refuse(party, "num_common", problem, "put the common nodes first and give their number")


def check_shape(party: str, features: Tensor) -> None:
    """Refuse features that are not strided or CSR, float32 or float64, [N, F] with N and F at least 1."""
    if features.layout not in (torch.strided, torch.sparse_csr):
        refuse(party, "features", f"layout {features.layout} is neither strided nor sparse_csr", "convert them")
    if features.dtype not in FEATURE_DTYPES:
        refuse(party, "features", f"dtype {features.dtype} is neither float32 nor float64", "convert them")
    if features.dim() != 2:
        refuse(party, "features", f"shape {list(features.shape)} must be [nodes, columns]", "reshape them")
    if features.shape[0] == 0:
        refuse(party, "features", "0 rows, and a graph has at least one node", "give one row per node")
    if features.shape[1] == 0:
        way_out = "give this holder a column (a constant one will do) or leave it out"
        refuse(party, "features", "0 columns, and every holder needs at least one", way_out)


def check_features(party: str, features: Tensor) -> None:
    """Refuse what ``check_shape`` refuses, damaged sparse indices, and values that are not finite."""
    check_shape(party, features)
    values = features
    if is_sparse := features.layout == torch.sparse_csr:
        pointers, columns, values = features.crow_indices(), features.col_indices(), features.values()
        if int(pointers[0]) != 0 or int(pointers[-1]) != len(columns) or bool((pointers.diff() < 0).any()):
            problem = "the sparse row pointers do not rise from 0 to the number of values"
            refuse(party, "features", problem, "rebuild them")
        if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < features.shape[1]:
            problem = f"a sparse column index lies outside 0..{features.shape[1] - 1}"
            refuse(party, "features", problem, "rebuild the sparse matrix")
    finite = torch.isfinite(values)
    if bool(finite.all()):
        return
    first = tuple(int(index) for index in (~finite).nonzero()[0])
    row = first[0]
    if is_sparse:
        row = int(torch.searchsorted(features.crow_indices(), torch.tensor(row), right=True)) - 1
    refuse(party, "features", f"value {float(values[first])} in row {row} is not finite", "replace or impute it")


def check_edges(party: str, edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int) -> None:
    """Refuse edges that are not int64 [2, E] of nodes 0..N−1, and weights that are not [E], finite and at least 0."""
    if edge_index.dtype != torch.int64 or edge_index.dim() != 2 or edge_index.shape[0] != 2:
        problem = f"{_type_and_shape(edge_index)} must be whole numbers [2, edges]"
        refuse(party, "edge_index", problem, "give source and target rows")
    _refuse_first(
        party,
        "edge_index",
        ((edge_index < 0) | (edge_index >= num_nodes)).any(dim=0),
        lambda edge: f"edge {edge} is {edge_index[:, edge].tolist()}, and nodes are 0..{num_nodes - 1}",
        "align the edges' node ids with the features' rows",
    )
    if edge_weight is None:
        return
    way_out = "give one weight per edge, or none at all"
    _check_vector(party, "edge_weight", edge_weight, "floating point", edge_index.shape[1], way_out)
    _refuse_first(
        party,
        "edge_weight",
        ~torch.isfinite(edge_weight) | (edge_weight < 0),
        lambda edge: f"value {float(edge_weight[edge])} of edge {edge} must be finite and at least 0",
        "mend it or drop the edge",
    )


def check_edge_features(party: str, edge_features: Tensor | None, num_edges: int) -> None:
    """Refuse features of edges that are not finite floating point [E, F_e], with a column at least."""
    if edge_features is None:
        return
    shape = edge_features.shape
    if not edge_features.is_floating_point() or len(shape) != 2 or shape[0] != num_edges or not shape[1]:
        problem = f"{_type_and_shape(edge_features)} must be floating point [{num_edges}, columns]"
        refuse(party, "edge_features", problem, "give one row per edge, or none at all")
    wrong = ~torch.isfinite(edge_features).all(dim=1)
    problem_at = "edge {} has a value that is not finite".format
    _refuse_first(party, "edge_features", wrong, problem_at, "mend it or drop the edge")


def check_labels(
    party: str,
    labels: Tensor | None,
    masks: Mapping[str, Tensor | None],
    num_classes: int | None,
    num_nodes: int,
    num_common: int,
) -> None:
    """Refuse labels outside −1..num_classes−1, and masks without labels, that overlap or hold unlabelled nodes.

    One training and one validation node at least must be common to all holders.
    """
    if labels is None:
        for name, mask in masks.items():
            if mask is not None:
                refuse(party, name, "there is a mask but there are no labels", "give labels too, or no masks")
        return
    _check_vector(party, "labels", labels, "int64", num_nodes, "give one per node, -1 where unknown")
    if num_classes is None or num_classes < 2:
        problem = f"{num_classes} must be at least 2 where there are labels"
        refuse(party, "num_classes", problem, "give the number of classes")
    _refuse_first(
        party,
        "labels",
        (labels < -1) | (labels >= num_classes),
        lambda node: f"value {int(labels[node])} of node {node} lies outside -1..{num_classes - 1}",
        "mend it or raise num_classes",
    )
    _check_masks(party, labels >= 0, masks, num_common)


def check_targets(party: str, targets: Tensor, masks: Mapping[str, Tensor | None], num_nodes: int) -> None:
    """Refuse targets that are not floating point [N], finite or NaN (unknown), and masks as for labels."""
    way_out = "give one number per node, NaN where unknown"
    _check_vector(party, "targets", targets, "floating point", num_nodes, way_out)

    def infinite(node: int) -> str:
        return f"value {float(targets[node])} of node {node} is not finite"

    _refuse_first(party, "targets", targets.isinf(), infinite, "mend it, or give NaN")
    _check_masks(party, ~targets.isnan(), masks, num_nodes)


def _check_masks(party: str, known: Tensor, masks: Mapping[str, Tensor | None], num_common: int) -> None:
    nodes = len(known)
    seen = torch.zeros(nodes, dtype=torch.bool)
    for name, mask in masks.items():
        if mask is None:
            continue
        _check_vector(party, name, mask, "bool", nodes, "give one value per node")
        unlabelled = "node {} is in the mask and has no label".format
        _refuse_first(party, name, mask & ~known, unlabelled, "label it or take it out of the mask")
        overlap = "node {} is in an earlier mask too, and masks may not overlap".format
        _refuse_first(party, name, mask & seen, overlap, "keep it in one of them")
        seen |= mask
    train, val, common = masks["train_mask"], masks["val_mask"], " common to all holders" if num_common < nodes else ""
    if train is None or not bool(train[:num_common].any()):
        problem = f"0 labelled training nodes among the {num_common} nodes{common}, and at least 1 is needed"
        refuse(party, "train_mask", problem, "mark some as training nodes (in tables: nodes.split)")
    if val is None or not bool(val[:num_common].any()):
        problem = f"0 validation nodes among the {num_common} nodes{common}, and the best epoch is chosen on them"
        refuse(party, "val_mask", problem, "move some training nodes into val_mask (in tables: nodes.split)")


def first_of_graphs(membership: Tensor) -> Tensor:
    """Return the first node of each node's graph: Tensor[N] int64."""
    nodes = len(membership)
    _, place = torch.unique(membership, return_inverse=True)
    first = torch.full((int(place.max()) + 1,), nodes).scatter_reduce(0, place, torch.arange(nodes), "amin")
    return first[place]


def check_membership(party: str, membership: Tensor, values: Mapping[str, Tensor | None], edge_index: Tensor) -> None:
    """Refuse graph numbers that are not int64 [N] ≥ 0, edges between graphs, and ``values`` that differ in a graph."""
    if membership.dtype != torch.int64 or membership.dim() != 1 or bool((membership < 0).any()):
        problem = f"{_type_and_shape(membership)} must be int64 [{membership.numel()}] of at least 0"
        refuse(party, "membership", problem, "number the graphs")
    graphs = membership[edge_index]

    def between(edge: int) -> str:
        one, other = (f"node {int(edge_index[end, edge])} of graph {int(graphs[end, edge])}" for end in (0, 1))
        return f"edge {edge} joins {one} with {other}, and graphs have no edges between them"

    _refuse_first(party, "membership", graphs[0] != graphs[1], between, "drop it or mend the nodes' graphs")
    first = first_of_graphs(membership)

    def differ(node: int) -> str:
        return f"nodes {int(first[node])} and {node} are of graph {int(membership[node])} and differ"

    for name, value in values.items():
        if value is not None:
            wide = value.double()
            differs = ~torch.isclose(wide, wide[first], rtol=0, atol=0, equal_nan=True)
            _refuse_first(party, name, differs, differ, "give all nodes of a graph the same value")


@dataclass(frozen=True)
class Relation:
    """One of a party's relations; they stay at the party, as their names do.

    ``hops``: edges of it count within so many hops of a node, from 0; None: as far as the job's local model looks.
    """

    name: str
    hops: int | None = None


EVERY: Final = Relation("edges")
"""All edges of a graph whose relations are not told apart."""


def are_told_apart(relations: Sequence[Relation]) -> bool:
    """Whether a graph must keep each edge's relation: there are two or more, or one has limited hops."""
    return len(relations) > 1 or any(relation.hops is not None for relation in relations)


def check_relations(party: str, relations: object, edge_relation: Tensor | None, num_edges: int) -> None:
    """Refuse empty or equal names, hops not in 0..``MOST_HOPS``, and ``edge_relation`` that is no index [E] of them."""
    if not isinstance(relations, tuple) or not all(isinstance(each, Relation) for each in relations):
        refuse(party, "relations", f"{kind_of(relations)} must be a tuple of Relation", "give one, or leave it out")
    if len(relations) > _MOST_RELATIONS:
        refuse(party, "relations", f"{len(relations)} are more than {_MOST_RELATIONS:,}", "make fewer of them")
    names = [relation.name for relation in relations]
    for name, hops in ((relation.name, relation.hops) for relation in relations):
        if not isinstance(name, str) or not name:
            refuse(party, "relations", f"name={name!r} must be a text that is not empty", "give one")
        if (times := names.count(name)) > 1:
            refuse(party, "relations", f"{name!r} is there {times} times, and names differ", "make one of them")
        if hops is not None and (isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops <= MOST_HOPS):
            problem = f"hops={hops!r} of {name!r} must be a whole number from 0 to {MOST_HOPS}"
            refuse(party, "relations", problem, "give one, or leave it out")
    if (edge_relation is None) != (not relations):
        given = "missing" if edge_relation is None else "given"
        refuse(party, "edge_relation", f"{given} beside {len(relations)} relations", "give both, or none")
    if edge_relation is None:
        return
    way_out = "give every edge the number of its relation"
    _check_vector(party, "edge_relation", edge_relation, "whole numbers", num_edges, way_out)
    _refuse_first(
        party,
        "edge_relation",
        (edge_relation < 0) | (edge_relation >= len(relations)),
        lambda edge: f"value {int(edge_relation[edge])} of edge {edge} lies outside 0..{len(relations) - 1}",
        "mend it, or name the relation",
    )


def relations_to_json(relations: Sequence[Relation]) -> str:
    """Serialise relations as JSON."""
    return json.dumps([asdict(relation) for relation in relations])


def relations_from_json(text: str) -> tuple[Relation, ...]:
    """Parse what ``relations_to_json`` serialised; ``ValueError`` for anything else."""
    try:
        return tuple(Relation(**each) for each in from_json(text))
    except TypeError as error:
        raise ValueError(f"its relations are damaged: {error}") from error
