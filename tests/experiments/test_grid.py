import tempfile

import pytest

from research.grid import Cell, run_cell
from tests.experiments.conftest import TINY
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


def test_both_engines_agree_on_a_private_job():
    real = run_cell(private(0.01, "james-stein", engine="federated"))
    twin = run_cell(private(0.01, "james-stein"))
    assert real.test_accuracy == pytest.approx(twin.test_accuracy, abs=0.05)
    assert real.best_epoch == twin.best_epoch == TINY["train.epochs"]
