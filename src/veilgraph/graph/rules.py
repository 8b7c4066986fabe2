"""What a party's graph takes out of PyTorch Geometric's ``Data`` or ``HeteroData``, and what its tensors must satisfy.

Every rule raises ``DataError`` naming the party, the argument, the offending value with its place, the rule and
the way out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

from veilgraph.core.arguments import kind_of, wrong_type
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS, SERVER, PartyId

with deferred():  # seconds to import
    from torch_geometric import data as pyg
    from torch_geometric.data import storage

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
        return tuple(Relation(**each) for each in json.loads(text))
    except TypeError as error:
        raise ValueError(f"its relations are damaged: {error}") from error


def check_one_graph(key: str, given: object) -> None:
    """Refuses, by ``ConfigError``, an argument that is no ``Data``."""
    if not isinstance(given, pyg.Data):
        raise wrong_type(key, given, "PyTorch Geometric's Data", _way_to_data(given))


def _way_to_data(given: object) -> str:
    if isinstance(given, pyg.HeteroData):  # of several kinds of nodes and edges
        return (
            "give data.to_homogeneous(), or of one relation Data(x=data[kind].x, edge_index=data[relation].edge_index)"
        )
    return "give Data(x=..., edge_index=...), with y and masks where there are labels"


def check_is_data(party: PartyId, data: object) -> pyg.Data:
    """Return ``data``; refuse all but PyG's ``Data``, and masks or edge columns that are no tensors."""
    if not isinstance(data, pyg.Data):
        refuse(party, "data", f"{kind_of(data)} must be PyTorch Geometric's Data", _way_to_data(data))
    for name in ("edge_weight", "edge_attr", *MASKS):
        value = data.get(name)
        if value is not None and not isinstance(value, Tensor):
            refuse(party, f"data.{name}", f"{kind_of(value)} must be a torch.Tensor", "convert it with torch.as_tensor")
    return data


def features_of(party: PartyId, data: pyg.Data) -> Tensor:
    """Return ``x`` as strided or ``torch.sparse_csr``, float32 unless it is float64; refuse what is no tensor."""
    x = data.x
    if not isinstance(x, Tensor):
        refuse(party, "data.x", f"{kind_of(x)} must be a tensor of features", "give one row per node")
    if x.layout != torch.strided:
        x = x.to_sparse_csr()
    x = x.detach()
    return x if x.dtype in FEATURE_DTYPES else x.to(torch.float32)


def labels_of(party: PartyId, data: pyg.Data) -> Tensor | None:
    """``y`` as one class per node, Tensor[N] int64; None where there is none."""
    labels = data.y
    if labels is None:
        return None
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
        kind = labels.dtype if isinstance(labels, Tensor) else kind_of(labels)
        refuse(party, "data.y", f"{kind} must be whole numbers, one class per node", "encode the classes as 0, 1, 2, …")
    return labels.reshape(-1).long() if labels.dim() == 2 and labels.shape[1] == 1 else labels.long()


def classes_of(party: PartyId, data: pyg.Data, labels: Tensor | None) -> int | None:
    """Return the number of classes: ``num_classes`` where it is given, else the largest label plus one.

    The latter tells a node's label where it alone has the largest.
    """
    given = data.get("num_classes")
    if given is None:
        return int(labels.max()) + 1 if labels is not None and labels.numel() else None
    if not isinstance(given, int) or isinstance(given, bool):
        refuse(party, "data.num_classes", f"{kind_of(given)} must be a whole number", "give how many there can be")
    return given


def targets_of(party: PartyId, data: pyg.Data) -> Tensor | None:
    """``y`` as one target per node, Tensor[N] of its floating dtype; None where it has another dtype, or is missing."""
    targets = data.y
    if not isinstance(targets, Tensor) or not targets.is_floating_point():
        return None
    if targets.dim() == 2 and targets.shape[1] == 1:
        targets = targets.reshape(-1)
    if targets.dim() != 1:
        refuse(party, "data.y", f"shape {list(targets.shape)} must be one number per node", "choose one of them")
    return targets.detach()


