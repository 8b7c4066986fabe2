"""The table of sealed jobs: what the parties train and what their plaintext twin does."""

from research.grid import Cell, run_cell
from research.sealed_table import SEALED_TABLES
from veilgraph.protocol.job_file import parse_job

JOB = parse_job({"paradigm": "sealed", "data": {"dataset": "synthetic"}, "train": {"epochs": 4}})


def test_the_parties_are_as_accurate_as_their_twin() -> None:
    found, twin = (
        run_cell(Cell("sealed", "synthetic", kind, "synthetic", JOB, kind, 1)) for kind in ("federated", "twin")
    )
    assert [found.engine, twin.engine] == ["federated", "plaintext"]
    assert found.test_accuracy > 0.5
    assert abs(found.test_accuracy - twin.test_accuracy) < 0.02
    assert twin.sent_bytes is None


def test_every_cell_of_the_parties_has_its_twin_beside_it() -> None:
    entries = SEALED_TABLES["sealed"].entries
    kinds = [(entry.dataset, entry.overrides["data.holders"], entry.kind) for entry in entries]
    assert len(kinds) == len(set(kinds)) == 2 * 3 * 3
