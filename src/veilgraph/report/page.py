"""The pages of a run and of several: every section filled in and put into one HTML file that loads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from veilgraph.core import __version__
from veilgraph.core.errors import ConfigError
from veilgraph.core.text import counted, listed
from veilgraph.core.types import SERVER
from veilgraph.protocol.figures import LAST, LOSS
from veilgraph.protocol.job import JobSettings, RecordSettings, adds_noise
from veilgraph.protocol.limits import revelations
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.audit import audit
from veilgraph.report.disclosures import learned, traffic
from veilgraph.report.evaluation import evaluation_section
from veilgraph.report.ledgers import privacy
from veilgraph.report.protection import labels_suffix
from veilgraph.report.ranking import confusion, read_column_of
from veilgraph.report.run_data import RunData, read_predictions, read_run
from veilgraph.report.tables import NOTHING, Grid, Section, environment, line_chart, longest_legend, write_html
from veilgraph.report.training import best_of, is_bounded, points, progress, training
from veilgraph.runtime.store.run_directory import Record, RunDirectory

PAGE: Final = "report.html"
SEVERAL: Final = "runs.html"
MOST: Final = 6
"""Runs of one page: more lines cannot be told apart."""


def page_html(run: RunDirectory | RunData, by: str | None = None, party_file: Path | None = None) -> str:
    """A run as one HTML page, in which everything that comes from files is escaped; the same files give the same page.

    ``by`` is a column of the label holder's tables, whose groups of test nodes are judged by themselves; ``party_file``
    says where these are, by default the job does. Raises ``VeilgraphError``: a file is damaged, or the column cannot be
    had. What else is missing is said in the page.
    """
    found = read_run(run) if isinstance(run, RunDirectory) else run
    return environment().get_template("page.html.j2").render(**page_sections(found, by, party_file))


def page_sections(found: RunData, by: str | None = None, party_file: Path | None = None) -> Section:
    """Return everything that templates show of a run, by the names that they have for it; errors as ``page_html``."""
    told = read_predictions(found)
    judgement = evaluation_section(
        found, told, None if by is None else read_column_of(found.settings, told, by, party_file)
    )
    train, measures = found.settings.train, found.settings.measures
    return {
        **{"found": found, "predictions": told, "version": __version__},
        "best": "" if train.select_by == LAST else best_of(train.select_by, measures),
        "head": _head(found, judgement),
        "job": _job(found),
        "learned": learned(found),
        "training": training(found),
        "judged": judgement,
        "drift": found.drift,
        "confusion": confusion(told),
        "traffic": traffic(found),
        "privacy": privacy(found),
        "audit": audit(found),
    }


def write_page(
    run: RunDirectory | RunData, path: Path | None = None, by: str | None = None, party_file: Path | None = None
) -> Path:
    """Write ``page_html``, whole or not at all; return where: default, in the run's directory."""
    return write_html(path or run.path / PAGE, page_html(run, by, party_file))


# The head


def _head(found: RunData, judgement: Section) -> Section:
    """What was trained by whom, when and where, and what it reached, or why that is not known."""
    settings, first = found.settings, judgement["headline"]
    where = "all parties on one machine: a simulation, which protects nobody from whoever runs it"
    if found.is_part:
        where = f"the part of {listed(found.here)} in a run across organisations"
    where += f" ({found.software})" if found.software else ""
    return {
        "name": settings.name,
        "paradigm": paradigm_of(settings).title,
        "when": _when(found),
        "where": where,
        "verdict": _verdict(found),
        "reached": _headline_value(found) if first is None else first.value,
        "judged_by": settings.measures.main.title,
        "beside": [] if first is None else [f"95 %: {first.interval}", first.baseline, *judgement["beside"]],
    }


def _when(found: RunData) -> str:
    """When messages of the training, or any, were sent: the UTC date, or the first and the last."""
    times = [record.time for record in found.sent if record.work == "train"] or [record.time for record in found.sent]
    if not times:
        return "date not on record"
    first, last = min(times), max(times)
    text = f"{last:%Y-%m-%d %H:%M} UTC"
    return text if first.date() == last.date() else f"{first:%Y-%m-%d} to {text}"


def _verdict(found: RunData) -> str:
    settings = found.settings
    if found.summary is None:
        return f"{listed(settings.data.names)} train one model together. {progress(found)}"
    paradigm, nodes = paradigm_of(settings), counted(int(found.summary["nodes"]), "node")
    classes = next((facts["classes"] for facts in found.holders.values() if facts["classes"] is not None), None)
    return paradigm.words.verdict(settings, paradigm.words.predicts(settings, classes), nodes)


