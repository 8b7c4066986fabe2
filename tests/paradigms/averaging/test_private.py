"""Private trainings: as their twin has them, paid for first, within their ledgers, and silent about all else."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.private.sampled import CHANNEL, SampledPublisher
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.training import EXTRA, PrivateTraining, Terms

from tests import about, nightly
from tests.errors import refused
from tests.paradigms.averaging.jobs import graphs, predicts_as_twin, weights_of_twin
from tests.paradigms.averaging.private_jobs import job, known_noise, twin_of
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.exported import export, over
from tests.privacy.lifetime.ledgers import NODES
from tests.privacy.lifetime.ledgers import ledger as lifetime_at
from tests.roles.federation import Settings
from veilgraph.core.errors import BudgetSpent, ConfigError, DataError, ProtocolError
from veilgraph.core.secrets import system_secrets
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.privacy import accountant
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.ledger_files import FILE
from veilgraph.privacy.lifetime_costs import epsilon, price
from veilgraph.privacy.lifetime_ledger import Account, Budget
from veilgraph.privacy.publisher import OPEN
from veilgraph.privacy.settings import fitting_delta
from veilgraph.protocol.aligning import split_by_labels
from veilgraph.protocol.limits import LimitSettings, delta_too_large, refusal, revelations
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import protection_of
from veilgraph.report.ledgers import spent_table
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.tables.settings import SplitFractions

LONGER: Settings = {"train": {"epochs": 5, "checkpoint_every": 2}}


def paid(run: Path, party: str) -> int:
    lines = (run / "parties" / party / "ledger.jsonl").read_text(encoding="utf-8").splitlines()[1:]
    return sum(json.loads(line)["count"] for line in lines)


def test_a_run_is_its_twin_with_the_same_noise_and_tells_sums_of_gradients_alone(tmp_path: Path) -> None:
    settings = job()
    with known_noise():
        run, twin = train(settings, tmp_path / "run"), twin_of(settings)
    weights_of_twin(run, twin, settings.data.names)
    assert {paid(run.path, party) for party in settings.data.names} == {settings.train.epochs}
    predicts_as_twin(run, settings, twin, graphs(settings)[0])
    assert all(record.get("loss") is None for record in run.metrics)
    size, rounds = len(twin.network.vector()) + EXTRA, settings.train.epochs
    traffic = json.loads((run.path / "traffic.json").read_text(encoding="utf-8"))
    sent = [entry for entry in traffic if entry["direction"] == "sent" and entry["party"] == "A"]
    masked = [entry for entry in sent if entry["kind"].lower() == "masked"]
    assert sum(entry["messages"] for entry in masked) == rounds
    assert sum(entry["bytes"] for entry in masked) == rounds * (HEADER_BYTES + 8 * size)
    assert settings.training_plan is not None
    facts = run.summary["privacy"]["A"]
    assert facts["releases"] == {CHANNEL: rounds}
    assert facts["epsilon_total"] == pytest.approx(settings.training_plan.epsilon_total)
    assert (facts["unit"], facts["neighbours"], facts["delta"]) == ("node-edges", "zero-out", 1e-5)
    spent_table(run.summary["privacy"], settings)


def test_a_run_that_was_cut_off_makes_no_more_rounds_than_were_planned(tmp_path: Path) -> None:
    settings, path = job(LONGER), tmp_path / "cut"
    with cut_at(3), pytest.raises((CutError, ProtocolError)):  # the others cannot go on without it
        train(settings, path)
    assert paid(path, "A") == 4  # rounds 3 and 4 are paid for, and checkpoint 2 is the last
    resumed = resume(path)
    assert [record["epoch"] for record in resumed.metrics] == [1, 2, 3]
    assert all(paid(path, party) == settings.train.epochs for party in settings.data.names)


def test_a_holder_with_a_node_of_too_many_neighbours_takes_no_part(tmp_path: Path) -> None:
    settings = job({"averaging": {"privacy": {"degree_bound": 2}}})
    with refused(DataError, code="degree-bound"):
        paradigm_of(settings).data.check_graphs(settings, graphs(settings))
    with refused(DataError, code="degree-bound"):
        twin_of(settings)
    with refused(DataError, code="degree-bound"):  # where all graphs are on one machine: before the job
        train(settings, tmp_path / "run")
    assert not list(tmp_path.glob("run/parties/*"))
    assert "degree_bound=2 neighbours" in PrivateTraining(settings, graphs(settings)[0]).refuses


def test_what_a_holder_adds_is_its_noisy_gradient_no_loss_and_1() -> None:
    settings = job(
        {"averaging": {"privacy": {"noise_multiplier": 1e-3, "sampling_rate": 1.0, "batch": 7, "clip": 1e3}}}
    )
    assert settings.training_plan is not None
    graph = graphs(settings)[0]
    net = PlainAveraging(settings, [graph]).network
    publisher = settings.training_plan.paid_by(None, system_secrets)
    private = PrivateTraining(settings, graph)
    found = private.summand(net, publisher, 0)
    terms = private._terms
    assert isinstance(terms, Terms)
    exact = sum((terms.gradient(net, each) for each in range(len(terms))), torch.zeros(len(found) - EXTRA))
    decay = settings.train.weight_decay * net.vector()
    assert torch.allclose(found[:-EXTRA], exact / 7 + decay, atol=2.0)  # noise of deviation 1 over a batch of 7
    assert float((found[:-EXTRA] - exact / 7 - decay).std()) == pytest.approx(1 / 7, rel=0.5)
    assert found[-EXTRA:].tolist() == [0.0, 1.0]
    assert graph.train_mask is not None
    empty = replace(graph, train_mask=torch.zeros_like(graph.train_mask))
    assert PrivateTraining(settings, empty).summand(net, publisher, 0)[-1] == 1  # that it has none does not show
    bare = replace(graph, labels=None, num_classes=None, train_mask=None, val_mask=None, test_mask=None)
    assert not PrivateTraining(settings, bare).summand(net, OPEN, 0).any()
    with refused(ConfigError, key="averaging.privacy"):
        private.summand(net, OPEN, 0)


@contextmanager
def publisher(settings: AveragingJob, folder: Path, account: Account | None = None) -> Iterator[SampledPublisher]:
    plan = settings.training_plan
    assert plan is not None
    path = folder / "ledger.jsonl"
    with closing(Ledger.open(path, 1e-5, plan.settings.epsilon_total, job=settings.hash())) as own:
        yield plan.paid_by(own, system_secrets, account)


def one(of: SampledPublisher, step: int) -> torch.Tensor:
    return of.sampled_sum(3, lambda _: torch.ones(4, dtype=torch.float64), 4, step)


def test_every_round_is_paid_for_before_it_is_computed_and_none_is_made_beyond_the_plan(tmp_path: Path) -> None:
    settings = job({"averaging": {"privacy": {"sampling_rate": 1.0}}})
    plan = settings.training_plan
    assert plan is not None
    with publisher(settings, tmp_path) as of:
        asked = list[int]()

        def gradient(number: int) -> torch.Tensor:
            asked.append(len((tmp_path / "ledger.jsonl").read_bytes().splitlines()))
            return torch.ones(4, dtype=torch.float64)

        assert of.affordable_steps() == 3
        of.sampled_sum(2, gradient, 4, 0)
        assert asked == [2, 2]
        of.expect(2, 1)
        assert of.affordable_steps() == 0
        one(of, 1)
    with publisher(settings, tmp_path) as of, refused(BudgetSpent, key="train.epochs"):
        one(of, 2)  # what was reserved is counted, used or not
    with publisher(settings, tmp_path) as of:
        assert of.spent().releases == {CHANNEL: 3}
        assert of.spent().epsilon_total == pytest.approx(accountant.total({plan.event: 3}, 1e-5))


def test_the_ledger_for_life_refuses_a_second_job_beyond_the_total(tmp_path: Path) -> None:
    settings = job()
    plan = settings.training_plan
    assert plan is not None
    cost = price(plan.event, plan.steps, 1e-5)
    once, twice = epsilon(cost, 1e-5), epsilon(cost.times(2), 1e-5)
    assert plan.epsilon_total < once < twice
    life = lifetime_at(tmp_path / "life", Budget((once + twice) / 2, 1e-5))
    for number in (1, 2):
        (folder := tmp_path / f"run-{number}").mkdir()
        account = Account(life, life.keys(NODES), 1e-5, settings.hash(), settings.name)
        with publisher(settings, folder, account) as of:
            assert bool(of.refusal()) == (number == 2)
            if number == 2:
                with refused(BudgetSpent, code="lifetime", key="limits.max_epsilon"):
                    one(of, 0)
                continue
            for step in range(plan.steps):
                one(of, step)
    with publisher(settings, tmp_path / "run-1", account) as of:
        assert of.refusal() == "", "its rounds are paid for, and no prediction costs anything"
    assert life.total() == pytest.approx(once)
    assert life.total_with(plan.event, plan.steps, 3) == pytest.approx(epsilon(cost.times(4), 1e-5))


@nightly
def test_all_slow_accounting_is_done_before_the_server_waits_for_a_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can take a minute, ``patience_s`` is 60, and a holder that is late in every process is no holder at all."""
    settings = job({"averaging": {"privacy": {"noise_multiplier": 4.03125}}})  # of no other test: nothing is known yet
    compose = MagicMock(wraps=accountant.composed)
    monkeypatch.setattr(accountant, "composed", compose)
    life = lifetime_at(tmp_path / "life")
    account = Account(life, life.keys(NODES), 1e-5, settings.hash(), settings.name)
    with publisher(settings, tmp_path, account) as of:
        assert of.refusal() == ""
        assert compose.call_count == 2  # for life, and of the run
        of.expect(1, 0)
        one(of, 0)
        assert of.spent().releases == {CHANNEL: 1}
    assert compose.call_count == 2


