"""Training from Python: what comes back, what is written, which model is chosen, and predicting with it."""

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from tests import nightly
from tests.errors import refused
from tests.paradigms.runs import DROPOUT, assert_same_run, joint_model, saved_job
from tests.roles.federation import (
    CLASSES,
    NODES,
    OwnModel,
    Settings,
    small_job,
    small_parties,
)
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.features import scale_features
from veilgraph.graph.party import load_party
from veilgraph.link.view import RecordedLink
from veilgraph.runtime.launch.jobs import RunOptions, load_result, predict, resume, train
from veilgraph.runtime.store.run_directory import Record, RunDirectory

EARLY: Settings = {"train": {"epochs": 60, "patience": 4, "learning_rate": 0.1}}


# Which model is chosen


@nightly
def test_the_best_epochs_weights_are_the_model(tmp_path: Path) -> None:
    evaluate_every = 3
    settings = saved_job(tmp_path / "data", EARLY, {"train": {"evaluate_every": evaluate_every}})
    run = train(settings, tmp_path / "run")
    evaluated = [record for record in run.metrics if "val_accuracy" in record]
    assert [record["epoch"] for record in evaluated] == [
        record["epoch"] for record in run.metrics if record["epoch"] % evaluate_every == 0 or record["epoch"] == 60
    ]
    best = max(evaluated, key=lambda record: (record["val_accuracy"], -record["val_loss"], -record["epoch"]))
    assert run.summary["best_epoch"] == best["epoch"]
    assert len(run.metrics) == min(60, best["epoch"] + 4 * evaluate_every)
    assert len(run.metrics) < 60, "it did not stop early, so the test says little"
    for part in ("train", "val", "test"):
        assert run.summary[f"{part}_accuracy"] == best[f"{part}_accuracy"]
    graph = load_party(tmp_path / "data" / "A.safetensors")
    assert graph.labels is not None
    for part in ("train", "val", "test"):
        mask = getattr(graph, f"{part}_mask")
        correct = (run.predictions.classes == graph.labels)[mask]
        assert float(correct.double().mean()) == run.summary[f"{part}_accuracy"]
    # A run that ends at the best epoch ends with the same weights.
    short = settings.model_copy(update={"train": settings.train.model_copy(update={"epochs": best["epoch"]})})
    ended, chosen = joint_model(train(short, tmp_path / "short").path), joint_model(run.path)
    assert all(torch.equal(ended[name], tensor) for name, tensor in chosen.items())


def test_it_is_chosen_on_validation_nodes_alone(tmp_path: Path) -> None:
    settings = small_job(2, DROPOUT, EARLY)
    parties = small_parties(2)
    labels, test_mask = parties[0].labels, parties[0].test_mask
    assert labels is not None
    assert test_mask is not None
    other = replace(parties[0], labels=torch.where(test_mask, (labels + 1) % CLASSES, labels))
    one = train(settings, tmp_path / "one", parties=parties)
    two = train(settings, tmp_path / "two", parties=[other, parties[1]])
    assert one.summary["best_epoch"] == two.summary["best_epoch"]
    assert torch.equal(one.predictions.probabilities, two.predictions.probabilities)
    assert one.summary["test_accuracy"] != two.summary["test_accuracy"]
    without = replace(parties[0], labels=torch.where(test_mask, -1, labels), test_mask=None)
    three = train(settings, tmp_path / "three", parties=[without, parties[1]])
    assert three.summary["test_accuracy"] is None
    assert torch.equal(one.predictions.probabilities, three.predictions.probabilities)


def test_control_is_two_bits_and_all_that_others_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str, str, int, torch.dtype, tuple[int, ...]]] = []
    original = RecordedLink.send

    def send(self: RecordedLink, to: str, tag: object, tensor: Tensor) -> None:
        kind = tag.kind.name  # type: ignore[attr-defined]
        seen.append((self.party, to, kind, tag.step, tensor.dtype, tuple(tensor.shape)))  # type: ignore[attr-defined]
        original(self, to, tag, tensor)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordedLink, "send", send)
    run = train(small_job(3, EARLY, {"train": {"evaluate_every": 2}}), tmp_path / "run", parties=small_parties(3))
    control = [message for message in seen if message[2] == "CONTROL"]
    evaluations = [record["epoch"] for record in run.metrics if "val_accuracy" in record]
    assert sorted(control) == sorted(
        ("A", to, "CONTROL", epoch, torch.bool, (2,)) for epoch in evaluations for to in ("B", "C", SERVER)
    )
    assert {kind for sender, _, kind, *_ in seen if sender == "A"} == {
        "HELLO", "KEY", "STATIC_DIFFERENCE", "MASKED_OPERAND", "SHARE", "MASKED", "GRADIENT", "CONTROL",
    }  # fmt: skip
    assert {(sender, to) for sender, to, kind, *_ in seen if kind == "COMBINED"} == {(SERVER, "A")}
    assert not [message for message in seen if message[2] in ("EMBEDDING", "MASKED_GRADIENT")]
    written = {path.name for party in ("B", SERVER) for path in (run.path / "parties" / party).rglob("*")}
    assert not written & {"predictions.csv", "predictions.safetensors"}


