"""The page of a comparison: whether a job is worth it, how sure that is, and what each way has somebody show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veilgraph.comparison.figures import DRAWS
from veilgraph.comparison.ways import AS_JOB, beside_job
from veilgraph.core.version import __version__
from veilgraph.core.words import counted
from veilgraph.protocol.figures import leak_words
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.comparison import TITLES, above_pooled, known, shown_figures
from veilgraph.report.page.assemble import environment, write_html
from veilgraph.report.page.charts import Axis, Span, Tick, axis_ticks, span
from veilgraph.report.page.comparison_file import Compared, Number, Way, read_comparison

PAGE: Final = "comparison.html"
_TEMPLATE: Final = "comparison.html.j2"
_WIDTH, _LINE, _INSET = 400.0, 34.0, 12.0
_LONGEST: Final = 44
"""Characters of a name in the picture."""


@dataclass(frozen=True)
class Mark:
    """A way in the picture: its name at ``y``, its figure below it."""

    name: str
    y: float
    span: Span
    is_job: bool


@dataclass(frozen=True)
class Picture:
    """Every way's AUC with its interval; ``alone``: where the label holder's network alone is."""

    description: str
    width: float
    height: float
    marks: tuple[Mark, ...]
    ticks: tuple[Tick, ...]
    alone: float


@dataclass(frozen=True)
class Line:
    """A row of the tables: a way with its figures, and how far its AUC is from others'."""

    name: str
    is_job: bool
    about: str
    shares: str
    figures: tuple[str, ...]
    above_alone: str
    above_job: str
    known: str


@dataclass(frozen=True)
class Page:
    """What the template shows.

    Attributes:
        name: of the job.
        title: of its paradigm.
        verdict: in a sentence.
        tiles: name, figure and what is beside it.
        headings: of the figures.
        lines: a way each, the label holder's own first.
        picture: None where no AUC is defined.
        tells: of what is trained together: its name, and what its messages tell.
        measured: how it was, in sentences.
        source: the job, as it was compared.
        holder: that has the labels.
        at_home: whether nothing but its own was compared.
    """

    name: str
    title: str
    verdict: str
    tiles: tuple[tuple[str, str, str], ...]
    headings: tuple[str, ...]
    lines: tuple[Line, ...]
    picture: Picture | None
    tells: tuple[tuple[str, tuple[str, ...]], ...]
    measured: tuple[str, ...]
    source: str
    holder: str
    at_home: bool


def comparison_html(found: Compared) -> str:
    """A comparison as one HTML page, which loads nothing; the same files give the same page."""
    template = environment().get_template(_TEMPLATE)
    return template.render(page=_page(found), path=found.path.name, version=__version__)


def write_comparison(path: Path, out: Path | None = None) -> Path:
    """Writes the page of the comparison in a directory, whole or not at all; returns where.

    Args:
        path: the directory.
        out: the page; default: ``comparison.html`` there.

    Raises:
        RunError: the comparison is not complete or damaged, or the page cannot be written.
    """
    page = out or path / PAGE
    write_html(page, comparison_html(read_comparison(path)))
    return page


def _page(found: Compared) -> Page:
    told, job = found.told, found.job
    return Page(
        job.name,
        paradigm_of(job).title,
        _verdict(found),
        _tiles(found),
        tuple(TITLES[name] for name in shown_figures(told.ways[0].figures)),
        tuple(_line(way, found) for way in told.ways),
        _picture(found),
        _tells(found),
        _measured(found),
        job.model_dump_json(indent=1),
        job.data.label_party,
        told.over_home is None,
    )


def _verdict(found: Compared) -> str:
    aucs = {way.name: way.figures["auc"].value for way in found.told.ways}
    return " ".join(filter(None, (_worth(found), above_pooled(found.told.paradigm, aucs), leak_words(aucs))))


def _worth(found: Compared) -> str:
    told = found.told
    best = told.way(told.at_home)
    assert best is not None
    home = f"{told.at_home!r}, with an AUC of {_figure(best.figures['auc'])}"
    if told.over_home is None:
        return f"The best that {found.job.data.label_party} reaches at home is {home}."
    above, sure = _signed(told.over_home), known(*_interval(told.over_home))
    return f"{told.paradigm}: AUC {above} above the best at home, {sure}. The best at home is {home}."


def _tiles(found: Compared) -> tuple[tuple[str, str, str], ...]:
    told = found.told
    tiles = []
    for title, name in (("this job", told.paradigm), ("the best at home", told.at_home)):
        if (way := told.way(name)) is not None:
            auc = way.figures["auc"]
            tiles.append((f"Test AUC, {title}", _value(auc), f"95 %: {_between(auc)}; {way.name}"))
    if told.over_home is not None:
        tiles.append(("Difference", _sign(told.over_home.value), f"95 %: {_ends(told.over_home)}"))
    tiles.append(("Test nodes", f"{sum(told.test_nodes):,}", f"in {counted(len(told.seeds), 'seed')}"))
    return tuple(tiles)


