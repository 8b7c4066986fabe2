"""What a party's graph takes out of PyTorch Geometric's ``Data`` or ``HeteroData``.

Every rule raises ``DataError`` naming the party, the argument, the offending value with its place, the rule and the way
out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from veilgraph.core.arguments import kind_of, wrong_type
from veilgraph.core.deferred import deferred
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph.rules import DTYPE, FEATURE_DTYPES, INTEGERS, Relation, are_told_apart, refuse

with deferred():  # seconds to import
    from torch_geometric import data as pyg
    from torch_geometric.data import storage


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
