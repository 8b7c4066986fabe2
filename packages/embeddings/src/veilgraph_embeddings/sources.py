"""From what a job names to a world: the graph, and two attributes taken out of its features."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.build import build_graph, read_table
from veilgraph.graph.party import PartyGraph, checked_ids, load_party, load_party_ids
from veilgraph.graph.pyg_data import labels_of
from veilgraph.graph.settings import DATASETS, DataSettings
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.tables.column_settings import NumericFeatures
from veilgraph.tables.encode import fit_encoding
from veilgraph.tables.nodes import read_column
from veilgraph.tables.settings import TableSettings
from veilgraph.tables.source import Column
from veilgraph_embeddings.settings import LABEL, AttributeSettings, EmbedDataSettings, EmbedJob
from veilgraph_embeddings.world import UNKNOWN, Attribute, World, by_id, pairs_of, to_scipy

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

Ids = Iterable[Hashable] | Tensor
_PARTY: Final = "graph"
_MOST_CLASSES: Final = 100
_FEWEST_NODES: Final = 20


def world_of(job: EmbedJob, graph: PartyGraph | Data | None = None, ids: Ids | None = None) -> World:
    """The world of a job.

    Args:
        job: whose ``data`` is read where no graph is given.
        graph: in place of ``data``.
        ids: of its rows; default: ``Data.n_id``, or the rows' numbers.

    Raises:
        ConfigError: the job names no data, ``data`` is given twice, or ``ids`` beside a party file.
        DataError: the data break a rule, or an attribute is not there, or has one class, or too many.
    """
    data = job.data
    named = [name for name in ("dataset", "graph", "party") if getattr(data, name) is not None]
    if graph is not None and named:
        raise ConfigError(f"data.{named[0]}: a graph is given too; leave one of them out", key=f"data.{named[0]}")
    if graph is None and not named:
        raise ConfigError(
            "data: names no graph; give data.dataset, data.graph or data.party, or from Python graph=", key="data"
        )
    if data.party is not None and ids is not None:
        raise ConfigError(
            "ids: the tables of data.party have ids, by which their nodes pay for what is released; leave ids out",
            key="ids",
        )
    if data.party is not None:
        found = _of_tables(job, data.party)
    elif graph is None:
        found = _of_graph(job, *_named_graph(data, job.seed), ids)
    else:
        found = _of_graph(job, graph, None, ids)
    if found.num_nodes < _FEWEST_NODES:
        raise DataError(
            f"data: {found.num_nodes} nodes are too few to learn from and to attack; give at least {_FEWEST_NODES}",
            key="data",
            value=found.num_nodes,
        )
    return found


def _named_graph(data: EmbedDataSettings, seed: int) -> tuple[PartyGraph | Data, list[str] | None]:
    if data.graph is not None:
        return load_party(data.graph), load_party_ids(data.graph)
    assert data.dataset is not None
    made = {name: getattr(data, name) for name in ("block_model", "payments") if getattr(data, name) is not None}
    settings = DataSettings(dataset=data.dataset, root=data.root, **made)
    return DATASETS[data.dataset].whole(settings, seed), None


def _of_graph(job: EmbedJob, given: PartyGraph | Data, known: list[str] | None, ids: Ids | None) -> World:
    graph, labels, named = _parts(given)
    chosen = ids if ids is not None else known if known is not None else named.get("n_id")
    rows = checked_ids(graph.party, range(graph.num_nodes) if chosen is None else chosen, graph.num_nodes)
    columns = list(range(graph.num_features))
    attributes = []
    for key, asked in (("keep", job.keep), ("hide", job.hide)):
        column = asked.column
        if column == LABEL:
            attributes.append(_of_labels(key, asked, labels))
            continue
        if isinstance(column, int):
            if not 0 <= column < graph.num_features:
                raise DataError(
                    f"{key}={column}: the graph has {graph.num_features} features, numbered from 0; name one of them, "
                    f"or {LABEL}",
                    key=key,
                    value=column,
                )
            columns.remove(column)
            attributes.append(
                _of_numbers(key, asked, np.asarray(to_scipy(graph.features)[:, [column]].todense())[:, 0])
            )
        elif column in named and named[column].shape == (graph.num_nodes,):
            attributes.append(_of_numbers(key, asked, named[column].double().numpy()))
        else:
            raise DataError(
                f"{key}={column!r}: there is no such attribute in this graph; name {LABEL}, the number of a feature, "
                "or a tensor of one number per node in Data",
                key=key,
                value=column,
            )
    return World(
        tuple(rows),
        _columns(graph.features, columns),
        pairs_of(graph.edge_index, graph.num_nodes),
        attributes[0],
        attributes[1],
        tuple(map(str, columns)),
        named=chosen is not None,
    )


def _parts(given: PartyGraph | Data) -> tuple[PartyGraph, Tensor | None, dict[str, Tensor]]:
    """A checked graph, its labels, and the tensors that go by a name. No split is needed, and none is looked at."""
    if isinstance(given, PartyGraph):
        given.validate()
        return given, given.labels, {}
    from torch_geometric.data import Data  # noqa: PLC0415 - seconds to import

    graph = PartyGraph.from_data(_PARTY, Data(x=given.x, edge_index=given.edge_index))
    return (
        graph,
        labels_of(_PARTY, given),
        {name: each for name, each in given.to_dict().items() if isinstance(each, Tensor)},
    )


def _of_tables(job: EmbedJob, path: Path) -> World:
    settings, base = read_party_settings(path), path.parent
    for key, asked in (("keep", job.keep), ("hide", job.hide)):
        _check_no_feature(key, asked, settings)
    if job.method.kind.is_private:
        _check_of_each_node_alone(settings)
    table = read_table(settings, base, None, "none")
    for key, asked in (("keep", job.keep), ("hide", job.hide)):
        if asked.column in {column.name for column in table.columns}:  # by a pattern
            _refuse_feature(key, asked)
    encoding = fit_encoding(table, "none")
    built = build_graph(settings, base, table, encoding, per_node=True)
    labels = built.graph.labels
    keep, hide = (
        _of_labels(key, asked, labels, () if settings.nodes.label is None else settings.nodes.label.classes)
        if asked.column == LABEL
        else _of_column(key, asked, settings, base)
        for key, asked in (("keep", job.keep), ("hide", job.hide))
    )
    ids = tuple(built.ids.to_pylist())
    pairs = pairs_of(built.graph.edge_index, built.graph.num_nodes)
    world = World(ids, built.graph.features, pairs, keep, hide, encoding.names)
    return by_id(world) if job.method.kind.is_private else world


def _check_no_feature(key: str, asked: AttributeSettings, settings: TableSettings) -> None:
    if any(asked.column in feature.columns for feature in settings.nodes.features):
        _refuse_feature(key, asked)


def _refuse_feature(key: str, asked: AttributeSettings) -> None:
    raise DataError(
        f"{key}={asked.column!r} is among nodes.features of the party file too, which would put it into every "
        "embedding; take it out of them",
        key=key,
        value=asked.column,
    )


def _check_of_each_node_alone(settings: TableSettings) -> None:
    """Refuses what carries one node's value to others before anything is noised."""
    for feature in settings.nodes.features:
        if isinstance(feature, NumericFeatures) and feature.missing == "mean":
            raise ConfigError(
                "nodes.features: missing='mean' puts what all nodes have into one node's row, and ε counts on rows of "
                "their own; set missing to zero or to a number",
                key="nodes.features",
                value="mean",
            )


