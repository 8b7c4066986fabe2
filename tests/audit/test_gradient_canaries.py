"""Canaries in a private training: what weights prove of ε is below the ledger's, and above one that is false."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.cutting import CutError, cut_at
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.core.errors import ConfigError, DataError, ProtocolError, RunError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.terms import Terms
from veilgraph.privacy import sampled_sum
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.sampled_sum import SampledSum
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.trained_canaries import TrainedCanaries
from veilgraph.run import ledgers, sampled_ledgers
from veilgraph.run.jobs import resume, train
from veilgraph.run.run_directory import RunDirectory

COUNT, NODES, FEATURES, BOUND, EPSILON = 60, 260, 80, 2, 2.0
NAMES: Final = ("A", "B")


def graph_of(party: str, nodes: int = NODES, *, labelled: bool = True) -> PartyGraph:
    """A ring with random columns."""
    generator = torch.Generator().manual_seed(ord(party))
    ring = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    features = torch.randn(nodes, FEATURES, generator=generator)
    drawn = torch.rand(nodes, generator=generator)
    split: dict[str, Any] = {}
    if labelled:
        masks = {"train_mask": drawn < 0.5, "val_mask": (drawn >= 0.5) & (drawn < 0.7), "test_mask": drawn >= 0.7}
        split = {"labels": torch.randint(2, (nodes,), generator=generator), "num_classes": 2, **masks}
    return PartyGraph(party, features, torch.cat([ring, ring.flip(0)], 1), **split)


def job_in(folder: Path, *changes: Settings, nodes: int = NODES, unlabelled: str = "") -> AveragingJob:
    folder.mkdir(parents=True)
    for name in NAMES:
        path = folder / f"{name}.safetensors"
        save_party(graph_of(name, nodes, labelled=name != unlabelled), path, [f"{name}{row}" for row in range(nodes)])
    return made({"data": {"graphs": {name: str(folder / f"{name}.safetensors") for name in NAMES}}}, *changes)


def made(*changes: Settings) -> AveragingJob:
    base: Settings = {
        "paradigm": "averaging",
        "data": {"dataset": "synthetic", "holders": 2, "split": [0.5, 0.2, 0.3], "stratify": False},
        "model": {"dim": 6, "dropout": 0.0, "local": {"model": "sage-mean", "hops": 1, "normalize": False}},
        "averaging": {
            "rule": {"name": "fedsgd"},
            "local_epochs": 1,
            "privacy": {
                "epsilon_total": EPSILON,
                "degree_bound": BOUND,
                "sampling_rate": 0.3,
                "batch": 40,
                "clip": 0.5,
                "canaries": COUNT,
            },
        },
        "train": {"epochs": 6, "patience": None, "select_by": "last", "learning_rate": 0.5, "checkpoint_every": 2},
    }
    if any("graphs" in change.get("data", {}) for change in changes):
        del base["data"]
    return averaging(parse_job(merge(base, *changes)))


def privacy(**given: object) -> Settings:
    return {"averaging": {"privacy": given}}


def audited(folder: Path, *changes: Settings, adversary: str = "B") -> AuditResult:
    train(job_in(folder / "data", *changes), folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan((adversary,), ("epsilon", "noise-level")))


def bound(result: AuditResult) -> Finding:
    (found,) = [each for each in result.findings if (each.attack, each.target) == ("epsilon", "A")]
    assert found.value is not None
    return found


def level(result: AuditResult) -> Finding:
    (found,) = [each for each in result.findings if each.attack == "noise-level"]
    return found


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here depends on chance."""
    for module, name in ((ledgers, "coins"), (sampled_ledgers, "noise")):
        monkeypatch.setattr(module, "system_secrets", fixed_secrets(name))


WORLDS: Mapping[str, Settings] = {
    "zero-out": {},
    "replaced": privacy(neighbours="replacement"),
    "no edges": {
        "model": {"local": {"hops": 0}},
        "averaging": {"privacy": {"degree_bound": None}},
    },
}


@pytest.mark.parametrize("world", WORLDS)
def test_an_honest_run_proves_less_than_its_ledger_says_and_one_without_noise_more(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = audited(tmp_path / "honest", WORLDS[world])
    found = bound(honest)
    assert found.limit == pytest.approx(EPSILON, rel=1e-3)
    assert found.value.low < found.limit
    assert not honest.failed, [each.attack for each in honest.failed]
    with monkeypatch.context() as patch:
        patch.setattr(SampledSum, "noise", lambda self, size, source: torch.zeros(size, dtype=torch.float64))
        bare = audited(tmp_path / "bare", WORLDS[world])
    assert bound(bare).value.low > bound(bare).limit
    assert {each.attack for each in bare.failed} == {"epsilon", "noise-level"}
