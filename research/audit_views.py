"""Accuracy against leakage: what each setting of a job lets each party find out, by the audit of its real views."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from research.grid import GridProgress
from research.store import package_version
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import CLIENT, coalition_of, members_of
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import private_folder, write_whole
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.run_directory import Record
from veilgraph.samples.shipped import shipped_job, shipped_jobs, with_overrides

EXPERIMENT: Final = "audit-views"
"""Its name at the command line."""

DATASETS: Final = ("cora", "citeseer", "amazon")

_OF_DATA: Final[Mapping[str, Mapping[str, object]]] = {"amazon": {"data.feature_scaling": "standard"}}
"""Data set → what it needs in every row: columns of very different units."""
_UNBALANCED: Final = frozenset({"amazon"})
"""Where accuracy says little, and AUC is shown."""

VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, object]]]] = {
    "2 holders, collaborative, masked": ("", {"data.holders": 2}),
    "2 holders, embeddings in the clear": ("", {"data.holders": 2, "model.combine.masked": False}),
    "2 holders, secure-sum": ("", {"data.holders": 2, "model.initial.method": "secure-sum"}),
    "2 holders, individual": ("", {"data.holders": 2, "model.initial.method": "individual"}),
    "3 holders, collaborative, masked": ("", {"data.holders": 3}),
    "3 holders, individual": ("", {"data.holders": 3, "model.initial.method": "individual"}),
    "3 holders, secure-sum": ("", {"data.holders": 3, "model.initial.method": "secure-sum"}),
    "4 holders, collaborative, masked": ("", {"data.holders": 4}),
    "2 holders, R = 2": ("-rounds", {"model.rounds": 2, "model.local.hops": 5}),
    "2 holders, R = 10": ("-rounds", {}),
    "3 holders, R = 10": ("-rounds", {"data.holders": 3}),
}
"""Row → the shipped job's name after the data set's (Cora's where that has none), and what is changed in it."""


@dataclass(frozen=True)
class _Column:
    """The strongest of some attacks by some adversaries, on any holder."""

    heading: str
    attacks: tuple[str, ...]
    by: Callable[[str, JobSettings], bool]


def _server(adversary: str, job: JobSettings) -> bool:
    return adversary == SERVER


def _holder(adversary: str, job: JobSettings) -> bool:
    return adversary in job.data.names


def _server_and_holder(adversary: str, job: JobSettings) -> bool:
    members = members_of(adversary)
    return SERVER in members and len(members) == 2


def _all_but_one(adversary: str, job: JobSettings) -> bool:
    members = members_of(adversary)
    return SERVER not in members and len(members) == len(job.data.names) - 1 > 1


def _client(adversary: str, job: JobSettings) -> bool:
    return adversary == CLIENT


_COLUMNS: Final = (
    _Column("server: edges", ("link-similarity", "link-propagation"), _server),
    _Column("server: features", ("attribute",), _server),
    _Column("server: training nodes", ("membership-gradient",), _server),
    _Column("server: labels", ("label-gradient",), _server),
    _Column("holder: edges", ("link-similarity", "link-propagation"), _holder),
    _Column("holder: features", ("attribute", "reconstruction"), _holder),
    _Column("holder: labels", ("label-gradient",), _holder),
    _Column("client: edges", ("link-similarity",), _client),
    _Column("client: training nodes", ("membership-confidence", "membership-lira"), _client),
    _Column("masked messages", ("uniformity",), lambda adversary, job: True),
)
_TOGETHER: Final = (
    _Column("server and a holder: edges", ("link-similarity", "link-propagation"), _server_and_holder),
    _Column("server and a holder: features", ("attribute", "reconstruction"), _server_and_holder),
    _Column("server and a holder: labels", ("label-gradient",), _server_and_holder),
    _Column("all holders but one: edges", ("link-similarity", "link-propagation"), _all_but_one),
    _Column("all holders but one: features", ("attribute", "reconstruction"), _all_but_one),
    _Column("all holders but one: labels", ("label-gradient",), _all_but_one),
)
ATTACKS: Final = tuple(dict.fromkeys(attack for column in (*_COLUMNS, *_TOGETHER) for attack in column.attacks))


def audit_views(
    *, seeds: int, datasets: Sequence[str], rows: str | None, out: Path, progress: GridProgress, command: str
) -> str:
    """Trains every variant with views recorded, audits them, and writes ``audit-views.md``.

    What was found is kept in ``audit-views/<data set>-<row>-<seed>.json``, so that only what is missing is done again;
    the runs themselves, gigabytes of messages, are removed.

    Args:
        seeds: trainings and audits of each row; seeds 0, 1, ….
        datasets: of ``DATASETS``.
        rows: only rows with this text in their name; None: all.
        out: folder, made if absent.
        progress: called with (what is being done, audits done, audits in all).
        command: that makes the page.

    Returns:
        Markdown: test accuracy and, for each kind of adversary and secret, the highest AUC.

    Raises:
        ConfigError: no row has that name.
        VeilgraphError: ``out`` cannot be used, or a data set cannot be read.
    """
    names = [name for name in VARIANTS if rows is None or rows in name]
    if not names:
        raise ConfigError(f"rows={rows!r} is part of no row's name; they are {', '.join(map(repr, VARIANTS))}")
    cells = [(dataset, name, seed) for dataset in datasets for name in names for seed in range(seeds)]
    kept: dict[tuple[str, str], list[Record]] = {}
    for done, (dataset, name, seed) in enumerate(cells):
        progress(f"{dataset}, {name}, seed {seed}", done, len(cells))
        kept.setdefault((dataset, name), []).append(_audited(dataset, name, seed, out / EXPERIMENT))
    progress("done", len(cells), len(cells))
    text = _page(kept, seeds, command)
    try:
        write_whole(out / f"{EXPERIMENT}.md", text.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error}); choose another --out") from error
    return text


