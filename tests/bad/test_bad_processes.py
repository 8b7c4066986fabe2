"""Five hundred kinds of bad input against real processes: one error, exit code 1 or 2, nothing half-written.

In ``make nightly``; ``make test`` has a sample, by ``python -m veilgraph`` itself.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from tests import nightly
from tests.bad.arguments import argument_cases, outputs
from tests.bad.case import Case, Material
from tests.bad.drafts import choice_cases, draft_cases, reading_cases, serving_cases
from tests.bad.runs import UNFINISHED, run_cases, state_of
from tests.bad.settings import file_cases, settings_cases
from tests.bad.tables import table_cases
from tests.cli.commands import veilgraph
from tests.forks import Ended, Forks, forks
from veilgraph.runtime.store.run_directory import RunDirectory

KINDS = 500
NOTICED_S = 20.0
PRELOADED = (
    "veilgraph.cli",
    "veilgraph.runtime.launch.worker",
    "veilgraph.runtime.launch.jobs",
    "veilgraph.runtime.store.results",
    "veilgraph.deploy.project",
    "veilgraph.report.tables",
    "veilgraph.audit.audit",
    "veilgraph_embeddings.settings",
    "sklearn.metrics",
)
SORTS: dict[str, Callable[[Material], Iterator[Case]]] = {
    "settings": lambda material: settings_cases(),
    "files": lambda material: file_cases(),
    "arguments": lambda material: chain(argument_cases(), outputs()),
    "tables": table_cases,
    "runs": run_cases,
    "drafts": lambda material: draft_cases(),
    "choices": lambda material: choice_cases(),
    "reading": reading_cases,
    "serving": serving_cases,
}
"""A test for each, so that several processes share them."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("material")
    for form in ("csv", "parquet"):
        made = veilgraph("data", "export", "synthetic", "--out", folder / form, "--format", form)
        assert made.exit_code == 0, made.output
    small = ["--set", "train.epochs=2", "--set", "train.checkpoint_every=1", "--set", "model.dim=4"]
    aligned = veilgraph("train", folder / "csv" / "job.yaml", "--out", folder / "aligned", *small)
    (folder / "job.yaml").write_text("data: {dataset: synthetic}\n", encoding="utf-8")
    run = veilgraph("train", folder / "job.yaml", "--out", folder / "run", *small)
    assert (aligned.exit_code, run.exit_code) == (0, 0), aligned.output + run.output
    return Material(folder / "csv", folder / "parquet", folder / "run", folder / "aligned")


def _in_order(line: str) -> bool:
    """Whether it is said by us: a note, an error, or what a training that is gone on with has behind it."""
    return line.startswith("veilgraph: ") or " epoch " in line


def faults(case: Case, ended: Ended, folder: Path, before: dict[str, object]) -> list[str]:
    """What a process did wrong with a bad input; empty where nothing."""
    found = []
    lines = ended.stderr.splitlines()
    if ended.exit_code == 1:
        if sum(line.startswith("veilgraph: error: ") for line in lines) != 1 or not all(map(_in_order, lines)):
            found.append("not one error")
    elif ended.exit_code == 2:
        if ended.stderr.count("─ Error ─") != 1:
            found.append("not one usage error")
    else:
        found.append(f"exit code {ended.exit_code}")
    if "Traceback" in ended.output or "terminate called" in ended.output:
        found.append("a traceback")
    if ended.stdout:
        found.append("something on standard output")
    if case.says.lower() not in ended.output.lower():
        found.append(f"does not name {case.says}")
    if state_of(folder, case.changes) != before:
        found.append("changed what it was given, or left something")
    if case.out is not None and (folder / case.out).exists():
        try:
            run = RunDirectory.open(folder / case.out)
            assert run.settings
        except Exception as error:  # noqa: BLE001 - any is a fault
            found.append(f"left what is no run: {error}")
    if left := _half_written(folder):
        found.append(f"left half-written {left}")
    return found


def _half_written(folder: Path) -> list[str]:
    """What parties that were left behind had not finished, and whoever works on the run next does not remove.

    They may still write until they notice that they are: on a busy machine for a while.
    """
    deadline = time.monotonic() + NOTICED_S
    while left := [path for path in folder.rglob(".*") if UNFINISHED.fullmatch(path.name)]:
        if time.monotonic() > deadline:
            return [path.name for path in left]
        for job in {above / "job.yaml" for path in left for above in path.parents}:
            if job.is_relative_to(folder) and job.exists():
                with RunDirectory.open(job.parent).lock():
                    pass
        time.sleep(0.2)
    return []


def tried(case: Case, folder: Path, run: Callable[[list[str | Path], Path], Ended]) -> str:
    """What is wrong with how it ended, with all that it said; empty where nothing."""
    folder.mkdir(mode=0o700)
    arguments = case.prepare(folder)
    before = state_of(folder, case.changes)
    ended = run(arguments, folder)
    found = faults(case, ended, folder, before)
    said = f"\n  {ended.exit_code}: {ended.stdout[-500:]!r} {ended.stderr[-1500:]!r}"
    return f"{case.name}: {'; '.join(found)}{said}" if found else ""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with forks(tmp_path_factory.mktemp("said"), *PRELOADED) as started:
        yield started


@nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sort", SORTS)
def test_bad_input_ends_a_process_in_order(sort: str, material: Material, server: Forks, tmp_path: Path) -> None:
    """With no grace for other parties: whoever still computes is left behind, as on a busy machine."""
    wrong = []
    for number, case in enumerate(SORTS[sort](material)):
        said = tried(case, tmp_path / str(number), lambda words, folder: server.run(*words, folder=folder))
        if said:
            wrong.append(said)
    assert not wrong, f"{len(wrong)} of {number + 1}:\n" + "\n".join(wrong)


SAMPLE = ("vertical job: train.epochs=",)
MORE = (
    "nonsense",
    "predict of what is not there",
    "data check of a file that is not UTF-8",
    "train, csv nodes: a long row",
)


@pytest.mark.parametrize("sample", [SAMPLE, pytest.param(MORE, marks=nightly)], ids=["some", "more"])
def test_a_sample_of_bad_input_ends_python_in_order(sample: tuple[str, ...], tmp_path: Path) -> None:
    """The same by ``python -m veilgraph``, from its first import on."""
    tables = tmp_path / "tables"
    assert veilgraph("data", "export", "synthetic", "--out", tables).exit_code == 0
    every = [case for cases in SORTS.values() for case in cases(Material(tables, tables, tables, tables))]
    chosen = [next(case for case in every if case.name.startswith(name)) for name in sample]
    with ThreadPoolExecutor(2) as pool:
        said = pool.map(lambda case: tried(case, tmp_path / str(every.index(case)), _by_python), chosen)
    assert not list(filter(None, said))


def _by_python(arguments: list[str | Path], folder: Path) -> Ended:
    command = [sys.executable, "-m", "veilgraph", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def test_there_are_five_hundred_kinds(tmp_path: Path) -> None:
    nothing = Material(tmp_path, tmp_path, tmp_path, tmp_path)
    names = [case.name for cases in SORTS.values() for case in cases(nothing)]
    assert len(set(names)) == len(names)
    assert len(names) >= KINDS