# What is written


def test_the_run_directory(tmp_path: Path) -> None:
    settings = saved_job(tmp_path / "data", {"train": {"epochs": 7, "checkpoint_every": 2}})
    seen: list[list[Record]] = []
    run = train(settings, tmp_path / "new" / "run", options=RunOptions(progress=seen.append))
    files = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    own = {"graph.safetensors", "model.safetensors", "result.json", "seed.json", "traffic.json"}
    own |= {"disclosures.jsonl", "evidence.jsonl", "software.jsonl"}
    kept = {f"checkpoints/{name}" for name in ("common.json", "epoch-000007.safetensors")}
    expected = {"job.yaml", "metrics.jsonl", "summary.json", "traffic.json"}
    for party in ("A", "B", SERVER):
        expected |= {f"parties/{party}/{name}" for name in own | kept}
    expected -= {f"parties/{SERVER}/graph.safetensors"}
    expected |= {f"parties/{party}/ledger_place.json" for party in "AB"}  # of saved graphs
    expected |= {"parties/A/predictions.csv", "parties/A/predictions.safetensors"}
    assert files == expected
    assert RunDirectory.open(run.path).settings == settings
    assert seen[-1] == run.metrics
    assert [record["epoch"] for record in run.metrics] == list(range(1, 8))
    traffic = json.loads((run.path / "traffic.json").read_text())
    sent = {
        (e["party"], e["peer"], e["kind"]): (e["messages"], e["bytes"]) for e in traffic if e["direction"] == "sent"
    }
    received = {
        (e["peer"], e["party"], e["kind"]): (e["messages"], e["bytes"]) for e in traffic if e["direction"] == "received"
    }
    dealt = {key for key in sent if key[2] == "correlation"}  # the last ones are dealt ahead and not needed
    assert {key: sent[key] for key in sent.keys() - dealt} == {key: received[key] for key in received.keys() - dealt}
    assert run.summary["sent_bytes"]["A"] == sum(size for (party, *_), (_, size) in sent.items() if party == "A")
    again = load_result(run.path)
    assert (again.summary, again.metrics) == (run.summary, run.metrics)


def test_predictions_as_a_table(tmp_path: Path) -> None:
    run = train(saved_job(tmp_path / "data", {"train": {"epochs": 2}}), tmp_path / "run")
    with (run.path / "parties" / "A" / "predictions.csv").open() as file:
        header, *rows = csv.reader(file)
    assert header == ["node", "class", "p0", "p1", "p2"]
    assert [int(row[0]) for row in rows] == list(range(NODES))
    assert [int(row[1]) for row in rows] == run.predictions.classes.tolist()
    chances = torch.tensor([[float(cell) for cell in row[2:]] for row in rows])
    assert float((chances - run.predictions.probabilities).abs().max()) < 1e-5
    assert float((run.predictions.probabilities.sum(dim=1) - 1).abs().max()) < 1e-5
    assert torch.equal(run.predictions.probabilities.argmax(dim=1), run.predictions.classes)


# Predicting


@nightly
def test_predict_gives_what_the_run_gave(tmp_path: Path) -> None:
    run = train(saved_job(tmp_path / "data", EARLY), tmp_path / "run")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    every = predict(run.path)
    assert torch.equal(every.nodes, torch.arange(NODES))
    assert torch.equal(every.probabilities, run.predictions.probabilities)
    assert torch.equal(every.classes, run.predictions.classes)
    some = predict(run.path, [7, 0, 59, 7])
    assert some.nodes.tolist() == [7, 0, 59, 7]
    assert torch.equal(some.probabilities, run.predictions.probabilities[[7, 0, 59, 7]])
    assert torch.equal(some.classes, run.predictions.classes[[7, 0, 59, 7]])
    none = predict(run.path, [])
    assert none.probabilities.shape == (0, CLASSES)
    changed = {
        str(path.relative_to(run.path))
        for path, content in before.items()
        if path.name != "traffic.json" and path.read_bytes() != content
    }
    # The predictions carry the time they were made at; what was sent is added to the record of it.
    assert changed - {"parties/A/predictions.safetensors"} == {
        f"parties/{party}/{name}.jsonl"
        for party in ("A", "B", SERVER)
        for name in ("disclosures", "evidence", "software")
    }


