"""Canaries among edges that vote with noise: predictions prove less than the ledger says, and without noise more.

Coins and noise are from fixed secrets, so that nothing here depends on chance.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import refused
from tests.paradigms.sealed.private import noise_from
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.audit.mounts.vote_epsilon import voted
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.graph.embedded import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.protocol.inserted import Inserted
from veilgraph.protocol.job_file import parse_job
from veilgraph.run import ledgers
from veilgraph.run.jobs import train
from veilgraph.run.run_directory import RunDirectory

COUNT, NODES, EPSILON = 150, 700, 2.0
KEY = bytes(range(7, 39))


def graphs_of(names: str = "AB") -> list[PartyGraph]:
    return split_vertically(synthetic_data(NODES, 12, 4, 0), names=list(names), label_holder="A", seed=0, num_classes=4)


def job_in(folder: Path, *changes: Settings, names: str = "AB") -> SealedJob:
    folder.mkdir(parents=True)
    for graph in graphs_of(names):
        save_party(graph, folder / f"{graph.party}.safetensors")
    graphs = {name: str(folder / f"{name}.safetensors") for name in names}
    base: Settings = {
        "paradigm": "sealed",
        "data": {"graphs": graphs, "label_holder": "A"},
        "model": {"network": "linear"},
        "train": {"epochs": 12, "select_by": "last", "patience": None},
        "privacy": {
            "unit": "edge",
            "epsilon_total": EPSILON,
            "delta": 1e-5,
            "aggregation": {},
            "canaries": COUNT,
            "canaries_in": "data",
        },
    }
    return sealed(parse_job(merge(base, *changes)))


def audited(folder: Path, *changes: Settings, adversary: str = "A", names: str = "AB") -> AuditResult:
    with noise_from(KEY):
        train(job_in(folder / "data", *changes, names=names), folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan((adversary,), ("epsilon",)))


def proves(result: AuditResult) -> tuple[float, float]:
    (found,) = [each for each in result.findings if each.target == "B"]
    assert isinstance(found, Finding)
    assert found.value is not None
    assert found.limit is not None
    return found.value.low, found.limit


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "system_secrets", lambda length: KEY[:length])


def without_noise(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DealerMachine, "noised", lambda self, summands, deviation: summands)


@pytest.mark.parametrize("output", ["classes", "probabilities"])
def test_predictions_prove_less_than_the_ledger_says_and_more_where_the_dealer_adds_no_noise(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = audited(tmp_path / "honest", {"output": output})
    proven, claim = proves(honest)
    assert claim == pytest.approx(EPSILON, rel=1e-6)
    assert proven < claim
    assert not honest.failed
    without_noise(monkeypatch)
    bare = audited(tmp_path / "bare", {"output": output})
    proven, claim = proves(bare)
    assert proven > claim
    assert {each.attack for each in bare.failed} == {"epsilon"}


def test_the_label_holder_alone_or_with_others_is_the_adversary(tmp_path: Path) -> None:
    with noise_from(KEY):
        train(
            job_in(tmp_path / "data", {"privacy": {"canaries": 60}}, names="ABC"), tmp_path / "run", record_views=True
        )
    result = audit(tmp_path / "run", AuditPlan(("A", "B", "A+B", SERVER), ("epsilon",)))
    assert {(each.adversary, each.target) for each in result.findings} == {("A", "B"), ("A", "C"), ("A+B", "C")}
    assert not result.failed
    kept = {name for name in "ABC" if (found := RunDirectory.open(tmp_path / "run").party(name).canaries())}
    assert kept == set("ABC"), "all keep each other's apart"
    assert found


def test_without_canaries_it_says_so(tmp_path: Path) -> None:
    result = audited(tmp_path, {"privacy": {"canaries": 0, "canaries_in": "rows"}})
    assert not result.findings
    assert any("privacy.canaries" in each.why for each in result.skipped)


def inserted(folder: Path, party: str, *, sparse: bool = False) -> tuple[Inserted, PartyGraph, PartyGraph]:
    settings = job_in(folder, {"privacy": {"canaries": 30}}, names="ABC")
    graph = load_party(folder / f"{party}.safetensors")
    canaries = Inserted.of(settings, party, NODES, lambda length: KEY[:length])
    return canaries, graph, canaries.into(graph)


def test_a_first_end_has_nothing_and_the_other_end_a_node_of_elsewhere_at_every_holder(tmp_path: Path) -> None:
    copied = {}
    for party in "ABC":
        canaries, graph, there = inserted(tmp_path / party, party)
        there.validate()
        features, before = there.features.to_dense(), graph.features.to_dense()
        assert canaries.owners == ("B", "C")
        for owner in canaries.owners:
            first, other = canaries.places(owner).T
            assert not features[first].any()
            copied[party, owner] = [
                set((before == row).all(1).nonzero().flatten().tolist()) - set(canaries.everywhere.tolist())
                for row in features[other]
            ]
        edges = {frozenset(pair) for pair in there.edge_index.T.tolist()}
        touched = {pair for pair in edges if pair & set(canaries.everywhere.tolist())}
        own = [] if party == "A" else canaries.places(party)[canaries.coins].tolist()
        assert touched == {frozenset(pair) for pair in own}
        rest = np.setdiff1d(np.arange(NODES), canaries.everywhere.numpy())
        assert torch.equal(features[rest], before[rest])
    for owner in "BC":
        alike = [set.intersection(*each) for each in zip(*(copied[party, owner] for party in "ABC"), strict=True)]
        assert all(alike), "the row of one node, side by side"


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_rows_are_copied_as_dense_ones_are(sparse: bool, tmp_path: Path) -> None:
    canaries, graph, there = inserted(tmp_path / "data", "B")
    layout = graph.features.to_dense()
    given = PartyGraph("B", layout.to_sparse_csr() if sparse else layout, graph.edge_index)
    assert torch.equal(canaries.into(given).features.to_dense(), there.features.to_dense())


def test_scores_of_classes_and_of_probabilities() -> None:
    places = torch.tensor([[0, 4], [1, 4], [2, 4], [0, 5]])
    classes = torch.eye(3)[torch.tensor([1, 0, 2, 0, 1, 0])]
    assert voted(classes, places, classes=True).tolist() == [3, 0, 1, 2]
    softened = classes * 0.8 + 0.2 / 3
    scores = voted(softened, places, classes=False)
    assert scores[0] > 0 > max(scores[1], scores[2])
    assert scores[3] == pytest.approx(scores[1])


def test_so_many_that_no_node_is_left_to_copy_are_refused(tmp_path: Path) -> None:
    with refused(ConfigError, key="privacy.canaries", value=NODES // 2):
        audited(tmp_path, {"privacy": {"canaries": NODES // 2}})