def _line(way: Way, found: Compared) -> Line:
    gain = None if way.gain is None else way.gain["auc"]
    to_job = None if way.to_job is None else way.to_job["auc"]
    return Line(
        way.name,
        way.name == found.told.paradigm,
        way.about,
        way.shares,
        tuple(_figure(way.figures[name]) for name in shown_figures(way.figures)),
        "" if gain is None else _signed(gain),
        "" if to_job is None else _signed(to_job),
        "" if to_job is None else _short(to_job),
    )


def _tells(found: Compared) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the messages of every way tell in which parties train together."""
    together = {way.name for way in found.told.ways if way.shares == AS_JOB}
    jobs = (found.job, beside_job(found.job)) if together else ()
    return tuple(
        (job.paradigm, tuple(revelations(job).values())) for job in jobs if job is not None and job.paradigm in together
    )


def _measured(found: Compared) -> tuple[str, ...]:
    told, holder = found.told, found.job.data.label_party
    tested = sorted(set(told.test_nodes))
    nodes = f"{tested[0]:,}" if len(tested) == 1 else f"{tested[0]:,} to {tested[-1]:,}"
    whose = "all" if told.over_home is None else "the common"
    seeds = f"{counted(len(told.seeds), 'seed')}: {', '.join(map(str, told.seeds))}"
    said = [
        f"Every way is judged on the same test nodes, {nodes} of {holder}'s, in each of {seeds}. They are among "
        f"{whose} nodes, and no way was trained on them or chosen by them.",
        f"Intervals are of 95 %, by {DRAWS} bootstrap samples of seeds and, within each, of test nodes. All ways are "
        "judged on the same samples, so the interval of a difference is that of the difference.",
        "The best at home is chosen by the very test nodes, which favours staying at home.",
        "F1 is the mean over classes. Plain models are scikit-learn's: of three strengths each, the one with the "
        "lowest loss on validation nodes.",
    ]
    if len(told.seeds) == 1:
        said.insert(2, "With one seed the intervals say nothing of how much another training would differ.")
    if "recall" in told.ways[0].figures:
        said.append(
            f"Recall is of {told.recall_of}, "
            f"among the {100 * told.recall_at:g} % of the nodes that are likeliest of it."
        )
    if told.over_home is not None:
        said.append(
            "This is a study on one machine that had everybody's data: pooled data and lent labels are nobody's to "
            "have, a sealed job opens probabilities here so that nodes can be ranked, and no privacy ledger was "
            "charged."
        )
    return tuple(said)


def _picture(found: Compared) -> Picture | None:
    told = found.told
    drawn = [(way, figures) for way in told.ways if (figures := _numbers(way.figures["auc"])) is not None]
    if not drawn:
        return None
    low, high = min(each[1] for _, each in drawn), max(each[2] for _, each in drawn)
    axis = Axis(low, high if high > low else low + 1e-3, _INSET, _WIDTH - _INSET)
    marks = tuple(
        Mark(_fitting(way.name), round(14 + place * _LINE, 1), span(axis, figures), way.name == told.paradigm)
        for place, (way, figures) in enumerate(drawn)
    )
    words = "; ".join(f"{way.name} {_figure(way.figures['auc'])}" for way, _ in drawn)
    first = drawn[0][1][0]
    return Picture(
        f"Test AUC with its 95 % interval: {words}.",
        _WIDTH,
        len(drawn) * _LINE + 22,
        marks,
        axis_ticks(axis, 6),
        axis.place(first),
    )


def _fitting(name: str) -> str:
    """A name that the picture is wide enough for; the tables have it whole."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _numbers(one: Number) -> tuple[float, float, float] | None:
    """Value, low and high; None where one is undefined."""
    if one.value is None or one.low is None or one.high is None:
        return None
    return one.value, one.low, one.high


def _value(one: Number) -> str:
    return "–" if one.value is None else f"{one.value:.3f}"


def _between(one: Number) -> str:
    told = _numbers(one)
    return "–" if told is None else f"{told[1]:.3f} to {told[2]:.3f}"


def _figure(one: Number) -> str:
    return f"{_value(one)} ({_between(one)})"


def _sign(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}"


def _ends(one: Number) -> str:
    return f"{_sign(one.low)} to {_sign(one.high)}"


def _signed(one: Number) -> str:
    return f"{_sign(one.value)} ({_ends(one)})"


def _short(one: Number) -> str:
    return known(*_interval(one)).removeprefix("which ").partition(":")[0]


def _interval(one: Number) -> tuple[float, float]:
    return (math.nan, math.nan) if one.low is None or one.high is None else (one.low, one.high)
