"""An organisation's own tables for the terminal, as ``veilgraph data check`` shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from veilgraph.report.tables import human_bytes
from veilgraph.tables.describe import (
    CategoricalDescription,
    EdgeDescription,
    FileDescription,
    NumericDescription,
    PartyDescription,
)

_COLUMNS_SHOWN = 40
_NAMES_SHOWN = 12


def party_tables(description: PartyDescription) -> list[Table]:
    """The graph as a whole, its edges by file and relation, the feature columns and, at a label holder, the labels."""
    tables = [
        _overview(description),
        _files(description.files),
        *([_edges(description)] if description.edges else []),
        _features(description),
    ]
    if description.classes is not None and description.split_classes is not None:
        each = {name: f"{sum(of.values()):,}: {_counts(of)}" for name, of in description.split_classes.items()}
        rows = {"classes": _counts(description.classes), "unlabelled": f"{description.unlabelled:,}", **each}
        tables.append(_two_columns("Labels", rows))
    if (target := description.target) is not None:
        rows = {
            target.column: _values(target),
            "missing": f"{target.missing:,}",
            "splits": _counts(description.splits or {}),
        }
        tables.append(_two_columns("Target", rows))
    return tables


def _overview(description: PartyDescription) -> Table:
    table = Table(title=f"Party {description.party}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    smallest, median, largest = description.degrees
    table.add_row("nodes", f"{description.nodes:,}")
    if description.graphs is not None:
        table.add_row("graphs", f"{description.graphs:,}")
    table.add_row("edges (directed)", f"{sum(edges.edges for edges in description.edges):,}")
    table.add_row("degrees: smallest, median, largest", f"{smallest:,}, {median:,g}, {largest:,}")
    table.add_row("isolated nodes", f"{description.isolated:,}")
    table.add_row("features", f"{description.num_features:,}")
    layout = "sparse" if description.sparse else "dense"
    table.add_row("features in memory", f"{human_bytes(description.feature_bytes)}, {layout}")
    alone = len(description.beyond_own_row) == 0
    table.add_row("features of a node's own row alone", "yes" if alone else "no")
    if not alone:
        table.caption, table.caption_justify = "; ".join(description.beyond_own_row), "left"
    return table


def _files(files: Sequence[FileDescription]) -> Table:
    table = Table(title="Files", title_justify="left")
    table.add_column("file", overflow="fold")
    table.add_column("written with", overflow="fold")
    repeated = any(file.repeated for file in files)
    for heading in ("rows", "of no node", "nodes without a row", *(["repeated ids"] if repeated else [])):
        table.add_column(heading, justify="right")
    for file in files:
        counts = ("–" if count is None else f"{count:,}" for count in (file.unknown, file.without))
        more = [f"{file.repeated:,}"] if repeated else []
        table.add_row(str(file.file), file.form, f"{file.rows:,}", *counts, *more)
    return table


def _edges(description: PartyDescription) -> Table:
    table = Table(title="Edges", title_justify="left", caption="duplicates are kept", caption_justify="left")
    for heading in ("file", "relation", "direction"):
        table.add_column(heading, overflow="fold")
    each = [relation for edges in description.edges for relation in edges.relations]
    weighted = any(relation.mean_weight is not None for relation in each)
    bounded = any(relation.hops is not None for relation in each)
    more = [*(["mean weight"] if weighted else []), *(["hops"] if bounded else [])]
    for heading in ("rows", "dropped", "self-loops", "duplicates", *more):
        table.add_column(heading, justify="right")
    for edges in description.edges:
        _add_file(table, edges, weighted=weighted, bounded=bounded)
    return table


def _add_file(table: Table, edges: EdgeDescription, *, weighted: bool, bounded: bool) -> None:
    direction = "directed" if edges.directed else "both"
    for relation in edges.relations:
        counts = (relation.rows, relation.dropped, relation.self_loops, relation.duplicates)
        name = "–" if relation.relation is None else relation.relation
        weight = "1" if relation.mean_weight is None else f"{relation.mean_weight:.4g}"
        hops = "all" if relation.hops is None else str(relation.hops)
        shown = [*(f"{count:,}" for count in counts), *([weight] if weighted else []), *([hops] if bounded else [])]
        table.add_row(str(edges.file), name, direction, *shown)
    reasons = {"not listed": edges.other, "outside the time": edges.outside, "shared by too many": edges.crowded}
    for reason, count in reasons.items():
        if count:
            table.add_row(str(edges.file), reason, direction, f"{count:,}", f"{count:,}", "–", "–")
    table.add_section()


def _features(description: PartyDescription) -> Table:
    left_out = len(description.features) - _COLUMNS_SHOWN
    caption = f"and {left_out:,} more columns" if left_out > 0 else None
    table = Table(title="Feature columns", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("column", overflow="fold")
    table.add_column("kind")
    table.add_column("missing", justify="right")
    table.add_column("values", overflow="fold")
    for column in description.features[:_COLUMNS_SHOWN]:
        kind = "number" if isinstance(column, NumericDescription) else "category"
        table.add_row(column.column, kind, f"{column.missing:,}", _values(column))
    return table


def _values(column: NumericDescription | CategoricalDescription) -> str:
    if isinstance(column, CategoricalDescription):
        return _counts(column.counts | ({"(other)": column.other} if column.other else {}))
    if column.minimum is None:
        return "none"
    cut = f", {column.cut:,} cut to the scale" if column.cut else ""
    return f"{column.minimum:.4g} to {column.maximum:.4g}, mean {column.mean:.4g}{cut}"


def _two_columns(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for row in rows.items():
        table.add_row(*row)
    return table


def _counts(counts: Mapping[str, int]) -> str:
    listed = [f"{name} {count:,}" for name, count in counts.items()]
    left_out = len(listed) - _NAMES_SHOWN
    return ", ".join(listed[:_NAMES_SHOWN]) + (f" and {left_out:,} more" if left_out > 0 else "")
