"""PyTorch Geometric's ``HeteroData`` as the graph of one kind of nodes, whose types of edges are its relations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from veilgraph.core.given import kind_of
from veilgraph.core.types import PartyId
from veilgraph.graph.pyg import edge_columns_of
from veilgraph.graph.relations import DTYPE, Relation, are_told_apart
from veilgraph.graph.rules import INTEGERS, refuse

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import HeteroData
    from torch_geometric.data.storage import EdgeStorage

_Edge = tuple[str, str, str]
_NAMED: Final = "common"


def of_one_kind(party: PartyId, given: object) -> tuple[object, tuple[Relation, ...], Tensor | None]:
    """A ``HeteroData`` as ``Data`` of its common nodes; what is none as it is.

    The common nodes are those of the type that ``given.common`` names, or of the only type, the only one with ``x``, or
    the only one with ``y``. Every type of edges between two of them is a relation, called by the middle of its three
    names, with its own ``edge_weight`` or ``edge_attr`` and, if it has any, ``hops``. Nodes of other types are left
    out.

    Args:
        party: the holder's name.
        given: what it brings.

    Returns:
        ``Data``; its relations; and of every edge, Tensor[E], the place of its relation. Where there is but one, which
        reaches as far as any: none.

    Raises:
        DataError: no type of nodes can be told to be that of the common nodes, or edges lead to others.
    """
    from torch_geometric.data import Data, HeteroData  # noqa: PLC0415 - seconds to import

    if not isinstance(given, HeteroData):
        return given, (), None
    kind = _common_kind(party, given)
    stores = _edges_between(party, given, kind)
    index = [_edge_index(party, edge, store) for edge, store in stores.items()]
    weights = [_weight(party, edge, store) for edge, store in stores.items()]
    data = Data(**given[kind].to_dict())
    data.edge_index = torch.cat([torch.empty(2, 0, dtype=torch.int64), *index], dim=1)
    if any(weight is not None for weight in weights):
        sizes = [each.shape[1] for each in index]
        pairs = zip(weights, sizes, strict=True)
        data.edge_weight = torch.cat([torch.ones(size) if weight is None else weight for weight, size in pairs])
    relations = tuple(Relation(edge[1], store.get("hops")) for edge, store in stores.items())
    if not are_told_apart(relations):
        return data, (), None
    places = [torch.full((each.shape[1],), place, dtype=DTYPE) for place, each in enumerate(index)]
    return data, relations, torch.cat(places)


def _common_kind(party: PartyId, data: HeteroData) -> str:
    """The type of the nodes that all holders know."""
    kinds = list(data.node_types)
    named = getattr(data, _NAMED, None)
    if named is not None:
        if named not in kinds:
            refuse(party, f"data.{_NAMED}", f"{named!r} is none of its types of nodes ({', '.join(kinds)})", "name one")
        return str(named)
    for among in (kinds, [kind for kind in kinds if "x" in data[kind]], [kind for kind in kinds if "y" in data[kind]]):
        if len(among) == 1:
            return str(among[0])
    refuse(
        party,
        "data",
        f"HeteroData of the types of nodes {', '.join(kinds) or '(none)'}, and which of them all holders know cannot "
        "be told",
        f"name it: data.{_NAMED} = {kinds[0] if kinds else 'customer'!r}",
    )


def _edges_between(party: PartyId, data: HeteroData, kind: str) -> dict[_Edge, EdgeStorage]:
    """Type of edges → its edges, all between common nodes."""
    for edge in data.edge_types:
        if (edge[0], edge[2]) != (kind, kind):
            refuse(
                party,
                "data.edge_types",
                f"{edge} leads to other nodes than {kind!r}, of which a holder's graph is",
                f"project it: join two of {kind!r} that meet at the same node (torch_geometric.transforms."
                "AddMetaPaths), or leave it out (del)",
            )
    return {edge: data[edge] for edge in data.edge_types}


def _edge_index(party: PartyId, edge: _Edge, store: EdgeStorage) -> Tensor:
    index: Any = store.get("edge_index")
    if (
        not isinstance(index, Tensor)
        or index.dim() != 2
        or index.shape[0] != 2
        or index.dtype not in (*INTEGERS, torch.int64)
    ):
        found = f"{index.dtype} {list(index.shape)}" if isinstance(index, Tensor) else kind_of(index)
        refuse(
            party,
            "data.edge_index",
            f"{found} of {edge} must be whole numbers [2, edges]",
            "give source and target rows",
        )
    return index.long()


def _weight(party: PartyId, edge: _Edge, store: EdgeStorage) -> Tensor | None:
    """One number per edge, Tensor[E]; None where there is none."""
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
