"""Runs with noise on training records: paid for once, before anything is opened; the same noise later; attacks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import about, nightly
from tests.errors import refused
from tests.mpc.sealed.parties import run as run_parties
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.cutting import CutError, checkpoint
from tests.paradigms.sealed.programs import TWIN, by_trust, saved, small_graphs
from tests.paradigms.sealed.records import RECORDS, record_job, scored, with_rows, without_noise
from tests.roles.federation import Settings
from veilgraph.core.errors import BudgetSpent, ConfigError, RunError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.label_holder import SealedLabelHolder
from veilgraph.paradigms.sealed.plan import record_noise_of
from veilgraph.paradigms.sealed.records.program import RecordProgram
from veilgraph.paradigms.sealed.records.rows import noise_of_sums
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.publisher import CountPublisher
from veilgraph.protocol.acceptance import refusal_of
from veilgraph.protocol.job_file import read_job
from veilgraph.protocol.messages import rows_of
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.report.ledgers import ledger_at
from veilgraph.report.run_data import read_spent
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_organisations

EPSILON = 4.0


def paid(run: Path, party: str = "B") -> list[dict[str, Any]]:
    lines = (run / "parties" / party / "ledger.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def saved_job(folder: Path, *changes: Settings, holders: int = 2) -> SealedJob:
    return saved(folder / "data", record_job(holders, *changes), small_graphs(holders))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    folder = tmp_path_factory.mktemp("records")
    return train(saved_job(folder, holders=3), folder / "run")


def test_every_holder_but_the_label_holder_pays_once(whole: TrainResult) -> None:
    for party in "BC":
        (entry,) = paid(whole.path, party)
        assert [entry["channel"], entry["count"], entry["event"]["kind"]] == ["predictions", 1, "gaussian"]
        assert [entry["event"]["unit"], entry["event"]["neighbours"]] == ["training-record", "zero-out"]
        assert entry["total"] == pytest.approx(EPSILON, rel=1e-6)
    assert not (whole.path / "parties" / "A" / "ledger.jsonl").exists()
    spent = read_spent(RunDirectory.open(whole.path))
    assert [spent[party]["epsilon_total"] for party in "ABC"] == pytest.approx([0, EPSILON, EPSILON], rel=1e-6)
    assert {spent[party]["delta"] for party in "ABC"} == {1e-4}


def test_every_message_of_a_run_has_a_row(whole: TrainResult) -> None:
    job, seen = record_job(3), set()
    for party in (*"ABC", SERVER):
        for entry in json.loads((whole.path / "parties" / party / "traffic.json").read_text()):
            ends = (party, entry["peer"]) if entry["direction"] == "sent" else (entry["peer"], party)
            assert entry["kind"] in {row.kind.name.lower() for row in rows_of(job, *ends)}
            seen.add((entry["kind"], *ends))
    assert {each for each in seen if each[0] == "mask_share"} == {("mask_share", "B", "A"), ("mask_share", "C", "A")}


def test_predicting_again_is_of_the_same_weights_and_costs_nothing(
    whole: TrainResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened is the same up to how it was rounded: so nobody averages noise away."""
    told, learn = list[torch.Tensor](), SealedLabelHolder.learn

    def kept(self: SealedLabelHolder, found: torch.Tensor) -> None:
        told.append(found)
        learn(self, found)

    monkeypatch.setattr(SealedLabelHolder, "learn", kept)
    before = paid(whole.path)
    for _ in range(2):
        assert torch.equal(predict(whole.path).classes, whole.predictions.classes)
    assert paid(whole.path) == before
    assert float((told[0] - told[1]).abs().max()) < 2.0**-20
    assert not bool(told[0][:8].any()), "training nodes stay masked"
    assert bool(told[0][8:].any())


def relabelled(run: Path, party: PartyId, **changes: Any) -> None:
    """Change a party's own copy of its graph, which a run predicts of."""
    path = run / "parties" / party / "graph.safetensors"
    save_party(replace(load_party(path), **changes), path)


def test_training_nodes_stay_masked_where_the_label_holder_trains_on_them_no_more(tmp_path: Path) -> None:
    """Or their own columns would be told beside the sum that they are in."""
    run, told = train(saved_job(tmp_path), tmp_path / "run").path, list[torch.Tensor]()
    relabelled(run, "A", train_mask=torch.arange(30) < 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedLabelHolder, "learn", lambda self, found: told.append(found))
        with pytest.raises(AttributeError):  # as nothing was learned
            predict(run)
    assert not bool(told[0][:8].any())
    assert bool(told[0][8:].any())


