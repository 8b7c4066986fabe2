"""Several runs on one page: the settings that differ, what each reached, and their curves over one another."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.version import __version__
from veilgraph.protocol.figures import LOSS
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.labels import against
from veilgraph.report.page.assemble import environment, write_html
from veilgraph.report.page.charts import LineChart, Point, line_chart
from veilgraph.report.page.found import Found, find
from veilgraph.report.page.judged import Judged, judged
from veilgraph.report.page.scored import scored
from veilgraph.report.page.training import is_bounded, progress
from veilgraph.run.run_directory import RunDirectory

PAGE: Final = "runs.html"
MOST: Final = 6
"""Runs of one page: more lines cannot be told apart."""
_TEMPLATE: Final = "several.html.j2"
_NOTHING: Final = "–"


@dataclass(frozen=True)
class Reached:
    """What one run reached.

    Attributes:
        name: of its directory.
        job: its name.
        paradigm: with its meaning.
        tested: whose nodes, how many, or why there are no figures.
        figures: one for each heading.
        kept: the epoch whose model was.
    """

    name: str
    job: str
    paradigm: str
    tested: str
    figures: tuple[str, ...]
    kept: str


@dataclass(frozen=True)
class Several:
    """What the template shows.

    Attributes:
        headings: of figures.
        runs: in the order given.
        differing: dotted key → its value in each run.
        charts: of validation nodes, a line for each run.
        legend: the chart with the most lines; None without charts.
    """

    headings: tuple[str, ...]
    runs: tuple[Reached, ...]
    differing: tuple[tuple[str, tuple[str, ...]], ...]
    charts: tuple[LineChart, ...]
    legend: LineChart | None


def several_html(runs: Sequence[RunDirectory]) -> str:
    """Runs as one HTML page, which loads nothing; the same files give the same page.

    Raises:
        ConfigError: there are more than can be told apart, or one is named twice.
        VeilgraphError: a file of a run is damaged.
    """
    paths = [run.path.resolve() for run in runs]
    if not 2 <= len(runs) <= MOST:
        raise ConfigError(
            f"runs: {len(runs)} are given, and one page is of 2 to {MOST}; name fewer", key="runs", value=len(runs)
        )
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise ConfigError(f"runs: {twice} is named twice; name each run once", key="runs", value=str(twice))
    found = [find(run) for run in runs]
    page = _several(found, _names(paths))
    return environment().get_template(_TEMPLATE).render(page=page, version=__version__)


def write_several(runs: Sequence[RunDirectory], path: Path) -> None:
    """Writes the page of several runs, whole or not at all.

    Raises:
        VeilgraphError: as ``several_html``, or the page cannot be written.
    """
    write_html(path, several_html(runs))


def _names(paths: Sequence[Path]) -> list[str]:
    """The directories' own names or, where these are not different, with as many of those above them as it takes."""
    return next(
        names
        for depth in range(1, max(len(path.parts) for path in paths) + 1)
        if len(set(names := ["/".join(path.parts[-depth:]) for path in paths])) == len(paths)
    )


def _several(found: Sequence[Found], names: Sequence[str]) -> Several:
    told = [judged(each, scored(each)) for each in found]
    headings = list(dict.fromkeys(row.title for each in told for row in each.rows))
    for each in found:
        headings += [figure.title for figure in each.settings.measures.figures[:1] if figure.title not in headings]
    charts = tuple(_charts(found, names))
    return Several(
        tuple(headings),
        tuple(_reached(*each, headings) for each in zip(found, told, names, strict=True)),
        tuple(_differing([each.settings.model_dump(mode="json") for each in found])),
        charts,
        max(charts, key=lambda chart: len(chart.lines), default=None),
    )


def _reached(found: Found, told: Judged, name: str, headings: Sequence[str]) -> Reached:
    cells = {row.title: f"{row.value} ({row.interval})" for row in told.rows}
    main, summary = found.settings.measures.main, found.summary or {}
    if not cells and (value := summary.get(f"test_{main.name}")) is not None:
        cells[main.title] = f"{main.shown(value)}{against(found.settings)}"
    kept = _NOTHING if not summary.get("best_epoch") else f"{summary['best_epoch']:,}"
    tested = told.caption or (told.missing if found.summary else progress(found))
    figures = tuple(cells.get(heading, _NOTHING) for heading in headings)
    return Reached(name, found.settings.name, paradigm_of(found.settings).title, tested, figures, kept)


def _differing(settings: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dotted keys whose values are not those of all, in the order of the jobs' files."""
    flat = [dict(_flat(each)) for each in settings]
    for key in dict.fromkeys(key for each in flat for key in each):
        values = tuple(each.get(key, _NOTHING) for each in flat)
        if len(set(values)) > 1:
            yield key, values


def _flat(settings: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _charts(found: Sequence[Found], names: Sequence[str]) -> Iterator[LineChart]:
    """The validation loss, and each first figure of a job, of every run that has them."""
    figures = {each.settings.measures.main: None for each in found}
    drawn = [("Loss", LOSS, False), *((each.title, each.name, is_bounded(each)) for each in figures)]
    for title, quantity, bounded in drawn:
        series = [(name, _points(each, f"val_{quantity}")) for name, each in zip(names, found, strict=True)]
        points = [point for _, each in series for point in each]
        if points:
            heading = f"{title[:1].upper()}{title[1:]} of validation nodes"
            ends = "; ".join(f"{name} ends at {each[-1][1]:.3g}" for name, each in series if each)
            yield line_chart(
                heading,
                f"{heading} over epochs. {ends}.",
                series,
                x_label="epoch",
                x_range=(min(x for x, _ in points), max(x for x, _ in points)),
                y_range=(0.0, 1.0 if bounded else max(y for _, y in points)),
            )


def _points(found: Found, key: str) -> list[Point]:
    told = [(float(each["epoch"]), each.get(key)) for each in found.metrics]
    return [(epoch, float(value)) for epoch, value in told if value is not None and math.isfinite(value)]
