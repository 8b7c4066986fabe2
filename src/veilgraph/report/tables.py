"""Tables for the terminal and for Markdown; the templates' environment of HTML pages, and where marks of charts go.

Charts' coordinates are in the drawing's own units, x to the right and y down, rounded to tenths. What is not finite is
left out. By hand: matplotlib's own SVG is 6 to 9 kB and 27 ms a chart, names addresses on the web and clips by
``url()``, which a page that loads nothing must not, and has no colours for a dark screen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.table import Table
from rich.text import Text
from torch import Tensor

from veilgraph.core.arguments import argument
from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as, write_whole
from veilgraph.core.text import counted, human_bytes, listed, printable, printable_lines
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.costs import Costs
from veilgraph.protocol.figures import ACCURACY, CLASS_MEASURES, Measures
from veilgraph.runtime.store.run_directory import Record
from veilgraph.tables.describe import CategoricalDescription, NumericDescription, PartyDescription
from veilgraph.tables.joined import FileDescription

NOTHING: Final = "–"
_MOST_NAMED: Final = 12
_COLUMNS_SHOWN: Final = 40


def table(
    title: str | None,
    columns: Iterable[str],
    rows: Iterable[Sequence[str]] = (),
    *,
    caption: str | None = None,
    header: bool = True,
    fold: bool = False,
    bold: Callable[[Sequence[str]], bool] = lambda row: False,
) -> Table:
    """A table of plain text for the terminal; ``>`` before a heading right-aligns; ``fold`` folds long cells, not cuts
    them; rows that are ``bold`` stand out.
    """
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left", show_header=header)
    for heading in columns:
        right = heading.startswith(">")
        made.add_column(
            heading.removeprefix(">"),
            justify="right" if right else "left",
            overflow="fold" if fold and not right else "ellipsis",
        )
    for row in rows:
        add_row(made, row, "bold" if bold(row) else None)
    return made


@dataclass(frozen=True)
class Grid:
    """A table of text as a page shows it, called ``label`` by a screen reader.

    ``columns`` are heading → ``number``, or how wide its text may run at least: ``some``, ``wide`` or ``""``; the first
    cell names a row, and those ``chosen`` stand out.
    """

    label: str
    caption: str
    columns: Mapping[str, str]
    rows: tuple[Sequence[str], ...]
    chosen: tuple[str, ...] = ()


def add_row(to: Table, cells: Iterable[str], style: str | None = None) -> None:
    """Add a row of plain text to a terminal table; markup in it is not read."""
    to.add_row(*map(Text, cells), style=style)


def percent(share: float | None) -> str:
    """A share in [0, 1] as a percentage; a dash where there is none."""
    return NOTHING if share is None else f"{100 * share:.1f} %"


def run_table(summary: Record, measures: Measures = CLASS_MEASURES, judge: PartyId = "") -> Table:
    """Terminal table of a run's summary: best epoch, figures, seconds per step and bytes sent.

    ``judge``: the holder whose own nodes alone the figures are of.
    """
    main = measures.main
    if ACCURACY in measures.figures and summary.get(f"test_{main.name}") is None:
        main = ACCURACY  # nothing is ranked where classes alone are opened
    title = f"Result on {judge}'s own nodes" if judge else "Result"
    found = table(title, ("", ">"), [("best epoch", str(summary["best_epoch"]))], header=False)
    for split, title in (("val", "validation"), ("test", "test")):
        found.add_row(f"{title} {main.title}", main.shown(summary.get(f"{split}_{main.name}")))
    if alone := summary.get("without_releases"):
        found.add_row("test accuracy without what was released (ε → 0)", ACCURACY.shown(alone["test_accuracy"]))
    if (stacked := summary.get("stacked")) is not None:
        found.add_row("own edges added to margins at home", "yes" if stacked else "no, they add nothing")
    for figure in (each for each in measures.figures if each != main):
        if (value := summary.get(f"test_{figure.name}")) is not None:  # AUC is undefined where test nodes lack a class
            found.add_row(f"test {figure.title}", figure.shown(value) if figure.is_share else f"{value:.3f}")
    found.add_row("seconds per step", f"{summary['seconds_per_step']:.3f}", end_section=True)
    since = f" since epoch {summary['started_at']}" if summary["started_at"] else ""  # only a resumed run's own bytes
    for party, count in summary["sent_bytes"].items():
        add_row(found, (f"sent by {party}{since}", human_bytes(count)))
    return found


def comparison_table(
    summaries: Mapping[str, Record], caption: str | None = None, measures: Measures = CLASS_MEASURES
) -> Table:
    """Several trainings of one task side by side, by name; the federated one is set in bold."""
    main = measures.main
    columns = ("training", f">test {main.title}", ">validation", ">best epoch", ">seconds/step")
    rows = (
        (
            name,
            *(main.shown(each.get(f"{split}_{main.name}")) for split in ("test", "val")),
            str(each["best_epoch"]),
            f"{each['seconds_per_step']:.3f}",
        )
        for name, each in summaries.items()
    )
    return table("Comparison", columns, rows, caption=caption, bold=lambda row: "sent_bytes" in summaries[row[0]])


def traffic_table(sent_bytes: Mapping[PartyId, int]) -> Table:
    """Bytes sent by each party over a whole run."""
    return table("Traffic", ("party", ">sent"), ((party, human_bytes(count)) for party, count in sent_bytes.items()))


def data_table(graphs: Sequence[PartyGraph], *, aligned: bool = True) -> Table:
    """Terminal table of ``data_facts``, a column for each holder; ``aligned``: whether row v is one node for all."""
    facts = data_facts(graphs, aligned=aligned)
    columns = [dict(_data_rows(each)) for each in facts]
    headings = dict.fromkeys(heading for column in columns for heading in column)
    rows = ((heading, *(column.get(heading, NOTHING) for column in columns)) for heading in headings)
    return table("Data", ("", *(f">{each['party']}" for each in facts)), rows)


def data_facts(graphs: Sequence[PartyGraph], *, aligned: bool = True) -> list[Record]:
    """A record per holder of what ``data_table`` shows: nodes, edges, features, degrees, classes and label counts."""
    found: list[Record] = []
    for graph in graphs:
        # Degrees are counted here, whatever the weights: an edge of weight 0 still joins two nodes.
        degrees = graph.edge_index[1].bincount(minlength=graph.num_nodes)
        nodes = graph.num_nodes if aligned else graph.common
        masks = {split: getattr(graph, f"{split}_mask") for split in ("train", "val", "test")}
        found.append(
            {
                "party": graph.party,
                "nodes": nodes,
                "of_others": graph.num_nodes - nodes,
                "common": graph.common if aligned else None,
                "edges": graph.num_edges,
                "features": graph.num_features,
                "smallest_degree": int(degrees.min()) if len(degrees) else None,
                "largest_degree": int(degrees.max()) if len(degrees) else None,
                "isolated": int((degrees[:nodes] == 0).sum()),
                "classes": graph.num_classes,
                "labels": {split: None if mask is None else int(mask.sum()) for split, mask in masks.items()},
                "labels_by_class": {split: _label_counts(graph, mask) for split, mask in masks.items()},
            }
        )
    return found


def _data_rows(facts: Record) -> Iterator[tuple[str, str]]:
    yield "nodes", f"{facts['nodes']:,}"
    if facts["common"] is not None:
        yield "of them common", f"{facts['common']:,}"
    if facts["of_others"]:
        yield "others' nodes", f"{facts['of_others']:,}"
    yield "edges (directed)", f"{facts['edges']:,}"
    yield "features", f"{facts['features']:,}"
    smallest, largest = facts["smallest_degree"], facts["largest_degree"]
    yield "degrees", NOTHING if smallest is None else f"{smallest} to {largest}"
    yield "isolated nodes", f"{facts['isolated']:,}"
    yield "classes", NOTHING if facts["classes"] is None else str(facts["classes"])
    for split, count in facts["labels"].items():
        counts = facts["labels_by_class"][split]
        each = ", ".join(f"{count:,}" for count in counts[:_MOST_NAMED]) + (", …" * (len(counts) > _MOST_NAMED))
        yield f"{split} labels", NOTHING if count is None else f"{count:,}" + (f" ({each})" if each else "")


def _label_counts(graph: PartyGraph, mask: Tensor | None) -> list[int]:
    if graph.labels is None or mask is None:
        return []
    labels = graph.labels[mask]
    counts: list[int] = labels[labels >= 0].bincount(minlength=graph.num_classes or 0).tolist()
    return counts


def party_tables(description: PartyDescription) -> list[Table]:
    """Tables of a party's graph, its files, edges by relation, feature columns and, if any, labels and target."""
    tables = [
        _overview_table(description),
        _files_table(description.files),
        *([_edges_table(description)] if description.edges else []),
        _features_table(description),
    ]
    if description.classes is not None and description.split_classes is not None:
        each = {name: f"{sum(of.values()):,}: {_count_text(of)}" for name, of in description.split_classes.items()}
        rows = {"classes": _count_text(description.classes), "unlabelled": f"{description.unlabelled:,}", **each}
        tables.append(table("Labels", ("", ""), rows.items(), header=False, fold=True))
    if (target := description.target) is not None:
        rows = {
            target.column: _value_text(target),
            "missing": f"{target.missing:,}",
            "splits": _count_text(description.splits or {}),
        }
        tables.append(table("Target", ("", ""), rows.items(), header=False, fold=True))
    return tables


