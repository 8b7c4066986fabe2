"""Runs that open one bit a node: paid for once, before anything is opened; the same bits later; new jobs pay anew."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from tests.errors import refused
from tests.mpc.sealed.parties import run as run_parties
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.cutting import CutError, checkpoint
from tests.paradigms.sealed.programs import TWIN, saved, small_graphs
from tests.paradigms.sealed.records import record_job, two_classes
from tests.roles.federation import Settings
from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, RunError
from veilgraph.core.tensor_file import load_tensors
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party, save_party
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.plan import release_plan
from veilgraph.paradigms.sealed.records.bits import BITS, BitProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.privacy.accountant import epsilon_at
from veilgraph.privacy.event import EitherEvent
from veilgraph.privacy.publisher import CountPublisher
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.report.ledgers import ledger_at
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

ABOUT = {"epsilon_unit": "node", "epsilon_neighbours": "zero-out"}


def bit_job(holders: int = 2, *changes: Settings) -> SealedJob:
    return record_job(holders, *changes, unit="node")


def saved_job(folder: Path, *changes: Settings, holders: int = 2) -> SealedJob:
    return saved(folder / "data", bit_job(holders, *changes), two_classes(small_graphs(holders)))


def paid(run: Path, party: str = "B") -> list[dict[str, Any]]:
    lines = (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What label holders are told, prediction by prediction."""
    found, learn = list[Tensor](), SealedLabelHolder.learn

    def kept(self: SealedLabelHolder, bits: Tensor | None) -> None:
        assert bits is not None
        found.append(bits)
        learn(self, bits)

    monkeypatch.setattr(SealedLabelHolder, "learn", kept)
    return found


def test_holders_pay_once_and_every_prediction_opens_the_same_bits(tmp_path: Path, told: list[Tensor]) -> None:
    job = saved_job(tmp_path, holders=3)
    found = train(job, tmp_path / "run")
    run, seen = found.path, set()
    for party in "BC":
        (entry,) = paid(run, party)
        assert [entry["event"][name] for name in ("kind", "unit", "neighbours")] == ["either", "node", "zero-out"]
        assert entry["total"] == pytest.approx(4.0, rel=1e-6)
        assert entry["total"] <= 4.0
    assert not (run / "parties" / "A" / "ledger.jsonl").exists()
    for party in (*"ABC", SERVER):
        for entry in json.loads((run / "parties" / party / "traffic.json").read_text()):
            ends = (party, entry["peer"]) if entry["direction"] == "sent" else (entry["peer"], party)
            assert entry["kind"] in {row.kind.name.lower() for row in rows_of(job, *ends)}
            seen.add((entry["kind"], *ends))
    assert {each for each in seen if each[0] == "mask_share"} == {("mask_share", "B", "A"), ("mask_share", "C", "A")}
    for _ in range(2):
        assert torch.equal(predict(run).classes, found.predictions.classes)
    assert len(told) >= 3
    assert all(torch.equal(bits, told[0]) for bits in told), "to the bit"
    assert told[0].shape == (30, 2)
    assert not bool(told[0][:8].any())
    assert len(paid(run)) == 1


def test_two_jobs_have_flips_of_their_own(tmp_path: Path, told: list[Tensor]) -> None:
    graphs = two_classes(small_graphs(nodes=120, training=20))
    job = saved(tmp_path / "data", record_job(unit="node", epsilon_total=0.5), graphs)
    for name in ("one", "two"):
        train(job, tmp_path / name)
    differ = (told[0] != told[-1])[20:].double().mean()
    assert 0.2 < float(differ) < 0.8


def test_what_is_saved_are_shares_of_flipped_bits_and_nothing_that_they_are_made_of(tmp_path: Path) -> None:
    run = RunDirectory.open(train(saved_job(tmp_path), tmp_path / "run").path)
    for party in "AB":
        tensors, _ = load_tensors(run.party(party).model_path)
        weights = {name for name in tensors if name.startswith("weight")}
        assert weights == {BITS, "weight.trial"}


@pytest.mark.parametrize("party", ["A", "B"])
def test_bits_stay_those_of_the_data_that_were_trained_on(party: str, tmp_path: Path, told: list[Tensor]) -> None:
    """A that trains on fewer nodes later is told of no more; and who has changed its columns predicts no more."""
    run = train(saved_job(tmp_path), tmp_path / "run").path
    path = run / "parties" / party / "graph.safetensors"
    before = load_party(path)
    if party == "A":
        save_party(replace(before, train_mask=torch.arange(30) < 4), path)
        predict(run)
        assert torch.equal(told[-1], told[0])
        assert not bool(told[-1][:8].any())
    else:
        save_party(replace(before, features=before.features + 1), path)
        with refused(RunError, party="B", code="data-changed"):
            predict(run)
    assert len(paid(run)) == 1


