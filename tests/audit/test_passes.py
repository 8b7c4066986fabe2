"""Noise that is drawn anew for each pass cancels over passes: an audit that reads the newest alone sees too little."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.audit.runs import job_in
from tests.cli.commands import veilgraph
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.protocol.view import aggregate, mean, subtract_own, whitened_mean
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


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_out_has_the_sign_that_most_passes_have(seed: int) -> None:
    random = np.random.default_rng(seed)
    signal = random.normal(size=(NODES, WIDTH))
    found = whitened_mean([signal + random.normal(size=signal.shape) for _ in range(5)])
    assert np.corrcoef(found.ravel(), signal.ravel())[0, 1] > 0.8


def test_a_pass_that_is_not_whole_is_left_out() -> None:
    """As where a view was cut off, or what a party put in itself was not noted."""

    def seen(sender: str, steps: Sequence[int]) -> list[Any]:
        tags = [Tag(Kind.MASKED, step, 1) for step in steps]
        return [SimpleNamespace(sender=sender, session=1, tag=tag, tensor=lambda: torch.ones(3, 2)) for tag in tags]

    came = {"A": seen("A", [1, 2, 3]), "B": seen("B", [1, 3, 4]), "C": seen("C", [1, 2, 3, 4])}
    server: Any = SimpleNamespace(party=SERVER, others=tuple(came), received=lambda kind, sender, round_: came[sender])
    passes = aggregate(server, Kind.MASKED, 1, tuple(came))
    assert [[each.tag.step for each in pieces] for pieces in passes.pieces] == [[1] * 3, [3] * 3]
    assert np.array_equal(passes[0], np.full((3, 2), 3.0))
    friends: Any = [SimpleNamespace(own=came["A"]), SimpleNamespace(own=seen("B", [3]))]
    left = subtract_own(passes, friends)
    assert [pieces[0].tag.step for pieces in left.pieces] == [3]
    assert np.array_equal(left[0], np.ones((3, 2)))


def test_passes_are_weighed_by_what_is_in_them() -> None:
    """Another sign, or nothing at all in half of them: the mean loses the signal and the filter does not."""
    random = np.random.default_rng(1)
    signal = random.normal(size=(NODES, WIDTH))
    turned = [sign * signal + 2 * random.normal(size=signal.shape) for sign in [1, -1] * (PASSES // 2)]
    assert alike(mean(turned), signal) < 0.5
    assert alike(whitened_mean(turned), signal) > 0.9
    early = [(place < 5) * signal + random.normal(size=signal.shape) for place in range(PASSES)]
    assert alike(whitened_mean(early), signal) > alike(mean(early), signal) + 0.1


def test_a_pass_that_is_loud_by_its_noise_counts_for_little() -> None:
    random = np.random.default_rng(2)
    signal = random.normal(size=(NODES, WIDTH))
    passes = [signal + (40 if place == 7 else 2) * random.normal(size=signal.shape) for place in range(PASSES)]
    assert alike(mean(passes), signal) < 0.8
    assert alike(whitened_mean(passes), signal) > 0.9


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
