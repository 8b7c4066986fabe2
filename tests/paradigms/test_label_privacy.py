"""Vertical jobs whose label holder learns from perturbed labels: what leaves it, what it costs, what is refused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from veilgraph_testing.vertical import PerturbedNetwork, weights_of

from tests.chance import fixed_chance
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.perturbed import assert_gradients_tell, paid, perturbed
from tests.paradigms.runs import joint_model
from tests.roles.federation import Settings, small_job, small_parties
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import BudgetSpent, ConfigError, RunError
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.privacy.label_publisher import LabelPublisher, perturbed_nodes
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import OPEN
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import fit
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("from_memory")

OPEN_JOB: Settings = {
    "precision": "float64",
    "model": {"initial": {"method": "individual"}, "combine": {"masked": False}},
    "train": {"epochs": 4, "checkpoint_every": 2, "patience": None},
}
"""Nothing in its messages is drawn anew in every run."""


JUDGED = ("train_loss", "val_loss", "train_accuracy", "val_accuracy", "test_accuracy")


def saved(folder: Path, graphs: Sequence[PartyGraph], epsilon: float | None = 2.0, *changes: Settings) -> JobSettings:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {graph.party: str(folder / f"{graph.party}.safetensors") for graph in graphs}
    for graph in graphs:
        save_party(graph, folder / f"{graph.party}.safetensors")
    private: Settings = {} if epsilon is None else {"label_privacy": {"epsilon": epsilon}}
    return small_job(len(graphs), {"data": {"dataset": None, "graphs": paths}}, OPEN_JOB, private, *changes)


def learned(graph: PartyGraph) -> Tensor:
    return perturbed_nodes(graph.labels, graph.train_mask, graph.val_mask)


# What leaves the label holder


def test_nothing_that_others_get_depends_on_labels_beyond_the_perturbed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit the same messages, whatever the true labels are, where the perturbed ones come out alike."""
    graphs = small_parties(2)
    labels = graphs[0].labels
    assert labels is not None
    others = [replace(graphs[0], labels=(labels + 1) % 3), graphs[1]]
    drawn = torch.arange(len(learned(graphs[0]))) % 3
    monkeypatch.setattr(LabelResponse, "release", lambda *_: drawn)
    change: Settings = {"train": {"patience": 2, "epochs": 6}, "model": {"rounds": 2}}
    runs = [
        train(saved(tmp_path / f"data{number}", given, 2.0, change), tmp_path / f"{number}", record_views=True)
        for number, given in enumerate((graphs, others))
    ]
    for party in (SERVER, "B"):
        views = [load_view(RunDirectory.open(run.path), party) for run in runs]
        first, second = ([seen for seen in view.messages if seen.tag.kind is not Kind.HELLO] for view in views)
        first, second = ([one for one in seen if one.tag.kind is not Kind.KEY] for seen in (first, second))
        assert [one.tag for one in first] == [one.tag for one in second]
        assert {Kind.GRADIENT, Kind.CONTROL} <= {one.tag.kind for one in first}
        for one, other in zip(first, second, strict=True):
            assert torch.equal(one.tensor(), other.tensor()), one.tag
    assert runs[0].summary["val_accuracy"] == runs[1].summary["val_accuracy"]
    assert runs[0].summary["test_accuracy"] != runs[1].summary["test_accuracy"], "these compare with true labels"


def test_the_twin_learns_and_judges_the_same_from_the_same_labels(tmp_path: Path) -> None:
    graphs = small_parties(2)
    settings = saved(tmp_path / "data", graphs, 1.0)
    with fixed_chance("twin"):  # so that labels are flipped that count
        run = train(settings, tmp_path / "run")
    twin = PerturbedNetwork(settings, graphs, "A", perturbed=perturbed(run.path))
    found = fit(twin)
    for ours, theirs in zip(run.metrics, found.metrics, strict=True):
        assert {name: ours[name] for name in JUDGED} == pytest.approx({name: theirs[name] for name in JUDGED})
    assert run.summary["best_epoch"] == found.summary["best_epoch"]
    bare = fit(PerturbedNetwork(settings, graphs, "A"))
    assert abs(bare.metrics[-1]["val_loss"] - found.metrics[-1]["val_loss"]) > 1e-3


def test_the_twin_learns_the_same_batch_by_batch(tmp_path: Path) -> None:
    graphs, change = small_parties(2), {"train": {"batch_size": 20, "select_by": "last"}}
    settings = saved(tmp_path / "data", graphs, 1.0, change)
    run = train(settings, tmp_path / "run")
    twin = PerturbedNetwork(settings, graphs, "A", perturbed=perturbed(run.path))
    for epoch in range(1, settings.train.epochs + 1):
        twin.train_step(epoch)
    assert apart(joint_model(run.path), weights_of(twin)) < 1e-9


