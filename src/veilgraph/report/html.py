"""Pages of HTML: the templates' environment, and where the marks of their SVG charts go.

Coordinates are in the drawing's own units, x to the right and y down, rounded to tenths. What is not finite is left
out. By hand: matplotlib's own SVG is 6 to 9 kB and 27 ms a chart, names addresses on the web and clips by ``url()``,
which a page that loads nothing must not, and has no colours for a dark screen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from veilgraph.core.arguments import argument
from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole
from veilgraph.core.text import printable_lines
from veilgraph.report.tables import percent

Point = tuple[float, float]


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
    found.filters["percent"] = percent
    return found


def _printed(value: object) -> object:
    """A value in a page: text without characters that hide, or turn the direction of others."""
    if isinstance(value, Markup):
        return Markup(printable_lines(value))  # noqa: S704 - markup already
    return printable_lines(value) if isinstance(value, str) else value


def write_html(path: Path, content: str) -> None:
    """Write a page, whole or not at all; raises ``RunError`` where it cannot be written."""
    try:
        write_whole(path, content.encode())
    except OSError as error:
        raise RunError(f"{path}: the page cannot be written ({error}); choose another {argument('out')}") from error


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    place: float
    label: str


@dataclass(frozen=True)
class Span:
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
        """Where a value goes; values outside of the axis go to its ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def span(self, value: float, low: float, high: float) -> Span:
        """Where a figure and the ends of its interval go."""
        return Span(self.place(value), self.place(low), self.place(high))

    def ticks(self, count: int) -> tuple[Tick, ...]:
        """Round numbers along the axis, at most ``count`` steps."""
        locator = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10], min_n_ticks=1)
        places = [float(value) for value in locator.tick_values(self.low, self.high)]
        step = places[1] - places[0]
        digits = next(digits for digits in range(99) if math.isclose(round(step, digits), step))
        within = (value for value in places if self.low - 1e-9 * step <= value <= self.high + 1e-9 * step)
        return tuple(Tick(self.place(value), f"{round(value, digits) + 0.0:,.{digits}f}") for value in within)


@dataclass(frozen=True)
class Line:
    """One series: its name, the points of its polyline as SVG has them, where it ends, and its place from 1."""

    name: str
    points: str
    end: Point
    place: int


@dataclass(frozen=True)
class LineChart:
    """Series over a common x; the plot's area is from (left, top) to (right, bottom)."""

    title: str
    description: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    lines: tuple[Line, ...]
    mark: Tick | None


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
) -> LineChart:
    """Draw series, name and points of each, as polylines.

    Those without points are left out, and the others look as if they were there.

    Args:
        title: of the chart.
        description: what it shows, in words, for who cannot see it.
        series: to draw.
        x_label: below the axis.
        x_range: lowest and highest x.
        y_range: lowest and highest y.
        mark: an x to be marked with a vertical line, and its label.
        size: width and height of the drawing.
        ticks: about how many an axis gets.
    """
    width, height = size
    left, right, top, bottom = 44.0, width - 12, 12.0, height - 38
    x, y = Axis(*x_range, left, right), Axis(*y_range, bottom, top)
    lines = []
    for number, (name, points) in enumerate(series, 1):
        placed = [(x.place(a), y.place(b)) for a, b in points if math.isfinite(a) and math.isfinite(b)]
        if placed:
            lines.append(Line(name, " ".join(f"{a:g},{b:g}" for a, b in placed), placed[-1], number))
    return LineChart(
        title,
        description,
        *(width, height, left, right, top, bottom),
        x_ticks=x.ticks(ticks),
        y_ticks=y.ticks(ticks),
        x_label=x_label,
        lines=tuple(lines),
        mark=None if mark is None else Tick(x.place(mark[0]), mark[1]),
    )


def longest_legend(charts: Sequence[LineChart]) -> LineChart | None:
    """The chart with the most lines, whose legend is that of all; None of no charts."""
    return max(charts, key=lambda chart: len(chart.lines), default=None)


def bar(value: float, whole: float, width: float = 100.0) -> float:
    """Length of a bar: ``width`` where the value is the whole, or more; 0 where there is no whole."""
    return 0.0 if whole <= 0 else round(width * min(value / whole, 1.0), 1)
