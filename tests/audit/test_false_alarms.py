"""Audits of runs in which nothing is wrong: how often one fails all the same.

``VEILGRAPH_AUDITS=200 VEILGRAPH_NIGHTLY=1 pytest tests/audit/test_false_alarms.py`` makes 200; without, twenty.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from scipy.stats import binom

from tests import nightly
from tests.audit.runs import VERDICTS, divided
from tests.roles.federation import merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import FALSE_ALARM_RATE
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job import CHECKS, Check, JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import export_dataset

AUDITS = int(os.environ.get("VEILGRAPH_AUDITS", "20"))

Content = Mapping[str, Any]
_INDIVIDUAL: Content = {"initial": {"method": "individual"}}
_SECURE_SUM: Content = {"initial": {"method": "secure-sum"}}
_LOCAL: Content = {
    "release": {"features": {"epsilon": 4.0, "low": -50, "high": 50}, "labels": {"epsilon": 2.0, "holder": "B"}},
    "data": {"dataset": "synthetic", "holders": 3, "split": [0.5, 0.25, 0.25], "stratify": False},
}


_TRAINED: Content = {
    "model": {"local": {"model": "gin", "hops": 0, "normalize": False}, "dropout": 0.0},
    "averaging": {
        "rule": {"name": "fedsgd"},
        "local_epochs": 1,
        "privacy": {"epsilon_total": 4.0, "sampling_rate": 0.25, "batch": 15, "canaries": 10},
    },
    "data": {"split": [0.5, 0.2, 0.3], "stratify": False},
    "train": {"select_by": "last", "epochs": 8},
}


_VOTES: Content = {
    "paradigm": "sealed",
    "model": {"network": "linear", "blocks": ["pooled.1"], "edge_slots": 8192},
    "train": {"epochs": 3, "select_by": "last"},
    "privacy": {"unit": "edge", "epsilon_total": 4.0, "canaries": 40},
    "output": "margins",
}


MIX: Mapping[str, tuple[int, Content]] = {
    "collaborative": (2, {}),
    "secure-sum": (3, {"model": _SECURE_SUM}),
    "individual": (4, {"model": _INDIVIDUAL}),
    "two rounds": (3, {"model": {"rounds": 2, **_SECURE_SUM}}),
    "perturbed labels": (2, {"label_privacy": {"epsilon": 4.0, "canaries": 20}, "train": {"class_weights": "none"}}),
    "horizontal": (3, {"paradigm": "horizontal", "model": {"dim": 8, "combine": "secure-max"}}),
    "local": (3, {"paradigm": "node-dp", **_LOCAL}),
    "sealed": (3, {"paradigm": "sealed", "model": {"network": "mlp"}, "train": {"epochs": 3, "checkpoint_every": 1}}),
    "sealed, votes with noise": (3, _VOTES),
    "averaging": (3, {"paradigm": "averaging", "averaging": {"local_epochs": 2}, "model": {"dim": 8}}),
    "averaging, private": (2, {"paradigm": "averaging", **_TRAINED}),
    "tables": (2, {}),
}
"""Kinds of jobs, with how many holders."""


def honest_job(kind: str, folder: Path, seed: int) -> JobSettings:
    """One of the mix, on data of its own."""
    holders, changes = MIX[kind]
    base: Content = {"seed": seed, "train": {"epochs": 2, "patience": None}}
    if kind in ("horizontal", "local", "averaging", "averaging, private"):
        data = {"dataset": "synthetic", "holders": holders}
        return parse_job(merge({**base, "data": data}, cast(Any, changes)))
    if kind == "tables":
        files = export_dataset(DataSettings(dataset="synthetic", holders=holders), folder, overlap=0.75, seed=seed)
        brought: dict[str, object] = {"parties": {name: str(path) for name, path in files.items()}, "label_holder": "A"}
    else:
        brought = divided(folder, "ABCD"[:holders], 400, 6 * holders, seed)
    base = {**base, "data": brought, "model": {} if kind.startswith("sealed") else {"dim": 8}}
    return parse_job(merge(base, cast(Any, changes)))


def alarms_of(kind: str, folder: Path, seed: int) -> tuple[list[str], set[str]]:
    """What failed in the audit of an honest run, and the attacks that were mounted."""
    train(honest_job(kind, folder / "data", seed), folder / "run", record_views=True, private_seeds=seed % 2 == 0)
    result = audit(folder / "run", AuditPlan(attacks=VERDICTS, seed=seed))
    assert not result.untested
    failed = [f"{kind} {seed}: {each.attack} of {each.adversary} on {each.target}" for each in result.failed]
    return failed, {each.attack for each in result.findings if each.passed is not None}


@nightly
def test_honest_runs_raise_no_alarm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At a rate of 1 % an audit, more alarms than this have a probability of 0.001."""
    alarms, mounted = list[list[str]](), set[str]()
    for seed in range(AUDITS):
        kind = list(MIX)[seed % len(MIX)]
        failed, names = alarms_of(kind, tmp_path / str(seed), seed)
        mounted |= names
        if failed:
            alarms.append(failed)
        shutil.rmtree(tmp_path / str(seed))
    with capsys.disabled():
        sys.stdout.write(f"\n{len(alarms)} of {AUDITS} audits failed: {alarms}\n")
    assert len(alarms) <= binom.isf(0.001, AUDITS, FALSE_ALARM_RATE)
    assert mounted == set(VERDICTS) or len(MIX) > AUDITS
    assert set[Check](CHECKS) <= set(VERDICTS)