def _overview_table(description: PartyDescription) -> Table:
    smallest, median, largest = description.degrees
    layout = "sparse" if description.sparse else "dense"
    rows = {
        "nodes": f"{description.nodes:,}",
        **({} if description.graphs is None else {"graphs": f"{description.graphs:,}"}),
        "edges (directed)": f"{sum(edges.edges for edges in description.edges):,}",
        "degrees: smallest, median, largest": f"{smallest:,}, {median:,g}, {largest:,}",
        "isolated nodes": f"{description.isolated:,}",
        "features": f"{description.num_features:,}",
        "features in memory": f"{human_bytes(description.feature_bytes)}, {layout}",
        "features of a node's own row alone": "no" if description.beyond_own_row else "yes",
    }
    caption = "; ".join(description.beyond_own_row) or None
    return table(f"Party {description.party}", ("", ">"), rows.items(), caption=caption, header=False)


def _files_table(files: Sequence[FileDescription]) -> Table:
    repeated = any(file.repeated for file in files)
    columns = ("file", "written with", ">rows", ">of no node", ">nodes without a row")
    found = table("Files", (*columns, *([">repeated ids"] if repeated else [])), fold=True)
    for file in files:
        counts = (NOTHING if count is None else f"{count:,}" for count in (file.unknown, file.without))
        more = [f"{file.repeated:,}"] if repeated else []
        add_row(found, (str(file.file), file.form, f"{file.rows:,}", *counts, *more))
    return found


