"""A comparison of a job, for the terminal and the page: is it worth it, how sure is that, and what is shown for it?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table
from typing_extensions import TypedDict

from veilgraph.comparison.figures import DRAWS
from veilgraph.comparison.study import ABOUT, FOUND, Number, Study
from veilgraph.comparison.ways import AS_JOB, POOLED, beside_job
from veilgraph.core import __version__
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import read_json
from veilgraph.core.text import counted
from veilgraph.protocol.figures import leak_words
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.tables import NOTHING, Axis, Grid, Section, add_row, environment, table, write_html

TITLES: Final = {"auc": "AUC", "pr_auc": "PR-AUC", "recall": "recall", "f1": "F1", "accuracy": "accuracy"}
_WIDTH, _LINE, _INSET = 400.0, 34.0, 12.0


@dataclass(frozen=True)
class Compared:
    """A comparison's directory: what it is of, and what it found."""

    path: Path
    job: JobSettings
    told: Study

    @property
    def headings(self) -> list[str]:
        """Names of the figures that are shown."""
        return shown_figures(self.told.ways[0].figures)


class _About(TypedDict):
    job: dict[str, object]


def is_comparison(path: Path) -> bool:
    """Whether a directory is a comparison's."""
    return (path / ABOUT).is_file() and not (path / "job.yaml").exists()


def read_comparison(path: Path) -> Compared:
    """Read a comparison; a ``RunError`` where it is not complete, damaged, or of an earlier version."""
    again = f"finish it with: veilgraph compare JOB.yaml --out {path}"
    file = path / FOUND
    if not file.is_file():
        raise RunError(f"{path}: this comparison is not complete; {again}", key="run", value=str(path))
    try:
        about = read_json(path / ABOUT, _About, again)
        return Compared(path, parse_job(about["job"]), read_json(file, Study, again))
    except ConfigError as error:  # of the job, as another version has it
        raise RunError(f"{path}: damaged ({error}); {again}", key="run") from error


def shown_figures(names: Iterable[str]) -> list[str]:
    """Leave out accuracy where two classes are ranked: if one is rare, it is high for always saying the other."""
    found = list(names)
    return [name for name in found if name != "accuracy" or "pr_auc" not in found]


def row_words(name: str, found: Mapping[str, float]) -> str:
    """A line with the name and the figures of one way."""
    return f"{name}: " + ", ".join(f"{TITLES[each]} {found[each]:.3f}" for each in shown_figures(found))


# Figures


def _value_text(one: Number) -> str:
    return NOTHING if one.value is None else f"{one.value:.3f}"


def _interval_text(one: Number) -> str:
    return NOTHING if one.known is None else f"{one.low:.3f} to {one.high:.3f}"


def _with_interval(one: Number) -> str:
    return f"{_value_text(one)} ({_interval_text(one)})"


def _signed(value: float | None) -> str:
    return NOTHING if value is None else f"{value:+.3f}"


def _difference_text(one: Number | None) -> str:
    return NOTHING if one is None else f"{_signed(one.value)} ({_signed(one.low)} to {_signed(one.high)})"


def _sureness(one: Number) -> str:
    """Whether the interval of a difference is above, below or around 0, in words."""
    if one.low is not None and one.low > 0:
        return "more than chance"
    if one.high is not None and one.high < 0:
        return "less, by more than chance"
    return "which may be chance: take more seeds or more test nodes"


# For the terminal


