"""Canaries among nodes that perturb their own values: a release is held against its ε by who learns from it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.canaries import NodeCanaries
from veilgraph_node_dp.mechanisms import MultiBit

from tests.audit.runs import saved
from tests.errors import refused
from tests.roles.federation import Settings
from tests.roles.local_parties import local_job
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_for_learner
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

NODES, CANARIES, LEARNER = 700, 500, "A"
LABELS: Settings = {"release": {"labels": {"holder": "B", "epsilon": 2.0}}, "train": {"epochs": 1, "patience": None}}
EPSILON = 4.0


def job_in(folder: Path, **features: Any) -> JobSettings:
    settings: dict[str, Any] = {"epsilon": EPSILON, "canaries": CANARIES, **features}
    whole = PartyGraph.from_data("B", synthetic_data(NODES, 24, 2, 0))
    graphs = split_for_learner(whole, names=["A", "B", "C"], learner=LEARNER, labels_at="B", seed=0)
    return local_job(3, LABELS, {"data": {"dataset": None, "graphs": saved(folder, graphs)}}, **settings)


def bounds(run: Path, adversary: str = LEARNER) -> AuditResult:
    return audit(run, AuditPlan((adversary,), ("epsilon",)))


def passed(result: AuditResult) -> dict[tuple[str, str], bool]:
    return {(each.target, each.evidence.split()[0]): each.passed is True for each in result.findings}


ALL = {("B", "features"), ("B", "labels"), ("C", "features")}


@pytest.mark.cases(1)
@pytest.mark.parametrize("mechanism", ["multi-bit", "one-bit", "laplace", "gaussian"])
def test_an_honest_release_is_within_its_epsilon(tmp_path: Path, mechanism: str) -> None:
    delta = {"delta": 1e-5} if mechanism == "gaussian" else {}
    run = train(job_in(tmp_path / "data", mechanism=mechanism, **delta), tmp_path / "run", record_views=True).path
    result = bounds(run)
    assert passed(result) == dict.fromkeys(ALL, True)
    strongest = {finding.target: finding.value.value for finding in result.findings if "features" in finding.evidence}
    assert min(strongest.values()) > 0.3, "and they are seen"
    assert not bounds(run, "C").findings, "who does not learn has nothing"
    predict(run)
    assert [each.limit for each in bounds(run).findings] == [each.limit for each in result.findings]


def test_what_is_sent_again_is_one_release_whatever_has_changed(tmp_path: Path) -> None:
    run = train(job_in(tmp_path / "data"), tmp_path / "run", record_views=True).path
    once = {("B", "features"): EPSILON, ("B", "labels"): 2.0, ("C", "features"): EPSILON}

    def limits() -> dict[tuple[str, str], float | None]:
        predict(run)
        return {(each.target, each.evidence.split()[0]): each.limit for each in bounds(run).findings}

    (run / "parties" / LEARNER / "release.safetensors").unlink()
    assert limits() == once
    path = run / "parties" / "C" / "graph.safetensors"
    graph = load_party(path)
    save_party(replace(graph, features=-graph.features.to_dense()), path)
    assert limits() == once


def bits(self: MultiBit, x: Tensor, source: SecretSource) -> Tensor:
    return torch.where(x.to_dense() > 0, 1, -1).to(torch.int8)


MUTANTS: dict[str, tuple[type, Callable[..., Tensor], set[tuple[str, str]]]] = {
    "features without noise": (MultiBit, bits, {("B", "features"), ("C", "features")}),
    "labels as they are": (LabelResponse, lambda self, labels, source: labels, {("B", "labels")}),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_release_that_says_more_than_its_epsilon_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    kind, function, found = MUTANTS[mutant]
    monkeypatch.setattr(kind, "release", function)
    run = train(job_in(tmp_path / "data", mechanism="one-bit"), tmp_path / "run", record_views=True).path
    assert {key for key, well in passed(bounds(run)).items() if not well} == found


def drawn_in(graph: PartyGraph, job: JobSettings) -> NodeCanaries:
    release = job.noise.feature_release
    assert release is not None
    found = release.canaries_in(graph, system_secrets(SEED_BYTES), job.hash())
    assert isinstance(found, NodeCanaries)
    return found


def test_canaries_are_whole_records_and_differ_by_their_coins(tmp_path: Path) -> None:
    job = job_in(tmp_path / "data")
    graph = split_for_learner(
        PartyGraph.from_data("B", synthetic_data(NODES, 24, 2, 0)),
        names=["A", "B", "C"],
        learner="A",
        labels_at="B",
        seed=0,
    )[1]
    canaries = drawn_in(graph, job)
    planted = canaries.into(graph)
    planted.validate()
    assert planted.labels is not None
    rows = planted.features.to_dense()[canaries.places]
    assert (rows[canaries.coins] == 10).all()
    assert (rows[~canaries.coins] == -10).all()
    assert torch.equal(planted.labels[canaries.places] == 1, canaries.label_coins)
    rest = torch.ones(NODES, dtype=torch.bool)
    rest[canaries.places] = False
    assert torch.equal(planted.features.to_dense()[rest], graph.features.to_dense()[rest])
    assert graph.labels is not None
    assert torch.equal(planted.labels[rest], graph.labels[rest])
    other = drawn_in(graph, job)
    assert torch.equal(other.places, canaries.places)
    assert not torch.equal(other.coins, canaries.coins)
    assert not torch.equal(canaries.coins, canaries.label_coins)
    with refused(RunError, key="canaries"):
        canaries.into(replace(graph, num_common=600))
    with refused(ConfigError, key="canaries", value=500):
        drawn_in(replace(graph, num_common=100), job)


def test_a_run_without_canaries_says_so_and_lost_ones_stop_it(tmp_path: Path) -> None:
    run = train(job_in(tmp_path / "none", canaries=0), tmp_path / "run", record_views=True).path
    assert any("train it again with some" in each.why for each in bounds(run).skipped)
    other = train(job_in(tmp_path / "some"), tmp_path / "other", record_views=True).path
    RunDirectory.open(other).party("B").canaries_path.unlink()
    with refused(RunError, key=tmp_path / "other" / "parties" / "B" / "canaries.safetensors"):
        predict(other)
