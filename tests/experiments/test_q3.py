"""The page of VFGNN's Q3 from a real federated job, with SPU's figures given."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from research import q3 as module
from research.paper_tables import reproduce
from research.secure_gnn import SecureEpochs, TwinScores
from research.secure_gnn_spu import PYTHON_VARIABLE
from veilgraph.samples.shipped import shipped_job, with_overrides

TINY = {"data.dataset": "synthetic", "model.dim": 8, "model.local.hops": 1, "train.epochs": 2}


def quiet(what, done, total):
    pass


def make(out, **changes):
    arguments = {"seeds": 2, "datasets": ["cora"], "rows": None, "out": out, "progress": quiet}
    return reproduce("q3", **{**arguments, **changes})


@pytest.fixture
def spu(tmp_path, monkeypatch):
    """SPU's environment as if it were there; counts what was asked of it, and of VFGNN's steps."""
    asked = SimpleNamespace(twins=[], epochs=[], steps=0)

    def twin(settings, graphs, label_party, seed, python, timeout_s):
        asked.twins.append(seed)
        return TwinScores(0.7, 0.6 + seed / 5, 4)

    def epochs(settings, graphs, label_party, seed, python, timeout_s, *, epochs, public_adjacency):
        asked.epochs.append(public_adjacency)
        seconds = 3.0 if public_adjacency else 12.0
        return SecureEpochs((seconds - 1, seconds + 1), (5.0, 6.0), 7_000_000, 20.0, 2_000_000_000, 4e-5, 0.25)

    def step(job):
        asked.steps += 1
        return {"seconds": 0.1 * asked.steps, "sent_bytes": 5_000_000}

    def tiny(name):
        return with_overrides(shipped_job(name), TINY)

    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv(PYTHON_VARIABLE, str(python))
    for name, value in {
        "twin_scores": twin,
        "secure_epochs": epochs,
        "_vfgnn_epoch": step,
        "shipped_job": tiny,
    }.items():
        monkeypatch.setattr(module, name, value)
    return asked


def test_the_page_has_times_beside_each_other_and_how_they_were_made(tmp_path: Path, spu: SimpleNamespace) -> None:
    text = make(tmp_path)
    lines = text.splitlines()
    header, vfgnn, secure, public = [line for line in lines if line.startswith("|") and "---" not in line]
    assert header.endswith("| seconds an epoch | paper | times VFGNN | MB an epoch |")
    assert vfgnn.split(" | ")[1:2] == ["VFGNN"]
    assert vfgnn.endswith("| – | 0.15 | – | 1 | 5.0 |")  # the mean of before and after
    assert secure == "| cora | SecureGNN | 0.700 ± 0.141 | – | 12 | – | 80 | 7.0 |"
    assert public == "| cora | SecureGNN, public edges | 0.700 ± 0.141 | – | 3 | – | 20 | 7.0 |"
    assert "Accuracy of SecureGNN is that of its plaintext twin" in text
    assert "- SecureGNN on cora: median of 2 epochs under SPU, 5.5 CPU seconds each, after which every weight" in text
    assert lines[-1].endswith("made with `python -m research q3 --seeds 2 --datasets cora`.")
    assert (tmp_path / "q3.md").read_text() == text
    assert (spu.twins, spu.epochs, spu.steps) == ([0, 1], [False, True], 2)
    assert make(tmp_path) == text
    assert (spu.twins, spu.epochs, spu.steps) == ([0, 1], [False, True], 2)
