"""Attacks that solve equations on whole runs: known weights, and what private seeds change; hops of one pass."""

from pathlib import Path
from typing import Any

import pytest

from tests import nightly
from tests.audit.runs import job_in
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import Finding
from veilgraph.runtime.launch.jobs import train

SHORT = {"epochs": 2, "patience": None}


def trained(folder: Path, *, private: bool = False, **changes: Any) -> Path:
    train(job_in(folder / "data", **changes), folder / "run", private_seeds=private, record_views=True)
    return folder / "run"


def with_initial(method: str) -> dict[str, Any]:
    return {"dim": 8, "initial": {"method": method}, "local": {"model": "sage-mean", "hops": 1}}


def weights_found(run: Path) -> dict[str, Finding]:
    found = audit(run, AuditPlan(adversaries=("A", "B"), attacks=("known-weights",))).findings
    assert {each.adversary for each in found} == {"A", "B"}
    return {each.adversary: each for each in found}


@pytest.mark.parametrize("method", ["collaborative", "secure-sum"])
def test_the_jobs_seed_gives_a_holders_features_away_and_private_seeds_do_not(method: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": with_initial(method), "train": SHORT}
    for finding in weights_found(trained(tmp_path / "shared", **settings)).values():
        assert finding.value.value > 0.99
        assert "100% came out exactly" in finding.note
    for finding in weights_found(trained(tmp_path / "private", private=True, **settings)).values():
        assert finding.value.value < 0.95
        assert "Seeds are private" in finding.note
        assert "exactly" not in finding.note


@nightly
def test_the_hops_of_one_pass_are_combinations(tmp_path: Path) -> None:
    model = {"dim": 8, "rounds": 4, "local": {"model": "appnp", "hops": 1}, "server": {"layers": 0}}
    run = trained(tmp_path, model=model, train=SHORT)
    found = audit(run, AuditPlan(adversaries=("B",), attacks=("link-combination",))).findings
    (hops,) = (each for each in found if "inputs and outputs" in each.evidence)
    assert hops.note.startswith("From 2 hops of the newest pass")
    assert hops.gain is not None
    assert hops.gain.low > 0
