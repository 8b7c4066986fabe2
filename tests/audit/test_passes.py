"""Noise that is drawn anew for each pass cancels over passes: an audit that reads the newest alone sees too little."""

from pathlib import Path

import numpy as np
import pytest

from tests.audit.runs import job_in
from tests.cli.commands import veilgraph
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.types import SERVER
from veilgraph.protocol.view import mean, whitened_mean
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

NODES, WIDTH, PASSES = 200, 6, 40


def alike(one: np.ndarray, other: np.ndarray) -> float:
    return float(abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]))


def test_what_all_passes_share_comes_out_of_the_noise() -> None:
    random = np.random.default_rng(0)
    signal = random.normal(size=(NODES, WIDTH))
    passes = [signal + 4 * random.normal(size=signal.shape) for _ in range(PASSES)]
    assert alike(passes[-1], signal) < 0.35
    assert alike(mean(passes), signal) > 0.8
    assert alike(whitened_mean(passes), signal) > 0.8
    assert np.array_equal(mean(passes[:1]), passes[0])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As jobs/cora-private.yaml, small: weights hardly change, and noise is many times as large as a row."""
    folder = tmp_path_factory.mktemp("noisy")
    settings = job_in(
        folder / "data",
        model={"dim": 8, "initial": {"method": "individual"}, "local": {"model": "appnp", "hops": 2}},
        train={"epochs": 60, "patience": None, "select_by": "last", "learning_rate": 1e-4},
        privacy={"unit": "row", "schedule": "every-step", "noise_multiplier": 1.0},
    )
    train(settings, folder / "run", record_views=True)
    return folder / "run"


def strongest(result: AuditResult, words: str) -> float:
    return min(max(f.value.value for f in result.findings if f.target == t and words in f.evidence) for t in ("A", "B"))


def test_the_audit_attacks_all_releases_of_a_noisy_run(run: Path) -> None:
    found = audit(run, AuditPlan(adversaries=(SERVER,), attacks=("link-similarity",)))
    newest = [f.value.value for f in found.findings if "passes" not in f.evidence]
    assert len(newest) == 2
    assert max(newest) < 0.62
    assert strongest(found, "the mean of 61 passes") > 0.72, "all 60 steps and the inference are recorded, by default"
    assert strongest(found, "61 passes weighed by what they share") > 0.72
    gate = ("audit", run, "--adversary", SERVER, "--attack", "link-similarity", "--limit", "link-similarity=0.65")
    assert veilgraph(*gate).exit_code == 3


def test_what_is_released_for_predictions_counts(run: Path) -> None:
    predict(run)
    found = audit(run, AuditPlan(adversaries=(SERVER,), attacks=("link-similarity",)))
    assert strongest(found, "the mean of 62 passes") > 0.72
    assert RunDirectory.open(run).party(SERVER).views()[-1].stem.endswith("predict")