def membership_of(party: PartyId, data: pyg.Data) -> Tensor | None:
    """``batch``, the graph that each node is of, Tensor[N] int64; None where there is none."""
    batch = data.get("batch")
    if batch is None:
        return None
    nodes = data.num_nodes
    if not isinstance(batch, Tensor) or batch.is_floating_point() or tuple(batch.shape) != (nodes,):
        found = list(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
        refuse(party, "data.batch", f"{found} must be whole numbers [{nodes}]", "number the graph of every node")
    return batch.long()


def expand_to_nodes(party: PartyId, data: pyg.Data, membership: Tensor | None) -> pyg.Data:
    """Expand ``y`` and masks that have a value per graph to one per node, by ``membership``; else return ``data``."""
    if membership is None:
        return data
    names = [name for name in ("y", *MASKS) if isinstance(data.get(name), Tensor)]
    each = {name: data[name] for name in names if len(data[name]) != len(membership)}
    count = int(membership.max()) + 1 if len(membership) else 0
    for name, values in each.items():
        if len(values) != count:
            problem = f"{len(values)} for {len(membership)} nodes of {count} graphs, as data.batch numbers them"
            refuse(party, f"data.{name}", problem, "give one of each node, or of each graph")
    return data.clone().update({name: values[membership] for name, values in each.items()}) if each else data


def edge_columns_of(party: PartyId, data: pyg.Data | storage.EdgeStorage) -> tuple[Tensor | None, Tensor | None]:
    """Return edges' weights [E] and features [E, F_e]; ``edge_attr`` of one column is the weight if that is missing."""
    weight, features = (_as_floats(data.get(name)) for name in ("edge_weight", "edge_attr"))
    for name, values, most in (("edge_weight", weight, 1), ("edge_attr", features, None)):
        if values is not None and (values.dim() not in (1, 2) or (most and values.numel() != len(values))):
            wanted = "one number per edge" if most else "one row of numbers per edge"
            refuse(party, f"data.{name}", f"shape {list(values.shape)} must be {wanted}", "reduce or remove it")
    if weight is None and features is not None and features.numel() == len(features):
        weight, features = features, None
    return (
        None if weight is None else weight.reshape(-1),
        None if features is None else features.reshape(len(features), -1),
    )


def _as_floats(values: Tensor | None) -> Tensor | None:
    if values is None:
        return None
    values = values.detach()
    return values if values.is_floating_point() else values.to(torch.float32)


def from_hetero(party: PartyId, given: object) -> tuple[object, tuple[Relation, ...], Tensor | None]:
    """Reduce a ``HeteroData`` to ``Data`` of its common nodes, relations, and each edge's, [E]; return others as is.

    The common nodes are those of the type that ``given.common`` names, or of the only type, the only one with ``x``, or
    the only one with ``y``. Every type of edges between two of them is a relation, called by the middle of its three
    names, with its own ``edge_weight`` or ``edge_attr`` and, if it has any, ``hops``. Nodes of other types are left
    out; a single relation that reaches as far as any is none.
    """
    if not isinstance(given, pyg.HeteroData):
        return given, (), None
    kind = _common_kind(party, given)
    for edge in given.edge_types:
        if (edge[0], edge[2]) != (kind, kind):
            way_out = (
                f"project it: join two of {kind!r} that meet at the same node "
                "(torch_geometric.transforms.AddMetaPaths), or leave it out (del)"
            )
            problem = f"{edge} joins nodes of other types than {kind!r}, the type of this holder's nodes"
            refuse(party, "data.edge_types", problem, way_out)
    stores = {edge: given[edge] for edge in given.edge_types}
    index = [_check_edge_index(party, edge, store) for edge, store in stores.items()]
    weights = [_relation_weight(party, edge, store) for edge, store in stores.items()]
    data = pyg.Data(**given[kind].to_dict())
    data.edge_index = torch.cat([torch.empty(2, 0, dtype=torch.int64), *index], dim=1)
    if any(weight is not None for weight in weights):
        pairs = zip(weights, index, strict=True)
        data.edge_weight = torch.cat([torch.ones(each.shape[1]) if own is None else own for own, each in pairs])
    relations = tuple(Relation(edge[1], store.get("hops")) for edge, store in stores.items())
    if not are_told_apart(relations):
        return data, (), None
    places = [torch.full((each.shape[1],), place, dtype=DTYPE) for place, each in enumerate(index)]
    return data, relations, torch.cat(places)


def _common_kind(party: PartyId, data: pyg.HeteroData) -> str:
    """Return the node type that all holders know: named, or the only one, or the only one with ``x``, or with ``y``."""
    kinds = list(data.node_types)
    named = getattr(data, "common", None)
    if named is not None:
        if named not in kinds:
            refuse(party, "data.common", f"{named!r} is not one of its node types {', '.join(kinds)}", "name one")
        return str(named)
    for among in (kinds, [kind for kind in kinds if "x" in data[kind]], [kind for kind in kinds if "y" in data[kind]]):
        if len(among) == 1:
            return str(among[0])
    problem = (
        f"HeteroData has the node types {', '.join(kinds) or '(none)'}, and which all holders have in common is not "
        "said"
    )
    refuse(party, "data", problem, f"name it: data.common = {kinds[0] if kinds else 'customer'!r}")


def _check_edge_index(party: PartyId, edge: tuple[str, str, str], store: storage.EdgeStorage) -> Tensor:
    index: Any = store.get("edge_index")
    is_pairs = isinstance(index, Tensor) and index.dim() == 2 and index.shape[0] == 2
    if not is_pairs or index.dtype not in (*INTEGERS, torch.int64):
        found = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else kind_of(index)
        problem = f"{found} of {edge} must be whole numbers [2, edges]"
        refuse(party, "data.edge_index", problem, "give source and target rows")
    return index.long()  # type: ignore[no-any-return]


def _relation_weight(party: PartyId, edge: tuple[str, str, str], store: storage.EdgeStorage) -> Tensor | None:
    """Return a relation's edge weights, Tensor[E], or None; refuse two columns, or one that is not [E]."""
    count = store["edge_index"].shape[1]
    for name in ("edge_weight", "edge_attr"):
        value: Any = store.get(name)
        if value is not None and (not isinstance(value, Tensor) or value.numel() != count or len(value) != count):
            found = list(value.shape) if isinstance(value, Tensor) else kind_of(value)
            refuse(party, f"data.{name}", f"{found} of {edge} must be one number per edge [{count}]", "mend or drop it")
    weight, features = edge_columns_of(party, store)
    if features is not None:
        refuse(party, "data.edge_attr", f"{edge} has edge_weight as well, and one of them is the weight", "drop one")
    return weight
