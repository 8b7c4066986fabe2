import tempfile

import pytest

from research.grid import Cell, run_cell
from tests.experiments.conftest import TINY
from veilgraph.samples.shipped import shipped_job, with_overrides


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