def test_predictions_are_of_the_columns_that_were_trained_on(tmp_path: Path) -> None:
    """The same weights, made of a record that has changed, would tell of both."""
    job = saved_job(tmp_path)
    trained = train(job, tmp_path / "run")
    other = small_graphs()[1]
    save_party(replace(other, features=other.features + 1), tmp_path / "data" / "B.safetensors")
    assert torch.equal(predict(trained.path).classes, trained.predictions.classes)
    relabelled(trained.path, "B", features=other.features + 1)
    with refused(RunError, party="B", code="data-changed"):
        predict(trained.path)
    assert len(paid(trained.path)) == 1


def test_nothing_is_opened_before_it_is_paid_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen, opens = tmp_path / "run", list[int](), RecordProgram.predict

    def watched(self: RecordProgram) -> Any:
        seen.append(len(paid(run)))
        return opens(self)

    monkeypatch.setattr(RecordProgram, "predict", watched)
    train(saved_job(tmp_path), run)
    assert max(seen) == 1, "nobody predicted"

    def broke(self: CountPublisher, content: str) -> None:
        raise BudgetSpent("no room: allow more")

    monkeypatch.setattr(CountPublisher, "pay", broke)
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: seen.append(-1))
    with pytest.raises(BudgetSpent):
        train(saved_job(tmp_path), tmp_path / "other")
    assert -1 not in seen


def test_gone_on_with_after_scores_were_told_it_tells_the_same_and_pays_no_more(tmp_path: Path) -> None:
    job, run, told = saved_job(tmp_path), tmp_path / "run", list[torch.Tensor]()
    learn = SealedLabelHolder.learn

    def kept(self: SealedLabelHolder, found: torch.Tensor) -> None:
        told.append(found)
        if len(told) == 1:
            raise CutError
        learn(self, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedLabelHolder, "learn", kept)
        with pytest.raises(CutError):
            train(job, run)
        resume(run)
    assert len(paid(run)) == 1
    assert float((told[0] - told[1]).abs().max()) < 2.0**-20