def study_table(found: Compared) -> Table:
    """Every way with its figures, and how far its AUC is above that of the label holder alone."""
    told = found.told
    said = ["In brackets: 95 % interval over test nodes and seeds; F1 is of all classes alike."]
    if "recall" in told.ways[0].figures:
        said.append(f"Recall: of {told.recall_of}, among the {100 * told.recall_at:g} % that are likeliest of it.")
    if told.over_home is not None:
        said.append("Pooled, or with lent labels: for simulations alone, as nobody may have these.")
        said.append("Sealed jobs open probabilities here, so that nodes can be ranked.")
    title = f"Is it worth it? {sum(told.test_nodes):,} test nodes, {counted(len(told.seeds), 'seed')}"
    made = table(title, (), caption=" ".join(said))
    made.add_column("way", no_wrap=True)
    for name in found.headings:
        made.add_column(TITLES[name], justify="right", no_wrap=True, min_width=len("0.000"))
    made.add_column("AUC above alone", justify="right", no_wrap=True)
    for way in told.ways:
        gain = "" if way.gain is None else _brief(way.gain["auc"])
        cells = (way.name, *(_value_text(way.figures[name]) for name in found.headings), gain)
        add_row(made, cells, "bold" if way.name == told.paradigm else None)
    return made


def _brief(one: Number) -> str:
    """A difference with its interval to two digits, for the terminal."""
    low, high = (NOTHING if end is None else f"{end:+.2f}".replace("0.", ".", 1) for end in (one.low, one.high))
    return f"{_signed(one.value)} ({low}…{high})"


def verdict(found: Compared) -> str:
    """In a sentence, whether the job finds more than its label holder's best way by itself; at home what that is."""
    told, home = found.told, found.told.best_at_home
    best = f"{home.name!r}, AUC {_value_text(home.figures['auc'])}"
    if told.over_home is None:
        return f"the best at home is {best}"
    return f"{told.paradigm}: AUC {_brief(told.over_home)} above the best at home ({best}), {_sureness(told.over_home)}"


def remarks(found: Compared) -> Iterator[str]:
    """What must be said beside the verdict: a federation above its pooled reference, and likely leaks."""
    aucs, paradigm = found.told.aucs, found.told.paradigm
    job, pooled = aucs.get(paradigm), aucs.get(POOLED)
    if job is not None and pooled is not None and job > pooled:
        what = "the better of two models that were tried" if f"{POOLED}: boosting" in aucs else "one network"
        yield (
            f"{paradigm} (AUC {job:.3f}) is above pooled ({pooled:.3f}): pooled is {what} on all data, not the best "
            "there is, so what the others bring is measured too low here."
        )
    if "recall" in found.told.ways[0].figures and (leak := leak_words(aucs)):
        yield leak


# The page


def comparison_html(found: Compared) -> str:
    """A comparison as one HTML page, which loads nothing; the same files give the same page."""
    job = found.job
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            job=job,
            title=paradigm_of(job).title,
            verdict=" ".join((_verdict_with_intervals(found), *remarks(found))),
            tiles=list(_tiles(found)),
            picture=_picture(found),
            grids=list(_grids(found)),
            tells=_revelations_by_paradigm(found),
            found=found.told,
            draws=DRAWS,
            holder=job.data.label_party,
            path=found.path.name,
            version=__version__,
        )
    )


def write_comparison(path: Path, out: Path | None = None) -> Path:
    """Write the page of the comparison in a directory, whole or not at all; return where: default, in that directory.

    Raises ``RunError``: the comparison is not complete or damaged, or the page cannot be written.
    """
    return write_html(out or path / "comparison.html", comparison_html(read_comparison(path)))


def _verdict_with_intervals(found: Compared) -> str:
    told = found.told
    home = f"{told.at_home!r}, with an AUC of {_with_interval(told.best_at_home.figures['auc'])}"
    if told.over_home is None:
        return f"The best that {found.job.data.label_party} reaches at home is {home}."
    difference, sure = _difference_text(told.over_home), _sureness(told.over_home)
    above = f"{told.paradigm}: AUC {difference} above the best at home, {sure}."
    return f"{above} The best at home is {home}."


