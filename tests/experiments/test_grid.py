import tempfile
from dataclasses import replace

import pytest

from tests.experiments.conftest import TINY
from veilgraph.core.errors import VeilgraphError
from veilgraph.experiments import grid
from veilgraph.experiments.grid import Cell, run_cell, run_cells
from veilgraph.experiments.shipped import shipped_job, with_overrides
from veilgraph.experiments.store import Store


def cell(kind="federated", seed=0, engine="plaintext", **changes):
    settings = with_overrides(shipped_job("digits"), {**TINY, **changes})
    return Cell("tiny", "synthetic", kind, "synthetic", settings, kind, seed, engine)


def test_both_engines_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    real, twin = run_cell(cell(engine="federated")), run_cell(cell(engine="plaintext"))
    assert real.test_accuracy == pytest.approx(twin.test_accuracy, abs=0.01)
    assert real.best_epoch == twin.best_epoch
    assert (real.engine, twin.engine) == ("federated", "plaintext")
    assert real.key != twin.key
    assert real.sent_bytes is not None
    assert set(real.sent_bytes) == {"A", "B", "server"}
    assert all(count > 0 for count in real.sent_bytes.values())
    assert twin.sent_bytes is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["isolated-A", "isolated-B", "pooled"])
def test_baselines_are_plaintext_whatever_was_asked(kind):
    asked = cell(kind, engine="federated")
    entry = run_cell(asked)
    assert entry.engine == "plaintext"
    assert entry.kind == kind
    assert entry.sent_bytes is None
    assert 0 <= entry.test_accuracy <= 1
    assert asked.key == cell(kind, engine="plaintext").key


def test_the_seed_decides_partition_and_weights():
    first, second = run_cell(cell(seed=0)), run_cell(cell(seed=1))
    assert (first.settings["seed"], second.settings["seed"]) == (0, 1)
    assert first.key != second.key
    assert run_cell(cell(seed=1)).test_accuracy == second.test_accuracy


def test_stored_cells_are_not_run_again(tmp_path, monkeypatch):
    cells = [cell("pooled"), cell("isolated-A"), cell("federated")]
    run_cells(cells[:2], Store(tmp_path, "tiny"))
    ran = []

    def counted(cell, progress):
        ran.append(cell.kind)
        return run_cell(cell, progress)

    monkeypatch.setattr(grid, "run_cell", counted)
    run_cells(cells, Store(tmp_path, "tiny"))
    assert ran == ["federated"]
    run_cells(cells, Store(tmp_path, "tiny"))
    assert ran == ["federated"]


def test_a_training_with_two_places_is_done_once(tmp_path):
    twice = [cell("pooled"), replace(cell("pooled"), row="again")]
    store = Store(tmp_path, "tiny")
    run_cells(twice, store)
    assert len(store.path.read_text().splitlines()) == 1


def test_progress_counts_what_is_stored_and_shows_epochs(tmp_path):
    cells = [cell("pooled"), cell("federated")]
    run_cells(cells[:1], Store(tmp_path, "tiny"))
    seen = []
    run_cells(cells, Store(tmp_path, "tiny"), lambda *state: seen.append(state))
    label = "tiny synthetic: federated, seed 0"
    assert seen == [(label, 1, 2), (f"{label}, epoch 1", 1, 2), (f"{label}, epoch 2", 1, 2), ("done", 2, 2)]


def test_what_was_finished_before_a_failure_stays(tmp_path):
    broken = cell("federated", **{"data.dataset": "digits", "data.holders": 9})
    with pytest.raises(VeilgraphError):
        run_cells([cell("pooled"), broken], Store(tmp_path, "tiny"))
    assert Store(tmp_path, "tiny").get(cell("pooled").key) is not None
