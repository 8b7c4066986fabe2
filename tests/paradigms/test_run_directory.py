"""A run's files while others write them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.core.files import run_errors
from veilgraph.link.factory import MemoryHub
from veilgraph.link.view import RecordedLink
from veilgraph.privacy.ledger_files import Marks
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.session.preparation import kept_identity, read_drift
from veilgraph.runtime.store.lifetime import read_place
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.runtime.store.session_log import TrafficLog

HUB = MemoryHub(("A", "B"), 1)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"dataset": "synthetic"}}))
    (run.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch" 2}\n')
    with refused(RunError, key=tmp_path / "run" / "metrics.jsonl"):
        run.metrics()


@pytest.mark.parametrize("content", ["", "[]", "[[1]]", "null", "7", '"x"', '{"other": {}}', '{"identity": []}'])
def test_a_kept_file_of_another_form_is_damaged_whatever_it_is(tmp_path: Path, content: str) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"dataset": "synthetic"}}))
    store = run.party("A")
    readers: dict[Path, Callable[[], object]] = {
        store.path / "alignment.json": lambda: kept_identity(store),
        store.path / "checkpoints" / "common.json": lambda: store.checkpoints.points(restarts=False),
        store.path / "ledger_place.json": lambda: read_place(store),
        store.path / "sending.json": lambda: TrafficLog(run.settings, store, "train", RecordedLink(HUB.link("A"))),
        tmp_path / f"{'0' * 32}.json": lambda: Marks(tmp_path).of("0" * 32),
    }
    if not content.startswith("{"):  # of these any object is one
        readers[run.path / "summary.json"] = lambda: run.summary
        readers[store.path / "drift.json"] = lambda: read_drift(store.path)
    if content != "7":
        readers[store.path / "seed.json"] = store.seed
    for path, read in readers.items():
        path.write_text(content)
        with refused(RunError, key=path):
            read()


def test_a_defect_of_ours_is_no_damage_to_a_file(tmp_path: Path) -> None:
    for defect in (TypeError, AttributeError):
        with pytest.raises(defect), run_errors(tmp_path, "restore it"):
            raise defect