def test_tables_pay_for_life_and_a_limit_that_holds_needs_no_name_in_leakage(tmp_path: Path) -> None:
    settings = job({"data": {"feature_scaling": "none"}})
    parties = export(tmp_path, settings)
    run = train(over(parties, settings), tmp_path / "run")
    assert run.summary["privacy"].keys() == set(settings.data.names)
    folder = parties["A"].parent / "ledger"
    assert any(CHANNEL in path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file())


def test_where_one_holder_has_no_room_for_life_all_hear_of_it_and_nobody_pays(tmp_path: Path) -> None:
    settings = job({"data": {"feature_scaling": "none"}})
    plan = settings.training_plan
    assert plan is not None
    parties = export(tmp_path, settings)
    train(over(parties, settings), tmp_path / "run")
    cost, delta = price(plan.event, plan.steps, plan.delta), plan.delta
    content = yaml.safe_load(parties["A"].read_text(encoding="utf-8"))
    limit = (epsilon(cost, delta) + epsilon(cost.times(2), delta)) / 2
    content["limits"] |= {**about.WITH_EDGES, "max_epsilon": limit, "most_neighbours": 20}
    parties["A"].write_text(yaml.safe_dump(content), encoding="utf-8")
    ledgers = {name: file.parent / "ledger" / FILE for name, file in parties.items()}
    before = {name: path.read_bytes() for name, path in ledgers.items()}
    another = settings.model_copy(update={"name": "another"})
    with refused(ConfigError, party="A", key="limits.max_epsilon"):
        train(over(parties, another), tmp_path / "another")
    assert {name: path.read_bytes() for name, path in ledgers.items()} == before


