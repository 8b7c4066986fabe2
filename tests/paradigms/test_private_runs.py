"""Whole runs with differential privacy: what the ledger counts is what was sent, and the budget ends what it must."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from tests import about
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_at, cut_run
from tests.paradigms.private import (
    DELTA,
    LABEL_HOLDER,
    NOISE,
    OTHER,
    arrived,
    cost,
    entries,
    kinds_sent,
    ledger,
    paid,
    planned,
    private_job,
    refused_by_all,
    sent,
    spent_total,
)
from tests.paradigms.runs import assert_same_run
from tests.roles.federation import Settings
from veilgraph.core.errors import RunError, VeilgraphError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.settings import DataSettings
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import load_result, predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.samples.organisations import export_dataset


def assert_complete(run: Path, epochs: int) -> None:
    result = load_result(run)
    assert [record["epoch"] for record in result.metrics] == list(range(1, epochs + 1))
    assert result.summary["best_epoch"] == epochs
    settings = RunDirectory.open(run).settings
    for party in (*settings.data.names, SERVER):
        assert RunDirectory.open(run).party(party).model_path.is_file()


@pytest.mark.parametrize("schedule", ["every-step", "once"])
def test_a_delta_of_one_node_in_n_is_refused_by_all(tmp_path: Path, schedule: str) -> None:
    """Before anything is released: at δ = 0.9999 the noise of ε = 1 is an eighth of the clip."""
    once: Settings = {"model": {"local": {"model": "appnp"}}, "privacy": {"unit": "row", "schedule": "once"}}
    settings = private_job(tmp_path / "data", once if schedule == "once" else {}, epsilon_total=1, delta=0.9999)
    refused_by_all(
        lambda: train(settings, tmp_path / "run"), r"refuses the job: privacy\.delta=0\.9999 with \d+ common"
    )
    for party in settings.data.names:
        assert paid(tmp_path / "run", party) == Counter()


def test_a_delta_of_one_pair_with_an_edge_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    once: Settings = {"model": {"local": {"model": "appnp"}}}
    settings = private_job(
        tmp_path / "data", once, schedule="once", unit="edge", degree_bound=4, epsilon_total=1, delta=1 / 61
    )
    refused_by_all(lambda: train(settings, tmp_path / "run"), r"B refuses the job: privacy\.delta=0\.01\d+ is too much")
    assert paid(tmp_path / "run", OTHER) == Counter()


# What is paid is what is sent


JOBS: dict[str, tuple[int, Settings]] = {
    "one round": (2, {}),
    "two rounds": (2, {"model": {"rounds": 2}}),
    "two rounds, no mask, three holders": (3, {"model": {"rounds": 2, "combine": {"masked": False}}}),
    "concat": (2, {"model": {"combine": {"strategy": "concat"}}}),
    "seldom evaluated": (2, {"train": {"evaluate_every": 4, "checkpoint_every": 4}}),
    "collaborative, two rounds": (2, {"model": {"rounds": 2, "initial": {"method": "collaborative"}}}),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize(("holders", "changes"), JOBS.values(), ids=JOBS.keys())
def test_the_ledger_counts_what_is_sent_and_ends_at_the_budget(tmp_path: Path, holders: int, changes: Settings) -> None:
    settings = private_job(tmp_path / "data", changes, holders=holders, epsilon_total=8)
    run = train(settings, tmp_path / "run")
    assert_complete(run.path, settings.train.epochs)
    for party in settings.data.names:
        of = planned(settings, party)
        count = paid(run.path, party)
        own = count - Counter(others=count["others"])
        assert own == sent(run.path, party) == arrived(run.path, party)
        assert count.total() == of.releases
        rounds, epochs = vertical(settings).model.rounds, settings.train.epochs
        labelled = party == LABEL_HOLDER
        assert own == Counter(embeddings=rounds * (epochs + 1), gradients=epochs * (rounds - 1 + labelled))
        assert count["others"] == of.others * (rounds * (epochs + 1) + epochs * (rounds - 1))
        assert 8 - 1e-6 < spent_total(run.path, party) <= 8
        summary = run.summary["privacy"][party]
        assert summary["releases"] == {channel: number for channel, number in count.items() if number}
        assert summary["epsilon_total"] == pytest.approx(spent_total(run.path, party), rel=1e-12)
        assert summary["epsilon_release"] == pytest.approx(cost(1, of.multiplier), rel=1e-9)
        assert summary["budget"] == 8
    assert not ledger(run.path, SERVER).exists()


@pytest.mark.cases(1)
@pytest.mark.parametrize(("rounds", "spare"), [(1, 1), (2, 0)])
def test_training_ends_where_the_tightest_budget_does(tmp_path: Path, rounds: int, spare: int) -> None:
    """Here the label holder's, which publishes gradients of z_L as well. ``spare`` releases are no training step."""
    affordable, per_step = 5, 2 * rounds
    most = affordable * per_step + rounds + spare
    budget = cost(most) * (1 + 1e-9)
    settings = private_job(
        tmp_path / "data",
        {"model": {"rounds": rounds}, "train": {"epochs": 9, "checkpoint_every": 3}},
        noise_multiplier=NOISE,
        epsilon_total=budget,
    )
    run = train(settings, tmp_path / "run")
    assert_complete(run.path, affordable)
    for party in (LABEL_HOLDER, OTHER):
        assert paid(run.path, party) == sent(run.path, party)
        assert spent_total(run.path, party) <= budget
    assert paid(run.path, LABEL_HOLDER).total() == most - spare
    assert cost(most - spare + per_step) > budget
    assert paid(run.path, OTHER).total() == affordable * (2 * rounds - 1) + rounds