def _job(dataset: str, name: str, seed: int) -> JobSettings:
    suffix, changes = VARIANTS[name]
    name_of_job = f"{dataset}{suffix}"
    job = shipped_job(name_of_job if name_of_job in shipped_jobs() else f"cora{suffix}")
    return with_overrides(job, {"data.dataset": dataset, **_OF_DATA.get(dataset, {}), **changes, "seed": seed})


def _adversaries(job: JobSettings) -> tuple[str, ...]:
    """Each party by itself; the server with each holder; and all holders but the first, and but the last."""
    names = job.data.names
    coalitions = [(SERVER, name) for name in names] + [names[1:], names[:-1]] * (len(names) > 2)
    return (SERVER, *names, CLIENT, *map(coalition_of, coalitions))


def _audited(dataset: str, name: str, seed: int, folder: Path) -> Record:
    job = _job(dataset, name, seed)
    slug = "".join(letter if letter.isalnum() else "-" for letter in f"{dataset}-{name}-{seed}")
    path, run = folder / f"{slug}.json", folder / f"{slug}.run"
    try:
        private_folder(folder)
        if path.is_file():
            found: Record = json.loads(path.read_text(encoding="utf-8"))
            if found["hash"] == job.hash() and found["version"] == package_version():
                return found
        shutil.rmtree(run, ignore_errors=True)
        try:
            summary = train(job, run, record_views=True).summary
            result = audit(run, AuditPlan(_adversaries(job), ATTACKS, seed=seed))
        finally:
            shutil.rmtree(run, ignore_errors=True)
        found = {"hash": job.hash(), "version": package_version(), "summary": summary, "audit": result.record()}
        write_whole(path, json.dumps(found, default=str).encode())
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error}); choose another --out") from error
    return found


def _page(kept: Mapping[tuple[str, str], Sequence[Record]], seeds: int, command: str) -> str:
    lines = [*_table(kept, _COLUMNS, score=True), "", *_table(kept, _TOGETHER, score=False)]
    notes = [
        f"Mean over {seeds} seeds." if seeds > 1 else "One seed.",
        "A figure is the AUC of the strongest of the attacks in its column, over all adversaries of the kind and all "
        "targets: 0.5 is guessing, 1 certainty; in square brackets from the lowest to the highest end of the seeds' "
        "95 % intervals, in round ones the same adversary without what it saw. –: it has nothing to attack. masked "
        "messages: how well they can be told from noise. Test score: accuracy, for amazon AUC.",
        f"Made with `{command}`.",
    ]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def _table(
    kept: Mapping[tuple[str, str], Sequence[Record]], columns: Sequence[_Column], *, score: bool
) -> Iterator[str]:
    headings = ("data set", "setting", *(["test score"] * score), *(column.heading for column in columns))
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * 2}{'---:|' * (len(headings) - 2)}"
    for (dataset, name), records in kept.items():
        measure = "test_auc" if dataset in _UNBALANCED else "test_accuracy"
        scores = [f"{fmean(record['summary'][measure] for record in records):.3f}"] * score
        cells = [_cell(column, _job(dataset, name, 0), records) for column in columns]
        yield f"| {' | '.join((dataset, name, *scores, *cells))} |"


def _cell(column: _Column, job: JobSettings, records: Sequence[Record]) -> str:
    strongest = [_strongest(column, job, record["audit"]["findings"]) for record in records]
    found = [each for each in strongest if each is not None]
    if len(found) < len(records):
        return "–"
    values, without = [each["value"] for each in found], [each["without"] for each in found if each["without"]]
    text = f"{fmean(value['value'] for value in values):.3f}"
    text += f" [{min(value['low'] for value in values):.3f}, {max(value['high'] for value in values):.3f}]"
    return text + (f" ({fmean(value['value'] for value in without):.3f})" if len(without) == len(found) else "")


def _strongest(column: _Column, job: JobSettings, findings: Sequence[Record]) -> Record | None:
    fitting = [each for each in findings if each["attack"] in column.attacks and column.by(each["adversary"], job)]
    values: list[tuple[float, Any]] = [(each["value"]["value"], each) for each in fitting]
    return max(values, key=lambda pair: pair[0])[1] if values else None