_ACROSS: Final = "of these to others' nodes"
_DUPLICATES: Final = "duplicates join two nodes that are joined already: each is a further edge (paradigm union: none)"


def _edges_table(description: PartyDescription) -> Table:
    each = [relation for edges in description.edges for relation in edges.relations]
    weighted = any(relation.mean_weight is not None for relation in each)
    bounded = any(relation.hops is not None for relation in each)
    columns = ("file", "relation", "direction", ">rows", ">dropped", ">self-loops", ">duplicates")
    more = [*([">mean weight"] if weighted else []), *([">hops"] if bounded else [])]
    found = table("Edges", (*columns, *more), caption=_DUPLICATES, fold=True)
    for edges in description.edges:
        direction = "directed" if edges.directed else "both"
        for relation in edges.relations:
            counts = (relation.rows, relation.dropped, relation.self_loops, relation.duplicates)
            name = NOTHING if relation.relation is None else relation.relation
            weight = "1" if relation.mean_weight is None else f"{relation.mean_weight:.4g}"
            hops = "all" if relation.hops is None else str(relation.hops)
            shown = [*(f"{count:,}" for count in counts), *([weight] if weighted else []), *([hops] if bounded else [])]
            add_row(found, (str(edges.file), name, direction, *shown))
        reasons = {"not listed": edges.other, "outside the time": edges.outside}
        for reason, count in {**reasons, _ACROSS: edges.across}.items():
            if count:
                shown = [f"{count:,}", NOTHING if reason == _ACROSS else f"{count:,}", NOTHING, NOTHING]
                add_row(found, (str(edges.file), reason, direction, *shown))
        found.add_section()
    return found


