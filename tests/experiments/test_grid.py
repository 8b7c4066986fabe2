import tempfile

import pytest

from research import grid
from research.grid import Cell, run_cell
from tests.experiments.conftest import TINY
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


def test_both_engines_agree_on_a_private_job():
    real = run_cell(private(0.01, "james-stein", engine="federated"))
    twin = run_cell(private(0.01, "james-stein"))
    assert real.test_accuracy == pytest.approx(twin.test_accuracy, abs=0.05)
    assert real.best_epoch == twin.best_epoch == TINY["train.epochs"]