def _headline_value(found: RunData) -> str:
    """The test value of the job's first figure, or why it is not known here."""
    if found.summary is None:
        return "not complete" if found.metrics or not found.trained else "not known here"
    measures, private = found.settings.measures, found.settings.noise.label_release
    value = found.summary.get(f"test_{measures.main.name}")
    if value is not None:
        return f"{measures.main.shown(value)}{labels_suffix(found.settings)}"
    if found.settings.outcome.predicts_named:
        return "not known: named nodes alone are predicted"
    return f"no test {measures.of}" if private is None else f"known to {private.holder} alone"


# The job


def _job(found: RunData) -> Section:
    """The job in words, the parties' table, the file itself, and its risks.

    ``record``: what the job says of its purpose, retention and roles, or that it does not.
    """
    settings = found.settings
    paradigm = paradigm_of(settings)
    part = paradigm.words.server_part(settings) + ("" if found.deals is None else f"; certified as {found.deals}")
    record = dict(() if settings.record is None else settings.record.told())
    return {
        "sentences": paradigm.words.describe(settings),
        "reveals": list(revelations(settings).values()),
        "contributions": Grid(
            "Parties",
            "Who brings what. Edges are counted in each direction; an empty cell is not known in this directory.",
            {"party": "", "role": "some", "nodes": "", "columns": "", "edges": "", "labels": "wide"},
            (
                *(_contribution_row(found, holder) for holder in settings.data.names),
                (SERVER, part, "none", "none", "none", "none"),
            ),
        ),
        "source": (found.path / "job.yaml").read_text(encoding="utf-8", errors="replace"),
        "record": [
            (name, record.get(name, "not said: the job has none (record)")) for name in RecordSettings.model_fields
        ],
        "risks": list(_risks(settings)),
        "is_noised": adds_noise(settings),
    }


def _risks(job: JobSettings) -> Iterator[tuple[str, str]]:
    """Name what could go wrong with a job, and how: it follows from its settings, and from nothing that a run found."""
    learning, reveals = listed(job.duties.scoring), revelations(job)
    yield "Parties work together", paradigm_of(job).words.collusion(job)
    yield (
        "A party does not follow the protocol",
        "It can send wrong numbers, and so spoil the model or what others learn from it, without being noticed; what "
        "it may find out then is bounded by nothing that is said here.",
    )
    if reveals:
        yield (
            "A party makes more of what it is told",
            f"{counted(len(reveals), 'thing')} that messages of this job tell are listed above. What can be inferred "
            "from them grows with every step and every job on the same nodes; the audit says what known attacks find, "
            "and no more.",
        )
    if job.is_aligned and (job.data.from_tables or job.data.is_apart):
        yield (
            "That somebody is known is news",
            f"Each of {listed(job.data.names)} learns which of its own nodes all the others have, too: of a customer, "
            "that the others know it. Every alignment tells that anew. The server and a holder together learn for each "
            "of that holder's nodes which others have it.",
        )
    yield (
        "Predictions are wrong",
        f"{learning} may act on a person wrongly. How often, and for whom, are questions of their own: see how well it "
        "predicts, and look at groups of people (veilgraph report RUN --by COLUMN).",
    )
    bounds = "Nothing is noised, so no ε bounds that."
    if adds_noise(job):
        bounds = "ε bounds what was released with noise, and nothing else: the privacy ledger says what it is about."
    yield (
        "The model remembers",
        f"Whoever has predictions ({learning}), or asks for them, may be able to infer from them whether a node was "
        f"trained on, or something of its columns. {bounds}",
    )
    yield (
        "Files outlive their purpose",
        "A run's directory holds data, the model and predictions of the parties whose part is in it, in the clear, and "
        "nothing deletes them. What was sent to other parties is theirs to delete.",
    )
    if not job.data.is_apart:
        yield (
            "All parties are on one machine",
            "A simulation protects nobody from whoever runs it: every holder's data are in its directory.",
        )


def _contribution_row(found: RunData, holder: str) -> tuple[str, ...]:
    facts, job = found.holders.get(holder), found.settings
    part = paradigm_of(job).words.part_of(job, holder)
    if facts is None:
        size = found.table_sizes.get(holder)
        return holder, part, "" if size is None else f"{size:,}", "", "", ""
    nodes, splits = f"{facts['nodes']:,}", [count or 0 for count in facts["labels"].values()]
    if job.is_aligned and facts["common"] != facts["nodes"]:
        nodes += f", {facts['common']:,} common"
    labels = "none"
    if facts["classes"] is not None or any(count is not None for count in facts["labels"].values()):
        classes = "" if facts["classes"] is None else f"{counted(facts['classes'], 'class', 'classes')}: "
        labels = classes + "{:,} training, {:,} validation, {:,} test".format(*splits)
    edges = f"{facts['edges']:,}" if facts["edges"] else "none"
    return holder, part, nodes, f"{facts['features']:,}", edges, labels


# Several runs