def _features_table(description: PartyDescription) -> Table:
    left_out = len(description.features) - _COLUMNS_SHOWN
    caption = f"and {left_out:,} more columns" if left_out > 0 else None
    found = table("Feature columns", ("column", "kind", ">missing", "values"), caption=caption, fold=True)
    for column in description.features[:_COLUMNS_SHOWN]:
        kind = "number" if isinstance(column, NumericDescription) else "category"
        add_row(found, (column.column, kind, f"{column.missing:,}", _value_text(column)))
    return found


def _value_text(column: NumericDescription | CategoricalDescription) -> str:
    if isinstance(column, CategoricalDescription):
        return _count_text(column.counts | ({"(other)": column.other} if column.other else {}))
    if column.minimum is None:
        return "none"
    cut = f", {column.cut:,} cut to the scale" if column.cut else ""
    return f"{column.minimum:.4g} to {column.maximum:.4g}, mean {column.mean:.4g}{cut}"


def _count_text(counts: Mapping[str, int]) -> str:
    words = [f"{name} {count:,}" for name, count in counts.items()]
    left_out = len(words) - _MOST_NAMED
    return ", ".join(words[:_MOST_NAMED]) + (f" and {left_out:,} more" if left_out > 0 else "")


def will_send(costs: Costs) -> str:
    """In a sentence: what each party of a job sends in all."""
    alike: dict[int, list[PartyId]] = {}
    for party, count in costs.sent().items():
        alike.setdefault(count, []).append(party)
    (first, most), *others = [
        (_party_names(parties), human_bytes(count) + (" each" if len(parties) > 1 else ""))
        for count, parties in alike.items()
    ]
    words = ", ".join([f"{first} will send about {most}", *(f"{names} {count}" for names, count in others)])
    return f"{words} beside hellos and alignment (veilgraph check --costs: stage by stage)"


def _party_names(parties: Sequence[PartyId]) -> str:
    return listed(parties) if len(parties) <= 4 else f"{parties[0]} and {len(parties) - 1} other holders"


def costs_table(costs: Costs) -> Table:
    """Stages by parties, those in one column that send and hold as much: rounds, bytes sent, and held at once."""
    alike: dict[tuple[int, ...], list[PartyId]] = {}
    for party in costs.sent():
        counts = (*(stage.sent.get(party, 0) for stage in costs.stages), costs.memory.get(party, 0))
        alike.setdefault(counts, []).append(party)
    names = (f">{_party_names(parties)}{', each' * (len(parties) > 1)}" for parties in alike.values())
    found = table("What it will send", ("stage", ">rounds", *names))
    *stages, memory = ([human_bytes(count) for count in counts] for counts in zip(*alike, strict=True))
    for stage, sent in zip(costs.stages, stages, strict=True):
        add_row(found, (stage.name, f"{stage.rounds:,}", *sent))
    found.add_section()
    add_row(found, ("in all", f"{costs.rounds:,}", *(human_bytes(sum(counts[:-1])) for counts in alike)))
    if costs.memory:
        add_row(found, ("memory, about", "", *memory))
    return found


_MARKUP: Final = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])|^[-+=#]|(?<=^\d)[.)](?= )|(?<=^\d\d)[.)](?= )")
_HTML: Final = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


def markdown(value: object) -> str:
    """Return a value as one line of Markdown in which nothing is markup, HTML, or the end of a table's cell."""
    said = "; ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
    text = _MARKUP.sub(lambda found: f"\\{found[0]}", printable(" ".join(said.split())))
    return text.translate(_HTML) or "none recorded"


def markdown_table(columns: str, rows: Iterable[Sequence[object]], otherwise: str = "None is recorded.") -> str:
    """Return a Markdown table under comma-separated headings, or the sentence ``otherwise`` where there is no row."""
    head, *lines = ([*map(markdown, row)] for row in (columns.split(", "), *rows))
    body = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in body) if lines else markdown(otherwise)


def markdown_list(*values: object) -> str:
    """Return a Markdown list, an item for each value, or a sentence where there is none."""
    return "\n".join(f"- {markdown(value)}" for value in values) or "None is recorded."


