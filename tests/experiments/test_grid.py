import tempfile
from dataclasses import replace

import pytest

from research import grid
from research.grid import Cell, run_cell, run_cells
from research.store import Store
from tests.experiments.conftest import TINY
from veilgraph.core.errors import VeilgraphError
from veilgraph.privacy.publisher import NoisedPublisher
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.samples.shipped import shipped_job, with_overrides

LAST = {"train.select_by": "last", "train.patience": None}


def cell(kind="federated", seed=0, engine="plaintext", **changes):
    settings = with_overrides(shipped_job("digits"), {**TINY, **changes})
    return Cell("tiny", "synthetic", kind, "synthetic", settings, kind, seed, engine)


def private(multiplier, mechanism, kind="federated", engine="plaintext", gradient_clip=0.01):
    privacy = PrivacySettings(
        unit="row", schedule="every-step", noise_multiplier=multiplier, mechanism=mechanism, gradient_clip=gradient_clip
    )
    return cell(kind, engine=engine, privacy=privacy.model_dump(mode="json"), **LAST)


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


def test_the_twin_of_a_private_job_has_noise_and_clips(monkeypatch):
    released = []

    class Watched(NoisedPublisher):
        def summand(self, rows, step, *given):
            noisy = super().summand(rows, step, *given)
            released.append((self.plan.party, (noisy - rows).detach().std().item()))
            return noisy

        def close(self):
            released.append((self.plan.party, "closed"))
            super().close()

    monkeypatch.setattr(grid, "NoisedPublisher", Watched)
    entry = run_cell(private(0.5, "gaussian"))
    assert entry.best_epoch == TINY["train.epochs"]
    for party in ("A", "B"):
        seen = [what for holder, what in released if holder == party]
        assert len(seen) > TINY["train.epochs"] + 1
        assert seen[:-1] == pytest.approx([0.5] * (len(seen) - 1), rel=0.1)
        assert seen[-1] == "closed"


def test_without_noise_the_twin_of_a_private_job_clips_alone():
    """Rows have length 1 already and gradients are shorter than their clip: nothing is left of the privacy."""
    plain = run_cell(cell(**LAST))
    clipped = run_cell(private(0, "gaussian", gradient_clip=1e6))
    assert clipped.key != plain.key
    assert clipped.test_accuracy == plain.test_accuracy


def test_baselines_of_a_private_job_have_no_noise():
    assert (
        run_cell(private(9.0, "gaussian", kind="pooled")).test_accuracy
        == run_cell(cell("pooled", **LAST)).test_accuracy
    )


def test_both_engines_agree_on_a_private_job():
    real = run_cell(private(0.01, "james-stein", engine="federated"))
    twin = run_cell(private(0.01, "james-stein"))
    assert real.test_accuracy == pytest.approx(twin.test_accuracy, abs=0.05)
    assert real.best_epoch == twin.best_epoch == TINY["train.epochs"]


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