def apart(weights: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    return max(float((weights[name] - others[name]).abs().max()) for name in others)


# It is paid for once


def test_it_is_perturbed_once_in_a_run(tmp_path: Path) -> None:
    graphs = small_parties(2)
    settings = saved(tmp_path / "data", graphs)
    run = train(settings, tmp_path / "run")
    told, nodes, labels = perturbed(run.path), learned(graphs[0]), graphs[0].labels
    assert labels is not None
    assert 0.2 < float((told == labels[nodes]).double().mean()) < 1
    (entry,) = paid(run.path)
    assert entry["event"] == {"kind": "local", "epsilon": 2.0, "unit": "label"}
    assert not (run.path / "parties" / "B" / LEDGER).exists()
    assert run.summary["privacy"]["A"]["epsilon_total"] == 2.0
    assert run.summary["privacy"]["A"]["unit"] == "label"
    predict(run.path)
    assert len(paid(run.path)) == 1


def test_a_lost_ledger_ends_the_run(tmp_path: Path) -> None:
    graphs = small_parties(2)
    settings = saved(tmp_path / "data", graphs)
    run = train(settings, tmp_path / "run")
    (run.path / "parties" / "A" / LEDGER).unlink()
    store = RunDirectory.open(run.path).party("A")
    with pytest.raises(RunError), publisher_of(store, settings, graphs[0], None, begun=True):
        pass
    with pytest.raises(RunError):
        predict(run.path)


def test_labels_that_changed_in_a_run_are_sent_as_they_were(tmp_path: Path) -> None:
    graphs = small_parties(2)
    settings = saved(tmp_path / "data", graphs)
    run = train(settings, tmp_path / "run")
    store, mine = RunDirectory.open(run.path).party("A"), graphs[0]
    assert mine.labels is not None
    for labels in (mine.labels, (mine.labels + 1) % 3):
        with publisher_of(store, settings, replace(mine, labels=labels), None, begun=True) as door:
            assert isinstance(door, LabelPublisher)
            assert torch.equal(door.perturbed(), perturbed(run.path))
    assert len(paid(run.path)) == 1


def test_the_door_keeps_within_its_budget(tmp_path: Path) -> None:
    labels = torch.arange(30) % 3
    for budget, fits in ((2.0, True), (1.9, False)):
        with Ledger.open(tmp_path / f"{budget}.jsonl", 1e-12, budget, job="job") as ledger:
            door = LabelPublisher(LabelResponse(2.0, 3), labels, ledger, fixed_secrets("door"))
            assert (door.refusal() == "") is fits
            if fits:
                door.perturbed()
                assert door.spent().epsilon_total == 2.0
                assert door.refusal() != "", "nothing was kept: it would be another release"
            else:
                with pytest.raises(BudgetSpent):
                    door.perturbed()
                assert not ledger.totals()


# The attack


def gradients_at_server(folder: Path, epsilon: float | None, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the first step, at the training nodes; their true labels, and those that were learned from.

    Labels are drawn apart from features and edges: what an attack finds of them it has of the gradients.
    """
    data = synthetic_data(900, 12, classes, 3)
    generator = torch.Generator().manual_seed(4)
    data.y = torch.randint(classes, (900,), generator=generator)
    data.train_mask = torch.rand(900, generator=generator) < 0.8
    data.val_mask, data.test_mask = ~data.train_mask, torch.zeros(900, dtype=torch.bool)
    graphs = split_vertically(data, names=["A", "B"], label_holder="A", seed=3)
    settings = saved(folder / "data", graphs, epsilon, {"train": {"epochs": 1, "checkpoint_every": 1}})
    run = train(settings, folder / "run", record_views=True)
    view = load_view(RunDirectory.open(run.path), SERVER)
    (gradient,) = (seen.tensor() for seen in view.received(Kind.GRADIENT, "A", 0))
    mine = graphs[0]
    assert mine.labels is not None
    assert mine.train_mask is not None
    assert torch.equal(gradient.abs().sum(dim=1) > 0, mine.train_mask), "who is trained on is not hidden"
    told = mine.labels.clone()
    if epsilon is not None:
        told[learned(mine)] = perturbed(run.path)
    return gradient[mine.train_mask], mine.labels[mine.train_mask], told[mine.train_mask]


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_gradients_tell_a_label_and_with_epsilon_no_more_than_it_allows(tmp_path: Path, epsilon: float | None) -> None:
    classes = 4
    assert_gradients_tell(*gradients_at_server(tmp_path, epsilon, classes), epsilon, classes)


# What is refused


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"paradigm": "sealed", "data": {"holders": 2}}, "label_privacy.epsilon"),
        ({"paradigm": "node-dp", "release": {"features": {"epsilon": 1.0}}}, "label_privacy.epsilon"),
        ({"train": {"class_weights": "balanced"}}, "train.class_weights"),
    ],
)
def test_where_it_is_not_supported_a_job_is_refused(content: dict[str, Any], key: str) -> None:
    kind = type(parse_job(content))
    with refused(ValidationError, key=key):
        kind.model_validate({**content, "label_privacy": {"epsilon": 2.0}})


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), None])
def test_epsilon_is_finite_and_positive(epsilon: object) -> None:
    with refused(ValidationError, key="label_privacy.epsilon"):
        VerticalJob.model_validate({"label_privacy": {"epsilon": epsilon}})


def test_a_split_by_classes_would_tell_what_is_hidden() -> None:
    private: Settings = {"label_privacy": {"epsilon": 2.0}}
    by_node: Settings = {"data": {"split": [0.5, 0.25, 0.25], "stratify": False}}
    for change in ({}, {"data": {"split": [0.5, 0.25, 0.25]}}):
        settings = small_job(2, private, change)
        with refused(ConfigError, key="data.split", party="A"):
            paradigm_of(settings).data.load(settings)
    for settings in (small_job(2, private, by_node), small_job(2)):
        paradigm_of(settings).data.load(settings)


def test_a_label_holder_without_a_door_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "LabelPublisher", lambda *_: OPEN)
    with refused(ConfigError, key="label_privacy"):
        train(saved(tmp_path / "data", small_parties(2)), tmp_path / "run")