def test_nothing_is_opened_before_it_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen, learn = tmp_path / "run", list[int](), SealedLabelHolder.learn

    def watched(self: SealedLabelHolder, bits: Tensor | None) -> None:
        seen.append(len(paid(run)))
        learn(self, bits)

    monkeypatch.setattr(SealedLabelHolder, "learn", watched)
    train(saved_job(tmp_path), run)
    assert set(seen) == {1}

    def broke(self: CountPublisher, content: str) -> None:
        raise BudgetSpent("no room: allow more")

    monkeypatch.setattr(CountPublisher, "pay", broke)
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: seen.append(-1))
    with pytest.raises(BudgetSpent):
        train(saved_job(tmp_path), tmp_path / "other")
    assert -1 not in seen


def test_bits_made_anew_are_not_told_where_no_second_release_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shares are lost after bits were told: the same node under two flips would cost twice."""
    run, told = tmp_path / "run", list[Tensor]()

    def stops(*_: object) -> None:
        raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(SealedLabelHolder, "learn", stops)
        with pytest.raises(CutError):
            train(saved_job(tmp_path), run)
    for party in ("A", "B", SERVER):
        checkpoint(run, party, 1).unlink()
        RunDirectory.open(run).party(party).model_path.unlink(missing_ok=True)
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: told.append(found))
    with pytest.raises((BudgetSpent, RunError)):
        resume(run)
    assert len(paid(run)) == 1
    assert not told


def test_three_classes_end_a_job_with_one_clear_error(tmp_path: Path) -> None:
    with refused(DataError, key="privacy.unit", value="node", party="A"):
        train(saved(tmp_path / "data", bit_job(), small_graphs()), tmp_path / "run")


@pytest.mark.parametrize("holders", [2, 3])
def test_bytes_are_counted_to_the_last_one(holders: int) -> None:
    job, graphs = bit_job(holders), two_classes(small_graphs(holders))
    context, data = twin_context(job, graphs)
    counted, links = costs_of(context, 1).stages, dict[Any, Any]()

    def one(machine: Machine) -> object:
        own = {name: part for name, part in data.items() if name == machine.party}
        if machine.party == TWIN:
            return None
        program = BitProgram(machine, replace(context, data=own), lambda _: fixed_secrets("fresh", 1))
        program.enter(trains=True)
        program.begin()
        program.step(0)
        program.restore(program.shares(), training=False)
        return program.predict()

    run_parties(one, holders, links)
    for party in ("A", "B", SERVER):
        sent = sum(each.bytes for each in links[party].traffic() if each.direction == "sent")
        assert sum(stage.sent[party] for stage in counted) == sent


def test_a_lifetime_ledger_counts_every_job_for_every_node_whether_trained_on_or_predicted(tmp_path: Path) -> None:
    """No holder knows which of both a node is, so a node that is one now and the other later pays for both."""
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    folder, totals = tmp_path / "tables" / "B", list[float]()
    graphs = two_classes(small_graphs(nodes=40))
    export_organisations(graphs, tmp_path / "tables", overlap=0.9, seed=1, job=bit_job())
    for party, own in (("A", {}), ("B", {"max_epsilon": 10.0, **ABOUT})):
        path = tmp_path / "tables" / party / "party.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"limits": {"leakage": [], **own}}))
    job = read_job(tmp_path / "tables" / "job.yaml")
    assert isinstance(job, SealedJob)
    for run in ("one", "two"):
        train(job, tmp_path / run)
        ledger = ledger_at(Organisation(read_party_settings(folder / "party.yaml"), folder))
        assert ledger is not None
        totals.append(ledger.total())
    plan = release_plan(job, "B", 40)
    assert plan is not None
    assert isinstance(plan.event, EitherEvent)
    assert totals[0] <= 4.0, "what the job says, for its δ is a tenth of max_delta"
    assert totals == pytest.approx([epsilon_at(plan.event, 1e-5), 2 * epsilon_at(plan.event, 1e-5)], rel=1e-6)
    with refused(ConfigError, party="B", code="refused"):
        train(job, tmp_path / "three")