def _of_column(key: str, asked: AttributeSettings, settings: TableSettings, base: Path) -> Attribute:
    if asked.cut:
        return _of_numbers(key, asked, read_column(settings, base, str(asked.column), Column.numbers, np.nan))
    text = read_column(settings, base, str(asked.column), _to_objects, None)
    names = sorted({name for name in text if name is not None})
    places = {name: place for place, name in enumerate(names)}
    return _checked(key, asked, names, np.array([places.get(name, UNKNOWN) for name in text], np.int64))


def _to_objects(column: Column) -> np.ndarray:
    found: np.ndarray = column.text().to_numpy(zero_copy_only=False)
    return found


def _of_labels(key: str, asked: AttributeSettings, labels: Tensor | None, classes: tuple[str, ...] = ()) -> Attribute:
    if labels is None:
        raise DataError(f"{key}={LABEL}: the graph has no labels; name a column", key=key, value=LABEL)
    if asked.cut:
        raise ConfigError(f"{key}.cut: labels are classes already; leave it out", key=f"{key}.cut", value=asked.cut)
    there = max(int(labels.max()) + 1, len(classes))
    return _checked(key, asked, list(classes) or [str(each) for each in range(there)], labels.numpy().astype(np.int64))


def _of_numbers(key: str, asked: AttributeSettings, values: np.ndarray) -> Attribute:
    known = ~np.isnan(values)
    if asked.cut:
        edges = [f"{each:g}" for each in asked.cut]
        names = [f"< {edges[0]}", *(f"{low} to {high}" for low, high in pairwise(edges))]
        codes = np.where(known, np.digitize(values, asked.cut), UNKNOWN)
        return _checked(key, asked, [*names, f"≥ {edges[-1]}"], codes.astype(np.int64))
    distinct = np.unique(values[known])
    codes = np.where(known, np.searchsorted(distinct, np.where(known, values, distinct[:1].sum())), UNKNOWN)
    return _checked(key, asked, [f"{each:g}" for each in distinct], codes.astype(np.int64))


def _checked(key: str, asked: AttributeSettings, names: list[str], codes: np.ndarray) -> Attribute:
    there = len(np.unique(codes[codes != UNKNOWN]))
    if there < 2:
        raise DataError(
            f"{key}={asked.column!r} has {there} value among the nodes, and nothing is to be told apart; name another",
            key=key,
            value=asked.column,
        )
    if len(names) > _MOST_CLASSES:
        raise DataError(
            f"{key}={asked.column!r} has {len(names)} different values, and at most {_MOST_CLASSES} are classes; "
            f"divide a column of numbers with {key}.cut",
            key=key,
            value=asked.column,
        )
    return Attribute(str(asked.column), tuple(names), torch.from_numpy(codes))


def _columns(features: Tensor, columns: list[int]) -> Tensor:
    if len(columns) == features.shape[1]:
        return features
    if features.layout != torch.sparse_csr:
        return features[:, columns].contiguous()
    kept = to_scipy(features)[:, columns].tocsr()
    pointers, places, values = (torch.from_numpy(each) for each in (kept.indptr, kept.indices, kept.data))
    return torch.sparse_csr_tensor(pointers, places, values, tuple(kept.shape), check_invariants=False)