def test_tables_whose_split_or_features_hang_on_other_nodes_take_no_part(tmp_path: Path) -> None:
    settings = job()
    own = Organisation.read(export(tmp_path, settings)["A"], "A")
    assert settings.inputs.per_node == settings.inputs.per_edge == settings.data.names
    nodes = own.settings.nodes
    for stratify in (True, False):
        split = SplitFractions(train=0.5, val=0.2, test=0.3, stratify=stratify)
        party = own.settings.model_copy(update={"nodes": nodes.model_copy(update={"split": split})})
        assert bool(split_by_labels(settings, party)) == stratify


def test_a_partys_limit_is_held_against_the_jobs_total() -> None:
    private, bare = job(), job({"averaging": {"privacy": None}})
    total = paradigm_of(private).privacy.largest_epsilon(private, "A")
    fits = LimitSettings(leakage=("single-updates",), max_epsilon=total + 1, **about.WITH_EDGES, max_delta=1e-5)
    assert refusal(fits, private, "A", epsilon=total) is None
    for limits in (
        fits.model_copy(update={"max_epsilon": total - 0.1}),
        fits.model_copy(update={"max_delta": 1e-6}),
        fits.model_copy(update={"epsilon_unit": "row"}),
        fits.model_copy(update={"epsilon_neighbours": "replacement"}),
    ):
        assert refusal(limits, private, "A", epsilon=total)
    assert refusal(fits, bare, "A", epsilon=paradigm_of(bare).privacy.largest_epsilon(bare, "A"))
    assert "score-tallies" in revelations(bare)
    assert "score-tallies" not in revelations(private)