def test_the_others_do_not_learn_which_nodes_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever they are, the same messages go the same ways, and of as many rows."""
    run = train(saved_job(tmp_path / "data", {"train": {"epochs": 1}}), tmp_path / "run")
    original, seen = RecordedLink.send, Counter[tuple[object, ...]]()

    def send(self: RecordedLink, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        if tag.kind not in (Kind.HELLO, Kind.CORRELATION):  # texts grow with the records; the dealer works ahead
            seen[self.party, to, tag, tensor.dtype, tuple(tensor.shape)] += 1
        original(self, to, tag, tensor)

    monkeypatch.setattr(RecordedLink, "send", send)
    sessions = []
    for nodes in (None, [7, 59], []):
        predict(run.path, nodes)
        sessions.append(dict(seen))
        seen.clear()
    assert sessions[0]
    assert sessions == sessions[:1] * 3


def test_what_cannot_be_predicted_is_refused(tmp_path: Path) -> None:
    run = train(small_job(2, {"train": {"epochs": 1}}), tmp_path / "run", parties=small_parties(2))
    before = (run.path / "parties" / "A" / "traffic.json").read_bytes()
    assert predict(run.path, torch.tensor([2, 3])).nodes.tolist() == [2, 3]  # type: ignore[arg-type]
    for nodes in ([60], [0, -1], [3, 1000], [1.5]):
        with refused(ConfigError, key="nodes"):
            predict(run.path, nodes)  # type: ignore[arg-type]
    assert (run.path / "parties" / "A" / "traffic.json").read_bytes() == before, "the record of training stays"
    model = run.path / "parties" / "B" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:50])
    with refused(RunError, key=model):
        predict(run.path)
    (run.path / "summary.json").unlink()
    for act in (predict, load_result):
        with refused(RunError, key=tmp_path / "run"):
            act(run.path)


# Data of every kind


@nightly
def test_scaling_is_done_for_graphs_given_directly_too(tmp_path: Path) -> None:
    settings = small_job(2, {"data": {"feature_scaling": "standard"}})
    one = train(settings, tmp_path / "one", parties=small_parties(2))
    scaled = [scale_features(graph, "standard") for graph in small_parties(2)]
    other = train(small_job(2), tmp_path / "other", parties=scaled)
    assert torch.equal(one.predictions.probabilities, other.predictions.probabilities)
    (one.path / "summary.json").unlink()
    assert_same_run(resume(one.path), other)  # what is scaled is not scaled again


@nightly
def test_the_label_holder_need_not_be_first(tmp_path: Path) -> None:
    """Nor need a node have every class."""
    *others, labelled = small_parties(3, label_holder="C")
    run = train(small_job(3), tmp_path / "run", parties=[*others, replace(labelled, num_classes=5)])
    assert run.predictions.probabilities.shape == (NODES, 5)
    assert RunDirectory.open(run.path).settings.data.label_party == "C"
    assert (run.path / "parties" / "C" / "predictions.csv").is_file()
    assert not (run.path / "parties" / "A" / "predictions.csv").exists()


# A user's own model


class Recommended(nn.Module):
    """What the documentation of PyTorch Geometric shows."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.convolution = SAGEConv(dim, dim)
        self.norm = nn.BatchNorm1d(dim)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = nn.functional.dropout(x, 0.4, training=self.training)
        normed: Tensor = self.norm(self.convolution(h, edge_index))
        return normed.relu()


class WithoutWeights(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x * 2


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.one = nn.Linear(dim, dim)
        self.other = nn.Linear(dim, dim)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.tanh(self.other(torch.tanh(self.one(x))))


@pytest.mark.cases(1)
@pytest.mark.parametrize("custom", [Recommended, WithoutWeights, Tied])
def test_an_own_model_trains_twice_alike_and_predicts(tmp_path: Path, custom: Callable[[int], nn.Module]) -> None:
    settings = small_job(2, DROPOUT, {"model": {"local": {"model": "custom"}}})
    runs = [
        train(settings, tmp_path / name, parties=small_parties(2), options=RunOptions(custom=custom))
        for name in ("one", "other")
    ]
    assert_same_run(*runs)
    assert torch.equal(
        predict(runs[0].path, options=RunOptions(custom=custom)).probabilities, runs[0].predictions.probabilities
    )
    if custom is Recommended:
        steps = joint_model(runs[0].path)["A/holder.local.0.module.norm.num_batches_tracked"]
        assert int(steps) == runs[0].summary["best_epoch"]  # evaluation leaves running statistics alone
    with refused(ConfigError, key="custom", value="None"):
        predict(runs[0].path)


def test_an_error_in_an_own_model_comes_through(tmp_path: Path) -> None:
    class Broken(OwnModel):
        def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
            raise LookupError("the user's own mistake")

    settings = small_job(2, {"model": {"local": {"model": "custom"}}})
    with pytest.raises(LookupError, match="own mistake"):
        train(settings, tmp_path / "run", parties=small_parties(2), options=RunOptions(custom=Broken))


@nightly
@pytest.mark.parametrize(
    "model", [{}, {"initial": {"method": "secure-sum"}, "local": {"normalize": False}}], ids=["usual", "not normalised"]
)
def test_nodes_without_features_and_edges_train_like_any_other(tmp_path: Path, model: Settings) -> None:
    """As CiteSeer has them: nothing is known of a node, and h of it is exactly zero."""
    parties = []
    for graph in small_parties(2):
        features = graph.features.clone()
        features[:20] = 0
        parties.append(
            replace(graph, features=features, edge_index=graph.edge_index[:, (graph.edge_index > 20).all(0)])
        )
    run = train(small_job(2, {"model": model, "train": {"epochs": 6}}), tmp_path / "run", parties=parties)
    assert bool(torch.isfinite(run.predictions.probabilities).all())
