"""The head of the page: what was trained by whom and when, and the verdict in a few words."""

from __future__ import annotations

from dataclasses import dataclass

from veilgraph.core.words import counted, listed
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.labels import against
from veilgraph.report.page.found import Found
from veilgraph.report.page.judged import Judged
from veilgraph.report.page.training import progress


@dataclass(frozen=True)
class Head:
    """The head.

    Attributes:
        name: of the job.
        paradigm: with its meaning.
        when: the date of the run, or that it is not on record.
        where: on one machine, or whose part of a run across organisations.
        verdict: who trained what together, in one sentence.
        reached: on the test nodes, of what the job selects by; or why there is none.
        judged_by: which figure that is.
        beside: its interval, what it is held against, and further figures, a line each.
    """

    name: str
    paradigm: str
    when: str
    where: str
    verdict: str
    reached: str
    judged_by: str
    beside: tuple[str, ...]


def head(found: Found, judgement: Judged) -> Head:
    """The head of a run's page."""
    settings, first = found.settings, judgement.headline
    beside = () if first is None else (f"95 %: {first.interval}", first.baseline, *judgement.beside)
    return Head(
        settings.name,
        paradigm_of(settings).title,
        _when(found),
        _where(found),
        _verdict(found),
        _reached(found) if first is None else first.value,
        settings.measures.main.title,
        beside,
    )


def _when(found: Found) -> str:
    times = [record.time for record in found.sent if record.work == "train"] or [record.time for record in found.sent]
    if not times:
        return "date not on record"
    first, last = min(times), max(times)
    text = f"{last:%Y-%m-%d %H:%M} UTC"
    return text if first.date() == last.date() else f"{first:%Y-%m-%d} to {text}"


def _where(found: Found) -> str:
    if found.is_part:
        software = f" ({found.software})" if found.software else ""
        return f"the part of {listed(found.here)} in a run across organisations{software}"
    return "all parties on one machine: a simulation, which protects nobody from whoever runs it"


def _verdict(found: Found) -> str:
    settings = found.settings
    holders = settings.data.names
    if found.summary is None:
        return f"{listed(holders)} train one model together. {progress(found)}"
    paradigm, nodes = paradigm_of(settings), counted(int(found.summary["nodes"]), "node")
    classes = next((facts.classes for facts in found.holders.values() if facts.classes is not None), None)
    return paradigm.verdict(settings, paradigm.predicts(settings, classes), nodes)


def _reached(found: Found) -> str:
    if found.summary is None:
        return "not complete" if found.metrics or not found.trained else "not known here"
    measures = found.settings.measures
    value = found.summary.get(f"test_{measures.main.name}")
    if value is not None:
        return f"{measures.main.shown(value)}{against(found.settings)}"
    if found.settings.predicts_named:
        return "not known: named nodes alone are predicted"
    private = found.settings.label_release
    return f"no test {measures.of}" if private is None else f"known to {private.holder} alone"