@pytest.mark.parametrize(("batch", "rate", "delta"), [(1000, 1.0, 1e-4), pytest.param(200, 0.1, 1e-5, marks=nightly)])
def test_a_delta_that_a_job_leaves_out_fits_the_training_nodes_by_public_knowledge(
    batch: float, rate: float, delta: float
) -> None:
    """As those of other paradigms fit N: of a holder's own number of nodes, which is not stated, it tells nothing."""
    given = {"noise_multiplier": None, "epsilon_total": 6.0, "batch": batch, "sampling_rate": rate, "delta": None}
    left_out, said = (
        job({"averaging": {"privacy": {**given, "delta": each}}}) for each in (None, fitting_delta(round(batch / rate)))
    )
    plans = [each.training_plan for each in (left_out, said)]
    assert plans[0] is not None
    assert plans[1] is not None
    assert plans[0].delta == pytest.approx(delta)
    assert plans[0].multiplier == plans[1].multiplier
    assert plans[0].epsilon_total == plans[1].epsilon_total
    assert protection_of(left_out).facts()["A"]["delta"] == pytest.approx(delta)
    assert refusal(
        LimitSettings(leakage=(), max_epsilon=9, **about.WITH_EDGES, max_delta=delta / 2), left_out, "A", epsilon=6
    )
    assert delta_too_large(left_out, round(1 / delta))
    assert not delta_too_large(left_out, round(1 / delta) - 1)


WRONG: dict[str, tuple[Settings, str]] = {
    "both noises": ({"averaging": {"privacy": {"epsilon_total": 1.0}}}, "epsilon_total"),
    "no noise": ({"averaging": {"privacy": {"noise_multiplier": None}}}, "epsilon_total"),
    "another unit": ({"averaging": {"privacy": {"unit": "edge"}}}, "averaging.privacy.unit"),
    "a rate of 0": ({"averaging": {"privacy": {"sampling_rate": 0}}}, "averaging.privacy.sampling_rate"),
    "no clip": ({"averaging": {"privacy": {"clip": 0}}}, "averaging.privacy.clip"),
    "no batch": ({"averaging": {"privacy": {"batch": 0}}}, "averaging.privacy.batch"),
    "another rule": ({"averaging": {"rule": {"name": "fedavg"}}}, "averaging.rule.name"),
    "another task": ({"averaging": {"task": {"name": "values"}}}, "averaging.task.name"),
    "weights at home": ({"averaging": {"personal": ["input"]}}, "averaging.personal"),
    "dropout": ({"model": {"dropout": 0.1}}, "model.dropout"),
    "dropout of hops": ({"model": {"local": {"dropout": 0.1}}}, "model.local.dropout"),
    "degrees of sources": ({"model": {"local": {"model": "gcn"}}}, "model.local.model"),
    "epochs by scores": ({"train": {"select_by": "accuracy"}}, "train.select_by"),
    "no bound": ({"averaging": {"privacy": {"degree_bound": None}}}, "averaging.privacy.degree_bound"),
    "a bound for nothing": ({"model": {"local": {"hops": 0}}}, "averaging.privacy.degree_bound"),
    "statistics": ({"data": {"feature_scaling": "standard"}}, "data.feature_scaling"),
    "a split by classes": ({"data": {"stratify": True}}, "data.split"),
    "the data set's split": ({"data": {"split": None, "stratify": True}}, "data.split"),
}


@pytest.mark.parametrize(("changes", "key"), WRONG.values(), ids=WRONG.keys())
def test_settings_that_would_tell_more_are_refused(changes: Settings, key: str) -> None:
    with refused(ConfigError, key=key):
        job(changes)