def _tiles(found: Compared) -> Iterator[tuple[str, str, str]]:
    """(heading, figure, small print) of the page's head: AUCs, their difference, and the number of test nodes."""
    told = found.told
    for title, name in (("this job", told.paradigm), ("the best at home", told.at_home)):
        if (way := told.way(name)) is not None:
            auc = way.figures["auc"]
            yield f"Test AUC, {title}", _value_text(auc), f"95 %: {_interval_text(auc)}; {way.name}"
    if (over := told.over_home) is not None:
        yield "Difference", _signed(over.value), f"95 %: {_signed(over.low)} to {_signed(over.high)}"
    yield "Test nodes", f"{sum(told.test_nodes):,}", f"in {counted(len(told.seeds), 'seed')}"


def _grids(found: Compared) -> Iterator[Grid]:
    """Three tables: every way's figures, how far its AUC is above others', and what is shared in it."""
    told, alone = found.told, f"{found.job.data.label_party} alone"
    names = {way.name: way.name + " (this job)" * (way.name == told.paradigm) for way in told.ways}
    job = names.get(told.paradigm, "")
    yield Grid(
        "Figures of every way",
        "Of the test nodes, in brackets the 95 % interval over nodes and seeds.",
        {"way": "some", **{TITLES[name]: "number" for name in found.headings}},
        tuple((names[way.name], *(_with_interval(way.figures[name]) for name in found.headings)) for way in told.ways),
        (job,),
    )
    to_job = told.over_home is not None
    above = {"way": "some", f"above {alone}": "number"}
    rows = [[names[way.name], _difference_text(None if way.gain is None else way.gain["auc"])] for way in told.ways]
    if to_job:
        above |= {"above the job": "number", "above the job, that is": "some"}
        for row, way in zip(rows, told.ways, strict=True):
            one = None if way.to_job is None else way.to_job["auc"]
            sure = NOTHING if one is None else _sureness(one).removeprefix("which ").partition(":")[0]
            row += [_difference_text(one), sure]
    of_job = ", and above the job's" if to_job else ""
    caption = f"How far a way's AUC is above that of {alone}{of_job}; in brackets the 95 % interval of the difference."
    yield Grid("Differences of AUC", caption, above, tuple(rows), (job,))
    yield Grid(
        "What each way is, and what is shared in it",
        "What each way is, and what somebody has to show to others for it.",
        {"way": "some", "what it is": "wide", "what is shared": "wide"},
        tuple((way.name, way.about, way.shares) for way in told.ways),
        (told.paradigm,),
    )


def _revelations_by_paradigm(found: Compared) -> dict[str, list[str]]:
    """Paradigm → statements of what its job reveals, for every way in which parties train together."""
    together = {way.name for way in found.told.ways if way.shares == AS_JOB}
    jobs = (found.job, beside_job(found.job)) if together else ()
    return {
        job.paradigm: list(revelations(job).values()) for job in jobs if job is not None and job.paradigm in together
    }


def _picture(found: Compared) -> Section | None:
    """Chart of every way's AUC; ``marks``: name, y, interval, whether it is the job; ``alone``: place of the first."""
    told = found.told
    drawn = [(way, figures) for way in told.ways if (figures := way.figures["auc"].known) is not None]
    if not drawn:
        return None
    low, high = min(each[1] for _, each in drawn), max(each[2] for _, each in drawn)
    axis = Axis(low, high if high > low else low + 1e-3, _INSET, _WIDTH - _INSET)
    marks = tuple(
        (way.name, round(14 + place * _LINE, 1), axis.span(*figures), way.name == told.paradigm)
        for place, (way, figures) in enumerate(drawn)
    )
    words = "; ".join(f"{way.name} {_with_interval(way.figures['auc'])}" for way, _ in drawn)
    return {
        "description": f"Test AUC with its 95 % interval: {words}.",
        "width": _WIDTH,
        "height": len(drawn) * _LINE + 22,
        "marks": marks,
        "ticks": axis.ticks(6),
        "alone": axis.place(drawn[0][1][0]),
    }