@pytest.mark.parametrize(
    ("releases", "message"),
    [(2, "this noise allow no training step beside the inference"), (0, "0 more releases fit the budget")],
)
def test_too_small_a_budget_is_one_joint_refusal(tmp_path: Path, releases: int, message: str) -> None:
    """The label holder needs two releases for a step and one for the inference."""
    budget = cost(releases) * 1.001 if releases else cost(1) / 2
    settings = private_job(tmp_path / "data", noise_multiplier=NOISE, epsilon_total=budget)
    run = tmp_path / "run"
    refusal = refused_by_all(lambda: train(settings, run), message)
    assert refusal.count("refuses the job: ") == (1 if releases else 2)
    for party in (LABEL_HOLDER, OTHER, SERVER):
        assert entries(run, party) == []
        assert kinds_sent(run, party) == {"hello"}
        assert not RunDirectory.open(run).party(party).model_path.exists()
    with refused(RunError, key=run):
        load_result(run)


# Predictions


def test_predictions_spend_from_the_same_ledger_until_it_is_empty(tmp_path: Path) -> None:
    settings = private_job(tmp_path / "data", {"model": {"rounds": 2}}, epsilon_total=8, predictions=2)
    run = train(settings, tmp_path / "run")
    assert_complete(run.path, settings.train.epochs)
    first = before = {party: paid(run.path, party) for party in (LABEL_HOLDER, OTHER)}
    for number in (1, 2):
        predictions = predict(run.path)
        assert not torch.equal(predictions.probabilities, run.predictions.probabilities), "no new noise"
        for party, counts in before.items():
            now = paid(run.path, party)
            assert now - counts == Counter(embeddings=2) == sent(run.path, party, "prediction_traffic.json")
            summary = json.loads((run.path / "parties" / party / "ledger.json").read_text())
            assert Counter(summary["releases"]) == now
            assert summary["epsilon_total"] == pytest.approx(spent_total(run.path, party), rel=1e-12)
            assert spent_total(run.path, party) <= 8
        before = {party: paid(run.path, party) for party in before}
        assert before[OTHER] == first[OTHER] + Counter(embeddings=2 * number)
    for party in before:
        assert paid(run.path, party).total() == planned(settings, party).releases
        assert spent_total(run.path, party) > 8 - 1e-6
    kept = (run.path / "parties" / LABEL_HOLDER / "predictions.csv").read_bytes()
    for _ in range(2):
        refusal = refused_by_all(lambda: predict(run.path), "A refuses the job: .*0 more releases fit the budget")
        assert "B refuses the job: " in refusal
        for party in (LABEL_HOLDER, OTHER):
            assert kinds_sent(run.path, party, "prediction_traffic.json") == {"hello"}
            assert paid(run.path, party) == before[party]
    assert (run.path / "parties" / LABEL_HOLDER / "predictions.csv").read_bytes() == kept


def test_a_resumed_training_leaves_that_room_too(tmp_path: Path) -> None:
    changes: Settings = {"train": {"epochs": 6, "checkpoint_every": 2}}
    settings = private_job(tmp_path / "data", changes, epsilon_total=8, predictions=2)
    run = cut_run(settings, tmp_path / "run", 3)
    resume(run)
    assert_complete(run, 4)
    predict(run)
    predict(run)
    refused_by_all(lambda: predict(run), "0 more releases fit the budget")