Point = tuple[float, float]
Section = dict[str, Any]
"""What a template shows, by the names that it has for that."""


@cache
def environment() -> Environment:
    """The environment of all templates; what is put into them is escaped."""
    found = Environment(
        loader=PackageLoader("veilgraph.report"),
        autoescape=True,
        finalize=_printed,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {"percent": percent, "counted": counted, "listed": listed}
    return found


def _printed(value: object) -> object:
    """A value as a page shows it: text without invisible characters and those that turn the writing direction."""
    if isinstance(value, Markup):
        return Markup(printable_lines(value))  # noqa: S704 - markup already
    return printable_lines(value) if isinstance(value, str) else value


def write_html(path: Path, content: str) -> Path:
    """Write a page, whole or not at all, and return where; raises ``RunError`` where it cannot be written."""
    with os_errors_as(RunError, f"{path}: the page cannot be written", f"choose another {argument('out')}"):
        write_whole(path, content.encode())
    return path


class Tick(NamedTuple):
    """A labelled place on an axis."""

    place: float
    label: str


class Span(NamedTuple):
    """A figure with its interval on an axis."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Axis:
    """A linear scale from data to a drawing: ``low`` goes to ``start`` and ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __post_init__(self) -> None:
        if not self.high > self.low:
            object.__setattr__(self, "high", self.low + 1)

    def place(self, value: float) -> float:
        """The drawing coordinate of a value; values outside of the axis go to its ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def span(self, value: float, low: float, high: float) -> Span:
        """The drawing coordinates of a figure and of the ends of its interval."""
        return Span(self.place(value), self.place(low), self.place(high))

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """Round numbers along the axis, at most ``count`` steps."""
        from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - slow to import, and tables do without

        locator = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)
        places = [float(value) for value in locator.tick_values(self.low, self.high)]
        step = places[1] - places[0]
        digits = next(digits for digits in range(99) if math.isclose(round(step, digits), step))
        within = (value for value in places if self.low - 1e-9 * step <= value <= self.high + 1e-9 * step)
        return tuple(Tick(self.place(value), f"{round(value, digits) + 0.0:,.{digits}f}") for value in within)


class Line(NamedTuple):
    """One series: its name, the points of its polyline as SVG has them, where it ends, and its place from 1."""

    name: str
    points: str
    end: Point
    place: int


def line_chart(
    title: str,
    description: str,
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x_label: str,
    x_range: Point,
    y_range: Point,
    mark: tuple[float, str] | None = None,
    size: tuple[float, float] = (400, 240),
    ticks: int = 6,
) -> Section:
    """Draw series, name and points of each, as polylines; ``description`` says it for who cannot see it.

    Those without points are left out; the plot's area is from (left, top) to (right, bottom). ``mark``: an x with a
    vertical line, and its label; ``ticks``: about how many an axis gets.
    """
    width, height = size
    left, right, top, bottom = 44.0, width - 12, 12.0, height - 38
    x, y = Axis(*x_range, left, right), Axis(*y_range, bottom, top)
    lines = []
    for number, (name, points) in enumerate(series, 1):
        placed = [(x.place(a), y.place(b)) for a, b in points if math.isfinite(a) and math.isfinite(b)]
        if placed:
            lines.append(Line(name, " ".join(f"{a:g},{b:g}" for a, b in placed), placed[-1], number))
    return {
        "title": title,
        "description": description,
        **{"width": width, "height": height, "left": left, "right": right, "top": top, "bottom": bottom},
        "x_ticks": x.ticks(ticks),
        "y_ticks": y.ticks(ticks),
        "x_label": x_label,
        "lines": lines,
        "mark": None if mark is None else Tick(x.place(mark[0]), mark[1]),
    }


def longest_legend(charts: Sequence[Section]) -> Section | None:
    """The chart with the most lines, whose legend is that of all; None of no charts."""
    return max(charts, key=lambda chart: len(chart["lines"]), default=None)


def bar(value: float, whole: float) -> float:
    """Length of a bar in percent: 100 where the value is the whole, or more; 0 where there is no whole."""
    return 0.0 if whole <= 0 else round(100 * min(value / whole, 1.0), 1)