def test_sums_made_anew_have_new_noise_and_are_not_told_where_no_second_release_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All shares are lost after scores were told: two of one sum with other noise would have twice the price."""
    run, drawn = tmp_path / "run", list[torch.Tensor]()

    def kept(*args: Any) -> torch.Tensor:
        drawn.append(noise_of_sums(*args))
        return drawn[-1]

    monkeypatch.setattr(f"{RECORDS}.noise_of_sums", kept)
    with monkeypatch.context() as patch:
        patch.setattr(SealedLabelHolder, "learn", stops)
        with pytest.raises(CutError):
            train(saved_job(tmp_path), run)
    for party in ("A", "B", SERVER):
        checkpoint(run, party, 1).unlink()
        RunDirectory.open(run).party(party).model_path.unlink(missing_ok=True)
    told = list[torch.Tensor]()
    monkeypatch.setattr(SealedLabelHolder, "learn", lambda self, found: told.append(found))
    with pytest.raises((BudgetSpent, RunError)):
        resume(run)
    assert len(paid(run)) == 1
    assert not told
    assert len(drawn) == 1 or not torch.equal(*drawn)


@nightly
def test_a_checked_dealer_deals_for_records_too(tmp_path: Path) -> None:
    run = train(saved_job(tmp_path, {"dealer_checks": 0.3}), tmp_path / "run").path
    assert len(paid(run)) == 1


@pytest.mark.parametrize("holders", [2, 3])
def test_bytes_are_counted_to_the_last_one(tmp_path: Path, holders: int) -> None:
    for job in by_trust(record_job(holders)):
        check_bytes(job, small_graphs(holders))


def check_bytes(job: SealedJob, graphs: list[PartyGraph]) -> None:
    context, data = twin_context(job, graphs)
    counted = costs_of(context, 1, dealer=job.dealing_party).stages
    links: dict[Any, Any] = {}

    def one(machine: Machine) -> object:
        own = {name: part for name, part in data.items() if name == machine.party}
        program = RecordProgram(machine, replace(context, data=own), fresh)
        if machine.party == TWIN:
            return None
        program.enter(trains=True)
        program.begin()
        program.step(0)
        shares = program.shares()
        program.restore(shares, training=False)
        return program.predict()

    run_parties(one, len(graphs), links, dealer=job.dealing_party)
    for party, link in links.items():
        sent = sum(each.bytes for each in link.traffic() if each.direction == "sent")
        assert sum(stage.sent[party] for stage in counted) == sent


def fresh(_: str) -> Any:
    return fixed_secrets("fresh", 1)


def from_tables(folder: Path, **limits: object) -> SealedJob:
    """The job of two organisations, of which B has these limits."""
    export_organisations(small_graphs(nodes=40), folder, overlap=0.9, seed=1, job=record_job())
    for party, own in (("A", {}), ("B", limits)):
        path = folder / party / "party.yaml"
        content = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump(content | {"limits": {"leakage": ["record-scores"], **own}}))
    found = read_job(folder / "job.yaml")
    assert isinstance(found, SealedJob)
    return found


def test_a_lifetime_ledger_adds_up_jobs_of_the_same_tables(tmp_path: Path) -> None:
    """Another training has other noise: Gaussian releases add up in μ². Where there is no room, none begins."""
    job = from_tables(tmp_path / "tables", max_epsilon=7.0, **about.RECORDS)
    folder, totals = tmp_path / "tables" / "B", list[float]()
    for run in ("one", "two"):
        train(job, tmp_path / run)
        ledger = ledger_at(Organisation(read_party_settings(folder / "party.yaml"), folder))
        assert ledger is not None
        totals.append(ledger.total())
    multiplier = record_noise_of(job, 40)
    assert multiplier is not None
    for number, total in enumerate(totals, start=1):
        assert total == pytest.approx(gaussian_epsilon(number**0.5 / multiplier, 1e-4), rel=1e-6)
    with refused(ConfigError, party="B", code="refused"):
        train(job, tmp_path / "three")
    with refused(ConfigError, party="B", code="refused"):
        train(from_tables(tmp_path / "edges", max_epsilon=7.0, **about.EDGES), tmp_path / "four")


def stops(*_: object) -> None:
    raise CutError


def test_a_holder_refuses_where_other_rows_would_scale_a_record_and_not_for_columns_of_edges(tmp_path: Path) -> None:
    """Categories and fill-ins that are fitted to all rows tell of one; ε here is about columns, of whatever made."""
    job, path = from_tables(tmp_path / "tables"), tmp_path / "tables" / "B" / "party.yaml"
    content = yaml.safe_load(path.read_text())
    columns = content["nodes"]["features"]

    def told(**nodes: object) -> str:
        path.write_text(yaml.safe_dump(content | {"nodes": {**content["nodes"], **nodes}}))
        return refusal_of(Organisation(read_party_settings(path), path.parent), job) or ""

    assert told() == ""
    assert told(columns_from_edges=["x*"]) == ""
    first = columns[0] if isinstance(columns, list) else columns
    name = first["columns"] if isinstance(first, dict) else first
    assert "own row alone" in told(features=[{"columns": name, "missing": "mean"}])


ROUNDS = 150


def told_by_messages(record: float, *, noise: bool) -> list[float]:
    """What A is told of a node with the row 1, of ``ROUNDS`` whole jobs of all parties with messages between them."""
    job, nodes = record_job(epsilon_total=2.0), 20
    context, _ = twin_context(job, small_graphs(nodes=nodes, columns=0, training=8))
    own = context.data["A"]
    assert own.residuals is not None
    residuals, rows = torch.zeros_like(own.residuals), torch.zeros(nodes, 1, dtype=torch.float64)
    residuals[0, 0], rows[0], rows[nodes - 1] = 1.0, record, 1.0
    data = {**with_rows(context, "B", rows).data, "A": replace(own, residuals=residuals)}
    source, found = fixed_secrets("messages", record), list[float]()

    def one(machine: Machine) -> object:
        part = {name: each for name, each in data.items() if name == machine.party}
        if machine.party == TWIN:
            return None
        return scored(RecordProgram(machine, replace(context, data=part), lambda _: source))[1]

    for _ in range(ROUNDS):
        if noise:
            told: Any = run_parties(one, 2)["A"]
        else:
            with without_noise(torch.eye(1, dtype=torch.float64)):
                told = run_parties(one, 2)["A"]
        found.append(float(told[nodes - 1, 0]))
    return found


@nightly
@pytest.mark.parametrize("noise", [True, False])
def test_a_game_over_messages_of_whole_jobs_proves_no_more_than_epsilon_and_more_without_noise(noise: bool) -> None:
    there, absent = (told_by_messages(record, noise=noise) for record in (1.0, 0.0))
    between = 2.0**-9
    hits, alarms = (sum(each > between for each in told) for told in (there, absent))
    found = epsilon_lower_bound(hits, alarms, ROUNDS, 1e-4, 0.999)
    assert (found > 2.0) != noise