def test_a_lost_ledger_beside_the_model_refuses_predictions(tmp_path: Path) -> None:
    run = train(private_job(tmp_path / "data", noise_multiplier=NOISE), tmp_path / "run")
    ledger(run.path, OTHER).unlink()
    for party in (LABEL_HOLDER, OTHER, SERVER):
        for path in (run.path / "parties" / party / "checkpoints").iterdir():
            path.unlink()
    with refused(RunError, code="refused", key="ledger.jsonl", party="B"):
        predict(run.path)
    assert not ledger(run.path, OTHER).exists()


# Going on


def test_a_resumed_run_goes_on_with_its_ledger(tmp_path: Path) -> None:
    """Without slack it ends earlier than planned, for what was paid twice is gone."""
    epochs, every, cut, rounds = 12, 4, 6, 2
    changes: Settings = {"model": {"rounds": rounds}, "train": {"epochs": epochs, "checkpoint_every": every}}
    settings = private_job(tmp_path / "data", changes, epsilon_total=8)
    run = cut_run(settings, tmp_path / "run", cut)
    before = {party: paid(run, party) for party in settings.data.names}
    first = {party: sent(run, party) | arrived(run, party) for party in settings.data.names}
    for party, count in first.items():
        assert count["embeddings"] >= cut * rounds
        assert count <= before[party], "paid before it was sent"
    resumed = resume(run)
    assert resumed.summary["started_at"] == 4
    # Epochs 5 to 8 were paid for already: of 12 steps 8 are spent, and 4 are left after checkpoint 4.
    assert_complete(run, 8)
    for party in settings.data.names:
        both = first[party] + sent(run, party)
        assert both <= paid(run, party)
        assert paid(run, party) == before[party] + sent(run, party)
        assert paid(run, party).total() == planned(settings, party).releases
        assert 8 - 1e-6 < spent_total(run, party) <= 8
    refused_by_all(lambda: predict(run), "0 more releases fit the budget")


def test_resumed_again_and_again_it_ends_within_the_budget(tmp_path: Path) -> None:
    changes: Settings = {"train": {"epochs": 20, "checkpoint_every": 2}}
    settings = private_job(tmp_path / "data", changes, epsilon_total=8)
    run = cut_run(settings, tmp_path / "run", 3)
    for epoch in (3, 5, 5):
        with cut_at(epoch), pytest.raises(CutError):
            resume(run)
    result = resume(run)
    # Every cut was within two epochs that were paid for together, and were then paid for again.
    assert result.summary["best_epoch"] == len(result.metrics) == 20 - 2 * 4
    for party in settings.data.names:
        assert paid(run, party).total() <= planned(settings, party).releases
        assert spent_total(run, party) <= 8


@pytest.mark.cases(1)
@pytest.mark.parametrize("losers", [(LABEL_HOLDER, OTHER, SERVER), (SERVER,)])
def test_deleting_checkpoints_gives_no_budget_back(tmp_path: Path, losers: tuple[PartyId, ...]) -> None:
    changes: Settings = {"train": {"epochs": 6, "checkpoint_every": 2}}
    settings = private_job(tmp_path / "data", changes, epsilon_total=8)
    run = cut_run(settings, tmp_path / "run", 3)
    before = {party: ledger(run, party).read_bytes() for party in settings.data.names}
    for party in losers:
        for path in (run / "parties" / party / "checkpoints").iterdir():
            path.unlink()
    assert resume(run, restart=True).summary["started_at"] == 0
    assert_complete(run, 6 - 4)
    for party in settings.data.names:
        assert ledger(run, party).read_bytes().startswith(before[party])
        assert paid(run, party).total() == planned(settings, party).releases
        assert spent_total(run, party) <= 8


def test_spent_up_in_one_partys_view_and_begun_anew_in_anothers(tmp_path: Path) -> None:
    """A has a checkpoint and no step left, B no checkpoint and steps enough: no model is made of initial weights."""
    budget = cost(2 * 4 + 1) * (1 + 1e-9)
    changes: Settings = {"train": {"epochs": 4, "checkpoint_every": 2}}
    settings = private_job(tmp_path / "data", changes, noise_multiplier=NOISE, epsilon_total=budget)
    run = cut_run(settings, tmp_path / "run", 3)
    for path in (run / "parties" / OTHER / "checkpoints").iterdir():
        path.unlink()
    before = {party: paid(run, party) for party in settings.data.names}
    with refused(VeilgraphError, code="no-checkpoint"):
        resume(run, restart=True)
    assert {party: paid(run, party) for party in settings.data.names} == before


def test_no_step_left_after_a_checkpoint_takes_the_checkpoints_weights(tmp_path: Path) -> None:
    changes: Settings = {"train": {"epochs": 4, "checkpoint_every": 2, "evaluate_every": 3}}
    settings = private_job(tmp_path / "data", changes, epsilon_total=8)
    run = cut_run(settings, tmp_path / "run", 3)
    resume(run)
    assert_complete(run, 2)


