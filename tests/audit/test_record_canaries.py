"""Canaries among records of a sealed job: what is told proves less than its ε, and more where noise is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.errors import refused
from tests.paradigms.sealed.programs import saved, small_graphs
from tests.paradigms.sealed.records import RECORDS, record_job, two_classes
from tests.roles.federation import Settings
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.audit.finding import AuditResult, Finding
from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.records.rows import noise_of_sums
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.canaries import RecordCanaries, canaries_in_data
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.session import publishers

FLIPS = "veilgraph.paradigms.sealed.records.bits.flips"
KEY = bytes(range(32))
UNITS = ("training-record", "node")


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins do not depend on chance."""
    monkeypatch.setattr(publishers, "system_secrets", lambda length: bytes(range(length)))


def graphs_of(nodes: int, columns: int, holders: int = 2) -> list[PartyGraph]:
    return two_classes(small_graphs(holders, nodes=nodes, columns=columns, training=nodes // 4))


def canary_job(unit: str, count: int, holders: int = 2, epsilon: float = 2.0, *changes: Settings) -> SealedJob:
    return record_job(holders, *changes, unit=unit, epsilon_total=epsilon, canaries=count)


def audited(folder: Path, unit: str, count: int, nodes: int, columns: int, epsilon: float = 2.0) -> AuditResult:
    job = saved(folder / "data", canary_job(unit, count, epsilon=epsilon), graphs_of(nodes, columns))
    train(job, folder / "run", record_views=True)
    return audit(folder / "run", AuditPlan(("A",), ("epsilon", "paid")))


def bound(result: AuditResult, name: str = "epsilon") -> Finding:
    (found,) = [each for each in result.findings if (each.attack, each.target) == (name, "B")]
    assert found.value is not None
    return found


def value(found: Finding) -> float:
    assert found.value is not None
    return found.value.value


@pytest.mark.parametrize(
    ("unit", "count", "columns", "epsilon", "least"),
    [("training-record", 258, 258, 4.0, 1.0), ("node", 160, 3, 2.0, 1.0)],
)
def test_canaries_prove_a_part_of_epsilon_and_the_ledger_paid(
    unit: str, count: int, columns: int, epsilon: float, least: float, tmp_path: Path
) -> None:
    result = audited(tmp_path, unit, count, 1100 if unit == "training-record" else 800, columns, epsilon)
    found = bound(result)
    assert least < value(found) <= epsilon
    assert found.limit == pytest.approx(epsilon, rel=1e-6)
    assert bound(result, "paid") in result.findings
    assert result.passed


def test_noise_of_sums_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{RECORDS}.noise_of_sums", lambda *of: noise_of_sums(*of) / 8)
    result = audited(tmp_path, "training-record", 258, 1100, 258, epsilon=2.0)
    assert value(bound(result)) > 2.0
    assert bound(result) in result.failed


@pytest.mark.parametrize("turned", [0.0, 0.02])
def test_flips_that_are_missing_or_too_few_are_found(
    turned: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(nodes: int, *_: object) -> Tensor:
        return (torch.rand(nodes, 1, generator=torch.Generator().manual_seed(2)) < turned).double()

    monkeypatch.setattr(FLIPS, few)
    result = audited(tmp_path, "node", 160, 800, 3)
    assert value(bound(result)) > 2.0
    assert bound(result) in result.failed


def test_bits_that_were_opened_and_not_paid_for_are_found(tmp_path: Path) -> None:
    job = saved(tmp_path / "data", canary_job("node", 0), graphs_of(60, 3))
    run = train(job, tmp_path / "run", record_views=True).path
    ledger = run / "parties" / "B" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().splitlines()[0] + "\n")
    assert bound(audit(run, AuditPlan(("A",), ("paid",))), "paid").target == "B"
    assert audit(run, AuditPlan(("A",), ("paid",))).failed


def test_without_canaries_it_says_so(tmp_path: Path) -> None:
    result = audited(tmp_path, "node", 0, 60, 3)
    assert [each.name for each in result.skipped if "privacy.canaries" in each.why] == ["epsilon"]


@pytest.mark.parametrize("unit", UNITS)
def test_canaries_differ_by_their_coins_alone_and_other_records_are_zero(unit: str) -> None:
    job, graphs = canary_job(unit, 6, 3), graphs_of(60, 6, 3)
    drawn = [RecordCanaries.of(job, graph, KEY) for graph in graphs]
    places = [drawn[0].places(owner) for owner in "BC"]
    assert torch.cat(places).unique().numel() == 24, "no node twice"
    first = drawn[0].into(graphs[0])
    assert torch.equal(first.features, graphs[0].features)
    assert first.train_mask is not None
    assert first.val_mask is not None
    assert first.labels is not None
    everywhere = torch.cat(places)
    assert bool(first.train_mask[everywhere[:, 0]].all())
    before = graphs[0].labels
    assert before is not None
    expected = torch.ones(12) if unit == "node" else 1 - before[everywhere[:, 0]]
    assert torch.equal(first.labels[everywhere[:, 0]], expected.long())
    assert not bool(first.train_mask[everywhere[:, 1]].any())
    assert not bool(first.val_mask[everywhere.flatten()].any())
    coins = drawn[1].coins
    planted = drawn[1].into(graphs[1]).features
    with_coin, without = places[0].T if unit == "training-record" else places[0].flip(1).T
    assert torch.equal(planted[with_coin].sum(1) > 0, coins)
    assert bool((planted[without].sum(1) == 1).all())
    assert float(planted.sum()) == 6 + int(coins.sum())
    assert canaries_in_data(job, graphs[1], lambda: KEY) == drawn[1]
    if unit == "training-record":
        assert planted[without].argmax(1).unique().numel() == 6, "a column each"


@pytest.mark.parametrize(("unit", "count", "columns"), [("training-record", 4, 2), ("node", 16, 9)])
def test_too_many_canaries_are_refused(unit: str, count: int, columns: int) -> None:
    with refused(ConfigError, key="privacy.canaries", value=count, party="B"):
        RecordCanaries.of(canary_job(unit, count), graphs_of(60, columns)[1], KEY)


@nightly
def test_canaries_of_three_holders_and_many_classes(tmp_path: Path) -> None:
    graphs = small_graphs(3, nodes=600, columns=60, training=200)
    job = saved(tmp_path / "data", canary_job("training-record", 60, 3), graphs)
    train(job, tmp_path / "run", record_views=True)
    result = audit(tmp_path / "run", AuditPlan(("A",), ("epsilon",)))
    found: dict[str, Any] = {each.target: each for each in result.findings if each.attack == "epsilon"}
    assert found.keys() == {"B", "C"}
    assert all(value(each) <= 2.0 for each in found.values())
