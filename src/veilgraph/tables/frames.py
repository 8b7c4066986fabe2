"""Tables in memory, pandas' or another library's: the same that a party file says of files, for jobs on one machine."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from veilgraph.core.arguments import check_flags, check_several, check_text, kind_of, wrong_type
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.core.types import PartyId
from veilgraph.tables.settings import is_pattern
from veilgraph.tables.source import Column

with deferred():  # a tenth of a second to import, and for tables alone
    import pyarrow as pa
    from pyarrow import compute as pc
    from pyarrow import parquet

_NODES: Final = "nodes.parquet"
SPLIT: Final[Mapping[str, float]] = MappingProxyType({"train": 0.6, "val": 0.2, "test": 0.2})

Features = Sequence[str | Mapping[str, object]]
"""Columns of numbers by their names, and entries as under ``nodes.features`` of a party file."""


class Tables:
    """One holder's tables in memory, matched with the other holders' by id, as files that a party file describes.

        bank = vg.Tables(customers, transfers, id="customer", source="payer", target="payee", label="fraud")
        shop = vg.Tables(buyers, id="customer", features=["age", {"columns": "city", "categories": ["Bonn", "Ulm"]}])
        run = vg.fit(vg.Job(), {"bank": bank, "shop": shop})

    A run keeps a copy in the holder's part of its directory, which predictions read. A party file says more: relations,
    several tables of edges, graphs (docs/guides/tables.md).

    Args:
        nodes: a row per node: a pandas DataFrame, a pyarrow Table, or another library's with the Arrow interface.
        edges: likewise, a row per edge; None: the holder has none.
        id: the column of ``nodes`` by which holders' nodes are matched: text or whole numbers.
        source: the column of ``edges`` with one end's id.
        target: with the other end's.
        weight: the column with finite numbers of at least 0; None: every edge weighs 1.
        directed: whether a row is an edge from ``source`` to ``target`` alone.
        unknown: what an id that is not among the nodes does: ``error``, or ``drop`` the edge.
        features: columns of numbers by name, and entries of a party file, as ``{"columns": "city", "categories": [...],
            "missing": "category"}``; default: every other column, of numbers without gaps.
        label: the column of classes, at the label holder alone; its classes are its values in order, numbers by size.
        predict: in place of ``label``: a column of numbers to predict.
        split: shares of the labelled nodes, of each class, as ``{"train": 0.6, "val": 0.2, "test": 0.2}``, the default;
            or a column that says ``train``, ``val`` or ``test``.
        limits: as ``limits`` of a party file, what jobs may reveal; default: as with graphs, whatever a job does.

    Raises:
        ConfigError: an argument is of another type.
        DataError: a table has two columns of a name, columns without one, or values of several types in one.
    """

    def __init__(
        self,
        nodes: Any,  # noqa: ANN401 - of any library
        edges: Any = None,  # noqa: ANN401
        *,
        id: str = "id",  # noqa: A002 - as in a party file
        source: str = "source",
        target: str = "target",
        weight: str | None = None,
        directed: bool = False,
        unknown: str = "error",
        features: Features | None = None,
        label: str | None = None,
        predict: str | None = None,
        split: Mapping[str, object] | str | None = None,
        limits: Mapping[str, object] | None = None,
    ) -> None:
        check_text(id=id, source=source, target=target, weight=weight, unknown=unknown, label=label, predict=predict)
        check_flags(directed=directed)
        check_several("features", features, "columns")
        if not isinstance(split, Mapping | str | None):
            raise wrong_type("split", split, "a dict of shares, or a column", "give one, or leave it out")
        if not isinstance(limits, Mapping | None):
            raise wrong_type("limits", limits, "a dict", "give one as in a party file, or leave it out")
        tables = {"nodes": _to_arrow("nodes", nodes)} | ({} if edges is None else {"edges": _to_arrow("edges", edges)})
        names = {"id": id, "label": label, "predict": predict, "split": split if isinstance(split, str) else None}
        _check_columns("nodes", tables["nodes"], names)
        if edges is not None:
            _check_columns("edges", tables["edges"], {"source": source, "target": target, "weight": weight})
        said: dict[str, object] = {"file": _NODES, "id": id, "features": _feature_entries(tables["nodes"], features)}
        if label is not None:
            tables["nodes"], classes = _restore_classes(tables["nodes"], label)
            said["label"] = {"column": label, "classes": classes}
        if predict is not None:
            said["target"] = predict
        if split is not None or label is not None or predict is not None:
            said["split"] = {"column": split} if isinstance(split, str) else dict(SPLIT if split is None else split)
        ends = {"file": "edges.parquet", "source": source, "target": target, "weight": weight}
        self._said: dict[str, object] = {
            "nodes": said,
            "edges": [] if edges is None else [{**ends, "directed": directed, "unknown": unknown}],
            **({} if limits is None else {"limits": dict(limits)}),
        }
        self._rows = {key: table.num_rows for key, table in tables.items()}
        self._files = {f"{key}.parquet": _to_parquet(key, table) for key, table in tables.items()}

    def __repr__(self) -> str:
        return f"Tables({', '.join(f'{rows:,} {key}' for key, rows in self._rows.items())})"

    def described(self, party: PartyId) -> dict[str, object]:
        """Return the content of a party file that describes the tables, not validated yet."""
        return {"party": party, **self._said}

    def accepting(self, limits: Mapping[str, object]) -> Tables:
        """Return a copy with these ``limits`` of a party file, unless the tables were made with some."""
        found = copy.copy(self)
        found._said = {"limits": dict(limits), **self._said}
        return found

    def paying(self, ledger: Path) -> Tables:
        """Return a copy with the folder of a lifetime ledger; without one, spending is counted in each run alone."""
        found = copy.copy(self)
        found._said = {**self._said, "ledger": str(ledger)}
        return found

    def write(self, folder: Path) -> None:
        """Write the tables into a private folder as the Parquet files that ``described`` names."""
        private_folder(folder)
        for name, content in self._files.items():
            write_whole(folder / name, content)


def _to_arrow(key: str, given: Any) -> pa.Table:  # noqa: ANN401
    if isinstance(given, pa.Table):
        return given
    if not hasattr(given, "columns") or not hasattr(given, "__arrow_c_stream__"):
        raise wrong_type(
            key, given, "a table", "give a pandas DataFrame, a pyarrow Table, or another library's that Arrow reads"
        )
    if strange := [name for name in given.columns if not isinstance(name, str)]:
        raise _unreadable(key, f"the name of column {strange[0]!r} is no text", "rename it")
    try:
        pandas = kind_of(given).startswith("pandas.")
        return pa.Table.from_pandas(given, preserve_index=False) if pandas else pa.table(given)
    except (pa.ArrowException, ValueError, TypeError) as error:
        why = " ".join("; ".join(map(str, error.args)).split())  # pyarrow's have two: why, and of which column
        raise _unreadable(key, why, "give each column one name and one type") from error


def _to_parquet(key: str, table: pa.Table) -> bytes:
    content = io.BytesIO()
    try:
        parquet.write_table(table, content)
    except pa.ArrowException as error:
        raise _unreadable(key, " ".join(str(error).split()), "leave that column out") from error
    return content.getvalue()


def _unreadable(key: str, why: str, way_out: str) -> DataError:
    return DataError(f"{key}: cannot be read as a table ({why}); {way_out}", code="unreadable-table", key=key)


def _check_columns(key: str, table: pa.Table, named: Mapping[str, str | None]) -> None:
    for argument, name in named.items():
        if name is not None and table.column_names.count(name) != 1:
            raise ConfigError(
                f"{argument}={name!r}: {key} has no one column of that name among {', '.join(table.column_names)}; "
                "name one (pandas' index becomes one by reset_index())",
                code="no-such-column",
                key=argument,
                value=name,
            )


def _feature_entries(table: pa.Table, features: Features | None) -> list[dict[str, object]]:
    """Return ``nodes.features`` of a party file: names as one entry of numbers, then dicts; None: all columns."""
    if features is None:
        return [{"columns": "*"}]  # every other
    for each in features:
        if not isinstance(each, str | Mapping):
            raise wrong_type("features", each, "a column (str) or an entry of a party file (dict)", "give one of these")
    numbers = [each for each in features if isinstance(each, str)]
    for name in numbers:
        if not is_pattern(name):
            _check_columns("nodes", table, {"features": name})
    others: list[dict[str, object]] = [dict(each) for each in features if isinstance(each, Mapping)]
    return [{"columns": numbers}, *others] if numbers else others


def _restore_classes(table: pa.Table, label: str) -> tuple[pa.Table, list[str]]:
    """Return the table, float labels cast to integers if all are whole, and its sorted classes, of which 2 at least."""
    values = table.column(label)
    if pa.types.is_floating(values.type):
        with suppress(pa.ArrowInvalid):
            values = pc.cast(pc.if_else(pc.is_nan(values), None, values), pa.int64())
            table = table.set_column(table.column_names.index(label), label, values)
    text = Column(Path(_NODES), label, values.combine_chunks(), np.arange(1, 1 + len(values))).text()
    found = [each for each in pc.unique(text).to_pylist() if each is not None]
    if len(found) < 2:
        raise DataError(
            f"label={label!r}: {len(found)} distinct values, and a label needs at least 2; name another column",
            code="too-few-classes",
            key="label",
            value=label,
        )
    numbers = all(each.removeprefix("-").isdecimal() for each in found)
    return table, sorted(found, key=int if numbers else str)