def middle_line_removed(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))


def fewer_releases(path: Path) -> None:
    text = path.read_text()
    assert text.count('"count": 2') >= 2
    path.write_text(text.replace('"count": 2', '"count": 1', 1))


def torn_in_the_middle(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], lines[1][:40] + b"\n", *lines[2:]]))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def another_relation(path: Path) -> None:
    path.write_text(path.read_text().replace("zero-out", "replacement", 1))


DAMAGES: tuple[Callable[[Path], None], ...] = (
    Path.unlink,
    middle_line_removed,
    fewer_releases,
    torn_in_the_middle,
    empty,
    another_relation,
)


def test_a_damaged_ledger_beside_checkpoints_is_one_clear_error(tmp_path: Path) -> None:
    settings = private_job(tmp_path / "data", noise_multiplier=NOISE)
    run = cut_run(settings, tmp_path / "run", 5)
    whole = ledger(run, OTHER).read_bytes()
    for damage in DAMAGES:
        damage(ledger(run, OTHER))
        with refused(RunError, code="refused", key="ledger.jsonl", party="B") as caught:
            resume(run)
        assert "\n" not in str(caught.value)
        assert not sent(run, LABEL_HOLDER)
        assert not sent(run, OTHER)
        ledger(run, OTHER).write_bytes(whole)
    resume(run)
    assert_complete(run, 6)


def test_an_entry_cut_short_at_the_end_was_no_release(tmp_path: Path) -> None:
    """A kill in the middle of a line; the write had not returned."""
    settings = private_job(tmp_path / "data", noise_multiplier=NOISE)
    run = cut_run(settings, tmp_path / "run", 3)
    before = paid(run, OTHER)
    line = ledger(run, OTHER).read_bytes().splitlines()[-1]
    with ledger(run, OTHER).open("ab") as file:
        file.write(line[: len(line) // 2])
    resume(run)
    assert_complete(run, 6)
    assert paid(run, OTHER) == before + sent(run, OTHER)


# Noise


def test_clipping_alone_is_reproducible_and_protects_nothing(tmp_path: Path) -> None:
    settings = private_job(tmp_path / "data", noise_multiplier=0, clip=0.5)
    one = train(settings, tmp_path / "one")
    assert one.summary["privacy"][OTHER]["epsilon_total"] is None
    assert not ledger(one.path, OTHER).exists()
    assert_same_run(one, resume(cut_run(settings, tmp_path / "cut", 5)))
    assert torch.equal(predict(one.path).probabilities, one.predictions.probabilities)


# What a party accepts, in its own file


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Path]:
    pytest.importorskip("private_set_intersection", reason="there is no openmined-psi for this Python")
    return export_dataset(DataSettings(dataset="synthetic", holders=2), tmp_path / "tables", overlap=0.75, seed=3)


def bounded_job(parties: dict[str, Path], most: float, epochs: int) -> JobSettings:
    """B accepts no larger total; the job itself has no budget."""
    content = yaml.safe_load(parties[OTHER].read_text())
    parties[OTHER].write_text(yaml.safe_dump(content | {"limits": {"leakage": [], **about.ROWS, "max_epsilon": most}}))
    train_ = {"epochs": epochs, "checkpoint_every": 2, "select_by": "last", "patience": None}
    model = {"dim": 4, "initial": {"method": "individual"}}
    privacy = {"unit": "row", "schedule": "every-step", "noise_multiplier": NOISE, "delta": DELTA}
    data = {"parties": {name: str(path) for name, path in parties.items()}}
    return parse_job({"data": data, "model": model, "train": train_, "privacy": privacy})


def test_a_partys_own_limit_ends_predictions_earlier_where_it_was_lowered(
    parties: dict[str, Path], tmp_path: Path
) -> None:
    most = cost(4 + 1 + 1) * (1 + 1e-9)
    run = train(bounded_job(parties, most, 4), tmp_path / "run").path
    assert_complete(run, 4)
    bounded_job(parties, cost(3), 4)
    refused_by_all(lambda: predict(run), r"B refuses the job: limits\.max_epsilon=")
    bounded_job(parties, most, 4)
    predict(run)
    assert spent_total(run, OTHER) <= most < cost(7)
    before = paid(run, OTHER)
    refusal = refused_by_all(lambda: predict(run), "B refuses the job: 0 more releases fit the budget")
    assert "A refuses" not in refusal
    assert paid(run, OTHER) == before
    assert not sent(run, OTHER, "prediction_traffic.json")
