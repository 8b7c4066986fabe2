"""One party's immutable graph: its own features and edges over the common nodes and its own, and perhaps labels.

A saved party graph is one safetensors file; nothing in it is executable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from numbers import Integral, Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from veilgraph.core.arguments import kind_of
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph import pyg_data, rules
from veilgraph.graph.rules import Relation, refuse

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data, HeteroData


def rows_between(features: Tensor, start: int, stop: int) -> Tensor:
    """Rows ``start`` to ``stop`` − 1 of a matrix [N, F] in its layout, sharing its memory; itself where that is all."""
    if (start, stop) == (0, features.shape[0]):
        return features
    if features.layout != torch.sparse_csr:
        return features[start:stop]
    pointers = features.crow_indices()[start : stop + 1]
    first, last = int(pointers[0]), int(pointers[-1])
    return torch.sparse_csr_tensor(
        pointers - first,
        features.col_indices()[first:last],
        features.values()[first:last],
        (stop - start, features.shape[1]),
        check_invariants=False,  # holds for a part of a matrix that was checked
    )


def pairs_once(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct columns of int64 [2, E], all at least 0, sorted: [2, P]; and each column's index there: [E].

    A pair is sorted as one number, which takes a fortieth of the time of ``torch.unique`` over columns.
    """
    base = 1 + int(edges.max()) if edges.numel() else 1
    found, place = torch.unique(edges[0] * base + edges[1], return_inverse=True)
    return torch.stack([found // base, found % base]), place


def sparse_rows(parts: Sequence[Tensor], num_features: int) -> Tensor:
    """The ``torch.sparse_csr`` matrix of row pointers, columns and values; ``RuntimeError`` where they do not fit."""
    pointers, columns, values = parts
    return torch.sparse_csr_tensor(pointers, columns, values, (len(pointers) - 1, num_features), check_invariants=True)


_BYTES: Final = "ids.utf8"
_ENDS: Final = "ids.ends"
ID_TENSORS: Final = (_BYTES, _ENDS)
"""Names of the tensors that ``pack_ids`` makes."""


def pack_ids(ids: Sequence[str], prefix: str = "") -> dict[str, Tensor]:
    """Text as UTF-8 in one uint8 vector, and where each ends as an int64 vector of ``len(ids)``."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in ids]
    joined = bytearray(b"".join(encoded))
    return {
        prefix + _BYTES: torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8),
        prefix + _ENDS: torch.tensor(list(accumulate(map(len, encoded))), dtype=torch.int64),
    }


def unpack_ids(tensors: Mapping[str, Tensor], prefix: str = "") -> list[str] | None:
    """Decode the ids that ``pack_ids`` packed; None where there are none."""
    if prefix + _ENDS not in tensors:
        return None
    joined, ends = tensors[prefix + _BYTES].numpy().tobytes(), tensors[prefix + _ENDS].tolist()
    return [joined[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise([0, *ends])]


def checked_ids(party: PartyId, ids: Iterable[Hashable] | Tensor | np.ndarray, nodes: int) -> list[str]:
    """A holder's ids as text, one for each of the N rows of its graph.

    An id is anything with a ``str`` of its own but None, bytes and fractional numbers, which pandas makes of a column
    with a gap. Raises ``DataError``: there are not N, one is no id, or two are equal as text.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        refuse(party, "ids", f"{kind_of(ids)} must be one id for each row", "give a list, a tensor or an array")
    values: Iterable[Hashable] = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids
    given = list(values) if isinstance(values, Iterable) else [values]
    fractional = [isinstance(value, Number) and not isinstance(value, Integral) for value in given]
    if strange := [
        value
        for value, is_fraction in zip(given, fractional, strict=True)
        if value is None or isinstance(value, bytes) or is_fraction
    ]:
        way_out = "write it as text or as a whole number, the same in every run"
        refuse(party, "ids", f"{strange[0]!r} is no id, for as text it would be another node's", way_out)
    texts = [str(value) for value in given]
    if len(texts) != nodes:
        refuse(party, "ids", f"{len(texts)} for {nodes} nodes", "give every row its node's id")
    if len(set(texts)) < nodes:
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        refuse(party, "ids", f"{twice!r} is given twice, as text", "a node has one row and one id; mend one")
    return texts


_FORMAT = "veilgraph-party-1"
_SPARSE_PARTS = ("features.row_pointers", "features.columns", "features.values")
_OF_EDGES = ("edge_weight", "edge_relation", "edge_features")
_OF_NODES = ("labels", *MASKS, "targets", "membership")
_TENSORS = ("edge_index", *_OF_EDGES, *_OF_NODES)
_NUMBERS = ("num_classes", "num_common")


@dataclass(frozen=True, eq=False)
class PartyGraph:
    """A data holder's private graph over N nodes: the C that all holders know, then those that only it knows.

    Attributes:
        party: the holder's name.
        features: Tensor[N, F], strided or ``torch.sparse_csr``, float32 or float64.
        edge_index: Tensor[2, E] int64; row 0 is the source of a message, row 1 its target.
        edge_weight: Tensor[E], floating point and at least 0, or None for weight 1 everywhere. Edges of weight 0 are
            dropped when a graph is made.
        labels: Tensor[N] int64, −1 where unknown; None at holders without labels.
        train_mask: Tensor[N] bool, with labels only.
        val_mask: Tensor[N] bool, with labels only.
        test_mask: Tensor[N] bool, with labels only; may be absent.
        num_classes: number of classes, with labels only.
        num_common: C, which all holders know, unlike N; None where all nodes are common.
        targets: Tensor[N] float, NaN where unknown: numbers to predict, in place of labels; masks are of them then.
        membership: Tensor[N] int64 of at least 0: which of a holder's graphs a node is of; None: all are one graph.
            Labels and masks are then of graphs, the same at all nodes of one.
        edge_relation: Tensor[E] of whole numbers: the place in ``relations`` of each edge's; None: all edges alike.
        relations: those that are told apart, in the holder's order; none where all edges are alike.
        edge_features: Tensor[E, F_e], floating point: columns of the edges beside their weight; None without any.
    """

    party: PartyId
    features: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None = None
    labels: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    num_classes: int | None = None
    num_common: int | None = None
    targets: Tensor | None = None
    membership: Tensor | None = None
    edge_relation: Tensor | None = None
    relations: tuple[Relation, ...] = ()
    edge_features: Tensor | None = None
    is_checked: ClassVar[bool] = False
    """Whether ``validate`` has nothing left to do: of a graph as it was read back from a file, and of no copy of it."""

    def __post_init__(self) -> None:
        """Take any whole numbers as edges; drop those of weight 0, so that no count, bound or message has them."""
        if isinstance(self.edge_index, Tensor) and self.edge_index.dtype in rules.INTEGERS:
            object.__setattr__(self, "edge_index", self.edge_index.long())
        weight, edges = self.edge_weight, self.edge_index
        if not isinstance(weight, Tensor) or not isinstance(edges, Tensor) or weight.shape != edges.shape[1:]:
            return  # ``validate`` refuses it
        present = weight > 0
        if bool((present | (weight == 0)).all()) and not bool(present.all()):
            for name, values in self._select_edges(present).items():
                object.__setattr__(self, name, values)

    @property
    def num_nodes(self) -> int:
        """N, the holder's own nodes included; never told to others."""
        return int(self.features.shape[0])

    @property
    def common(self) -> int:
        """C: rows 0 to C − 1 are the nodes that all holders know, in the order they agreed on."""
        return self.num_nodes if self.num_common is None else self.num_common

    @property
    def num_features(self) -> int:
        """F, this holder's columns only."""
        return int(self.features.shape[1])

    @property
    def label_fields(self) -> dict[str, Any]:
        """Labels, masks and the number of classes, by the names of their attributes; None where there is none."""
        return {name: getattr(self, name) for name in ("labels", *MASKS, "num_classes")}

    @property
    def node_values(self) -> dict[str, Tensor]:
        """Labels, masks, targets and membership, those that there are, by name: Tensor[N] each."""
        return {name: value for name in _OF_NODES if (value := getattr(self, name)) is not None}

    @property
    def num_edge_features(self) -> int:
        """F_e, columns of the edges beside their weight."""
        return 0 if self.edge_features is None else int(self.edge_features.shape[1])

    @property
    def num_edges(self) -> int:
        """E, directed: an undirected edge counts twice."""
        return int(self.edge_index.shape[1])

    def most_edges_at_a_node(self) -> float:
        """Return the largest in- or out-degree (with weights: their sum) in the subgraph of the common nodes."""
        part = self.common_part()
        weight = None if part.edge_weight is None else part.edge_weight.double()
        ends = (torch.bincount(each, weights=weight) for each in part.edge_index)
        return max((float(each.max()) for each in ends if each.numel()), default=0)

    def degrees(self) -> Tensor:
        """Sum of the incoming edges' weights (their number without weights): Tensor[N] float64."""
        weight = None if self.edge_weight is None else self.edge_weight.double()
        return torch.bincount(self.edge_index[1], weights=weight, minlength=self.num_nodes).double()

    def common_part(self) -> PartyGraph:
        """The subgraph of the common nodes: their C rows, and the edges between two of them."""
        count = self.common
        if count == self.num_nodes:
            return self
        return replace(
            self.with_edges((self.edge_index < count).all(dim=0)),
            features=rows_between(self.features, 0, count),
            num_common=None,
            **{name: values[:count] for name, values in self.node_values.items()},  # type: ignore[arg-type]
        )

    def with_edges(self, kept: Tensor) -> PartyGraph:
        """The same nodes with some of the edges; ``kept``: Tensor[E] bool, or places of edges in a new order."""
        return replace(self, **self._select_edges(kept))

    def _select_edges(self, kept: Tensor) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in _OF_EDGES if getattr(self, name) is not None}
        return {"edge_index": self.edge_index[:, kept], **{name: values[kept] for name, values in named.items()}}

    def merged(self) -> PartyGraph:
        """Return the graph without relations: all edges alike."""
        return replace(self, edge_relation=None, relations=())

    def validate(self) -> None:
        """Check every rule that a party's data must satisfy; the ``DataError`` names what breaks one.

        It is called once, where data come in; what is derived from a checked graph is not checked whole again.
        """
        if self.is_checked:
            return
        self.check_types()
        rules.check_name(self.party)
        rules.check_features(self.party, self.features)
        rules.check_common(self.party, self.common, self.num_nodes)
        rules.check_edges(self.party, self.edge_index, self.edge_weight, self.num_nodes)
        rules.check_edge_features(self.party, self.edge_features, self.num_edges)
        rules.check_relations(self.party, self.relations, self.edge_relation, self.num_edges)
        self.check_split()

    def check_types(self) -> None:
        """Checks that tensors are tensors, and numbers whole; part of ``validate``."""
        party = self.party if isinstance(self.party, str) else repr(self.party)
        if not isinstance(self.party, str):
            refuse(party, "party", f"{kind_of(self.party)} must be the holder's name (str)", "give one")
        for name in ("features", "edge_index", *_TENSORS[1:]):
            value = getattr(self, name)
            if not isinstance(value, Tensor) and (value is not None or name in ("features", "edge_index")):
                refuse(party, name, f"{kind_of(value)} must be a torch.Tensor", "convert it with torch.as_tensor")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                refuse(party, name, f"{kind_of(value)} must be a whole number (int)", "give one, or leave it out")

    def check_split(self) -> None:
        """Check labels or targets, masks and membership alone, as after a new split; part of ``validate``."""
        masks = {name: getattr(self, name) for name in MASKS}
        if self.targets is None:
            rules.check_labels(self.party, self.labels, masks, self.num_classes, self.num_nodes, self.common)
        else:
            if self.labels is not None:
                refuse(
                    self.party, "targets", "there are labels too, and a node has a label or a target", "leave one out"
                )
            rules.check_targets(self.party, self.targets, masks, self.num_nodes)
        if self.membership is not None:
            if len(self.membership) != self.num_nodes:
                problem = f"{len(self.membership)} for {self.num_nodes} nodes"
                refuse(self.party, "membership", problem, "give every node the number of its graph")
            rules.check_membership(self.party, self.membership, {"labels": self.labels, **masks}, self.edge_index)

    @classmethod
    def from_data(
        cls, party: PartyId, data: Data | HeteroData, num_classes: int | None = None, num_common: int | None = None
    ) -> PartyGraph:
        """Takes a party's graph out of PyTorch Geometric's ``Data`` or ``HeteroData`` and validates it.

        Args:
            party: the holder's name.
            data: ``x`` dense or sparse; ``edge_index``; optional ``edge_weight``, and ``edge_attr``: the weights if
                there are no others and it is one number per edge, else the edges' features; optional ``y`` (whole
                numbers: classes; floating point: targets) and masks; with ``batch``, the graph that each node is of,
                ``y`` and masks may be of graphs. Of ``HeteroData`` all this is at the common nodes, and types of edges
                are relations (``pyg_data.from_hetero``).
            num_classes: default: ``data.num_classes``, or the largest label plus one.
            num_common: C; default: all nodes.

        Raises:
            DataError: ``data`` lacks ``x`` or ``edge_index``, or breaks a rule.
        """
        told, relations, edge_relation = pyg_data.from_hetero(party, data)
        data = pyg_data.check_is_data(party, told)
        features = pyg_data.features_of(party, data)
        if not isinstance(data.edge_index, Tensor):
            refuse(party, "data.edge_index", f"{type(data.edge_index).__name__} must be a tensor", "give [2, edges]")
        membership = pyg_data.membership_of(party, data)
        data = pyg_data.expand_to_nodes(party, data, membership)
        targets = pyg_data.targets_of(party, data)
        labels = None if targets is not None else pyg_data.labels_of(party, data)
        num_classes = pyg_data.classes_of(party, data, labels) if num_classes is None else num_classes
        masks = {name: data.get(name) for name in MASKS}
        edge_weight, edge_features = pyg_data.edge_columns_of(party, data)
        graph = cls(
            party=party,
            features=features,
            edge_index=data.edge_index,
            edge_weight=edge_weight,
            edge_features=edge_features,
            labels=labels,
            num_classes=None if labels is None else num_classes,
            num_common=num_common,
            targets=targets,
            membership=membership,
            edge_relation=edge_relation,
            relations=relations,
            **masks,
        )
        graph.validate()
        return graph


def save_party(graph: PartyGraph, path: Path, ids: Iterable[Hashable] | None = None) -> None:
    """Write a party's graph to one safetensors file, whole or not at all; edges sorted by target.

    A large graph that is read again is mapped from the file. Horizontal jobs over saved graphs need ``ids`` of the
    rows. Raises ``DataError``: there is not one id per row, or one is given twice; ``RunError``: it cannot be written.
    """
    tensors = {} if ids is None else pack_ids(checked_ids(graph.party, ids, graph.num_nodes))
    if graph.features.layout == torch.sparse_csr:
        parts = graph.features.crow_indices(), graph.features.col_indices(), graph.features.values()
        tensors.update(zip(_SPARSE_PARTS, parts, strict=True))
    else:
        tensors["features"] = graph.features
    target = graph.edge_index[1]
    if not bool((target[1:] >= target[:-1]).all()):
        graph = graph.with_edges(target.argsort(stable=True))
    tensors.update({name: getattr(graph, name) for name in _TENSORS if getattr(graph, name) is not None})
    metadata = {"format": _FORMAT, "party": graph.party, "num_features": str(graph.num_features)}
    for name in _NUMBERS:
        if getattr(graph, name) is not None:
            metadata[name] = str(getattr(graph, name))
    if graph.relations:
        metadata["relations"] = rules.relations_to_json(graph.relations)
    content = save({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, metadata)
    with os_errors_as(RunError, f"{path}: the party graph cannot be written", "choose a writable path"):
        write_whole(path, content)


def load_party(path: Path) -> PartyGraph:
    """Reads and validates a party graph that ``save_party`` wrote.

    Raises ``DataError``: the file is missing, damaged, of another kind, or its content breaks a rule.
    """
    graph = _read_party(path)
    graph.validate()
    return _mark_checked(graph)


def reload_party(path: Path) -> PartyGraph:
    """Read a graph that the caller itself checked and saved, without validating it again."""
    return _mark_checked(_read_party(path))


def _mark_checked(graph: PartyGraph) -> PartyGraph:
    object.__setattr__(graph, "is_checked", True)
    return graph


def _read_party(path: Path) -> PartyGraph:
    metadata, tensors = _read_file(path)
    try:
        if "features" not in tensors:
            tensors["features"] = sparse_rows([tensors[name] for name in _SPARSE_PARTS], int(metadata["num_features"]))
        numbers: dict[str, Any] = {name: int(metadata[name]) for name in _NUMBERS if name in metadata}
        return PartyGraph(
            party=metadata["party"],
            features=tensors["features"],
            edge_index=tensors["edge_index"],
            **{name: tensors.get(name) for name in _TENSORS[1:]},
            relations=rules.relations_from_json(metadata.get("relations", "[]")),
            **numbers,
        )
    except (KeyError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: not a whole party graph ({error}); save it anew") from error


def load_party_ids(path: Path) -> list[str] | None:
    """Reads the ids of a saved party graph's rows, checked; None where it was saved without."""
    metadata, tensors = _read_file(path)
    try:
        ids = unpack_ids(tensors)
    except (KeyError, ValueError, RuntimeError) as error:
        raise DataError(f"{path}: its ids are damaged ({error}); save it anew") from error
    return None if ids is None else checked_ids(metadata.get("party", str(path)), ids, len(ids))


def saved_name(path: Path) -> PartyId:
    """Return the party name in a saved graph's file, or empty; a job may call its holder otherwise."""
    return _read_file(path, names_alone=True)[0].get("party", "")


def _read_file(path: Path, *, names_alone: bool = False) -> tuple[dict[str, str], dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: there is no such party graph; give the path of a file that save_party wrote")
    unreadable = os_errors_as(DataError, f"{path}: cannot be read as a party graph", "save it anew", SafetensorError)
    with unreadable, safe_open(path, framework="pt") as file:
        metadata: dict[str, str] = file.metadata() or {}
        if metadata.get("format") != _FORMAT:
            found = metadata.get("format")
            raise DataError(f"{path}: format is {found!r}, not {_FORMAT!r}; save it with save_party")
        tensors = {name: file.get_tensor(name) for name in (() if names_alone else file.keys())}
    allowed = {"features", *_SPARSE_PARTS, *_TENSORS, *ID_TENSORS}
    if unknown := sorted(set(tensors) - allowed):
        raise DataError(f"{path}: holds {unknown[0]!r}, which is no part of a party graph; save it anew")
    return metadata, tensors