def several_html(runs: Sequence[RunDirectory]) -> str:
    """Runs as one HTML page: the settings that differ, what each reached, and their curves over one another.

    It loads nothing; the same files give the same page. ``ConfigError``: more than can be told apart, or one twice.
    """
    paths = [run.path.resolve() for run in runs]
    if not 2 <= len(runs) <= MOST:
        raise ConfigError(
            f"runs: {len(runs)} are given, and one page is of 2 to {MOST}; name fewer", key="runs", value=len(runs)
        )
    if twice := next((path for path in paths if paths.count(path) > 1), None):
        raise ConfigError(f"runs: {twice} is named twice; name each run once", key="runs", value=str(twice))
    names, found = _distinct_names(paths), list(map(read_run, runs))
    told = [evaluation_section(each, read_predictions(each)) for each in found]
    titles = [row.title for each in told for row in each["rows"]]
    headings = list(dict.fromkeys((*titles, *(each.settings.measures.main.title for each in found))))
    charts = list(_curve_charts(found, names))
    numbers = dict.fromkeys((*headings, "epoch kept"), "number")
    page = {
        "names": names,
        "reached": Grid(
            "What each run reached",
            "Of the test nodes, in brackets the 95 % interval. Runs of other test nodes, or of other data, are not to "
            "be held against each other.",
            {"run": "some", **numbers, "tested on": "wide", "job": "wide"},
            tuple(_run_row(*each, headings) for each in zip(found, told, names, strict=True)),
        ),
        "differing": list(_differing_settings([each.settings.model_dump(mode="json") for each in found])),
        "charts": charts,
        "legend": longest_legend(charts),
    }
    return environment().get_template("several.html.j2").render(page=page, version=__version__)


def write_several(runs: Sequence[RunDirectory], path: Path | None = None) -> Path:
    """Write ``several_html``, whole or not at all; return where: default, beside the first run."""
    return write_html(path or runs[0].path.absolute().parent / SEVERAL, several_html(runs))


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths, all of as many parts, that tell the runs apart."""
    return next(
        names
        for depth in range(1, max(len(path.parts) for path in paths) + 1)
        if len(set(names := ["/".join(path.parts[-depth:]) for path in paths])) == len(paths)
    )


def _run_row(found: RunData, told: Section, name: str, headings: Sequence[str]) -> tuple[str, ...]:
    """The row of a run among several: name, figures by ``headings``, epoch kept, test nodes and job."""
    cells = {row.title: f"{row.value} ({row.interval})" for row in told["rows"]}
    main, summary = found.settings.measures.main, found.summary or {}
    if not cells and (value := summary.get(f"test_{main.name}")) is not None:
        cells[main.title] = f"{main.shown(value)}{labels_suffix(found.settings)}"
    kept = NOTHING if not summary.get("best_epoch") else f"{summary['best_epoch']:,}"
    tested = told["caption"] or (told["missing"] if found.summary else progress(found))
    figures = (cells.get(heading, NOTHING) for heading in headings)
    return name, *figures, kept, tested, f"{found.settings.name}; {paradigm_of(found.settings).title}"


def _differing_settings(settings: Sequence[Mapping[str, object]]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dotted keys of settings that differ between jobs, with each job's value, in the order of the jobs' files."""
    flat = [dict(dotted_settings(each)) for each in settings]
    for key in dict.fromkeys(key for each in flat for key in each):
        values = tuple(each.get(key, NOTHING) for each in flat)
        if len(set(values)) > 1:
            yield key, values


def dotted_settings(settings: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value, as text, of every setting."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from dotted_settings(value, f"{above}{key}.")
        else:
            yield above + key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _curve_charts(found: Sequence[RunData], names: Sequence[str]) -> Iterator[Section]:
    figures = {each.settings.measures.main: None for each in found}
    drawn = [("Loss", LOSS, False), *((each.title, each.name, is_bounded(each)) for each in figures)]
    for title, quantity, bounded in drawn:
        series = [(name, _curve_of(each.metrics, f"val_{quantity}")) for name, each in zip(names, found, strict=True)]
        known = [point for _, each in series for point in each]
        if known:
            heading = f"{title[:1].upper()}{title[1:]} of validation nodes"
            ends = "; ".join(f"{name} ends at {each[-1][1]:.3g}" for name, each in series if each)
            yield line_chart(
                heading,
                f"{heading} over epochs. {ends}.",
                series,
                x_label="epoch",
                x_range=(min(x for x, _ in known), max(x for x, _ in known)),
                y_range=(0.0, 1.0 if bounded else max(y for _, y in known)),
            )


def _curve_of(metrics: Sequence[Record], key: str) -> list[tuple[float, float]]:
    return [(epoch, value) for epoch, value in points(metrics, key) if math.isfinite(value)]
