"""What a label holder's own edges add to margins is used where validation nodes show it, and nowhere else."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from tests.errors import refused
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.private import voting
from tests.paradigms.sealed.programs import saved, small_graphs, small_job
from tests.roles.federation import Settings, merge
from veilgraph.core.errors import RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.stacking import Stacking, fit_best_stacking, fit_stacking
from veilgraph.protocol.judge import average_precision
from veilgraph.report.tables import run_table
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

NODES = 900
EVEN = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.5], dtype=torch.float64)
"""Shares of three classes, and how many neighbours are trained on."""
MARGINS: Settings = merge(STANDARD, {"output": "margins", "train": {"epochs": 2}})


def rings(seed: int, *, alike: float = 0.9, classes: int = 2) -> PartyGraph:
    """One node in five is not of class 0; edges to nodes of another class are left out with that probability."""
    draw = torch.Generator().manual_seed(seed)
    labels = (torch.rand(NODES, generator=draw) < 0.2) * torch.randint(1, classes, (NODES,), generator=draw)
    ends = torch.randint(NODES, (2, 3 * NODES), generator=draw)
    kept = (labels[ends[0]] == labels[ends[1]]) | (torch.rand(3 * NODES, generator=draw) > alike)
    split = torch.randint(3, (NODES,), generator=draw)
    train_mask, val_mask, test_mask = (split == place for place in range(3))
    return PartyGraph(
        "A",
        torch.zeros(NODES, 1),
        ends[:, kept].unique(dim=1),
        None,
        labels,
        train_mask,
        val_mask,
        test_mask,
        num_classes=classes,
    )


def guesses(graph: PartyGraph, seed: int = 0) -> Tensor:
    """Logits that tell a little of a label, and all of a training node's."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    known = one_hot(graph.labels, graph.num_classes or 0).double()
    noise = torch.randn(known.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 0.5 * known + noise + 4 * known * graph.train_mask[:, None]


def stacked(logits: Tensor, graph: PartyGraph, by_class: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Weights of all validation nodes, and logits."""
    found = fit_stacking(logits, graph, by_class)
    return found.weights[-1:].ravel(), found.logits(logits, graph)


def precision(logits: Tensor, graph: PartyGraph) -> float:
    assert graph.labels is not None
    found = average_precision(logits[graph.test_mask], graph.labels[graph.test_mask])
    assert found is not None
    return found


def test_own_edges_find_who_deals_with_its_like() -> None:
    gained = []
    for seed in range(4):
        graph = rings(seed)
        logits = guesses(graph)
        gained.append(precision(stacked(logits, graph)[1], graph) - precision(logits, graph))
    assert min(gained) > 0.1


@pytest.mark.parametrize("classes", [2, 4])
def test_edges_that_tell_nothing_change_nothing(classes: int) -> None:
    """Edges between any two nodes, of ten draws: those that seem to tell something are few, and change little."""
    lost, taken = [], 0
    for seed in range(10):
        graph = rings(seed, alike=0.0, classes=classes)
        logits = guesses(graph)
        weights, found = stacked(logits, graph)
        assert bool(len(weights)) == (found is not logits)
        taken += bool(len(weights))
        right = [each.argmax(1)[graph.test_mask] == graph.labels[graph.test_mask] for each in (logits, found)]  # type: ignore[index]
        lost.append(float(right[0].double().mean() - right[1].double().mean()))
    assert taken <= 3
    assert max(lost) < 0.03


def columns(logits: Tensor, graph: PartyGraph) -> tuple[list[Tensor], Tensor]:
    """As the page has them, by loops."""
    labels, trained = graph.labels, graph.train_mask
    assert labels is not None
    assert trained is not None
    logs, classes = logits.log_softmax(1), logits.shape[1]
    usual = one_hot(labels[trained], classes).double().mean(0)
    found, told = [logs, torch.zeros_like(logs), torch.zeros_like(logs), torch.zeros_like(logs)], torch.zeros(NODES)
    for node in range(NODES):
        near = graph.edge_index[0][graph.edge_index[1] == node]
        near = near[near != node]
        own, others = near[trained[near]], near[~trained[near]]
        found[1][node] = (logs[others].sum(0) + usual.log()) / (1 + len(others)) - usual.log()
        found[2][node] = ((logs[others].exp().sum(0) + usual) / (1 + len(others)) / usual).log()
        found[3][node] = ((one_hot(labels[own], classes).sum(0) + usual) / usual).log()
        told[node] = len(own)
    slope = told.double().log1p()
    return found, torch.stack([torch.ones(NODES), slope - slope.mean()], 1)


@pytest.mark.parametrize("balanced", [False, True])
def test_weights_are_those_of_least_loss_on_validation_nodes(*, balanced: bool) -> None:
    graph = rings(1, classes=3)
    assert graph.labels is not None
    assert graph.val_mask is not None
    logits, by_class = guesses(graph), torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64) if balanced else None
    weights, found = stacked(logits, graph, by_class)
    said, slopes = columns(logits, graph)
    at, judged = weights.clone().requires_grad_(), graph.val_mask
    total = sum(at[place] * each for place, each in enumerate(said)) + slopes @ at[4:].reshape(2, 3)
    begun = torch.tensor([1.0] + [0.0] * 9, dtype=torch.float64)
    loss = cross_entropy(total[judged], graph.labels[judged], weight=by_class)
    (loss + (at - begun).square().sum() / 2 / int(judged.sum())).backward()
    assert at.grad is not None
    assert float(at.grad.abs().max()) < 1e-4
    assert torch.allclose(found[~judged], total.detach()[~judged])
    assert torch.allclose(of_all(weights, fit_stacking(logits, graph).usual).logits(logits, graph), total.detach())
    assert not torch.allclose(found[judged], total.detach()[judged], atol=1e-3), "by weights without their fold"


def test_what_is_not_known_beforehand_moves_nothing() -> None:
    """Labels of test nodes, logits of trained neighbours, and whom a node that is no holder's deals with."""
    graph = rings(2)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.test_mask is not None
    logits = guesses(graph)
    found = stacked(logits, graph)[1]
    labels = torch.where(graph.test_mask, 1 - graph.labels, graph.labels)
    assert torch.equal(stacked(logits, replace(graph, labels=labels))[1], found)
    moved = logits + torch.where(graph.train_mask, 3.0, 0.0)[:, None] * torch.tensor([1.0, -1.0])
    assert torch.equal(stacked(moved, graph)[1][~graph.train_mask], found[~graph.train_mask])
    least = int(graph.val_mask.nonzero()[20]) if graph.val_mask is not None else 0
    own = replace(graph, num_common=None)
    few = stacked(logits[: least + 1], own)[1]
    inside = (graph.edge_index <= least).all(0)
    cut = replace(graph, edge_index=graph.edge_index[:, inside])
    assert torch.equal(stacked(logits[: least + 1], cut)[1], few)


def test_found_classes_are_in_every_fold() -> None:
    """One validation node in five is of class 1, and none of the four after it."""
    graph = rings(4)
    assert graph.labels is not None
    assert graph.val_mask is not None
    kinds = [(graph.val_mask & (graph.labels == label)).nonzero()[:, 0] for label in (1, 0)]
    ones = kinds[0][: len(kinds[1]) // 4]
    order = torch.cat([torch.stack([ones, *kinds[1][: 4 * len(ones)].reshape(4, -1)], 1).ravel(), torch.arange(NODES)])
    order = order[[place for place, node in enumerate(order.tolist()) if node not in order[:place]]]
    assert order.sort().values.tolist() == list(range(NODES))
    masks = {name: getattr(graph, name)[order] for name in ("train_mask", "test_mask")}
    judged = torch.arange(NODES) < 5 * len(ones)
    moved = replace(
        graph, edge_index=order.argsort()[graph.edge_index], labels=graph.labels[order], val_mask=judged, **masks
    )
    assert len(stacked(guesses(graph)[order], moved)[0])


def test_a_loss_that_classes_weights_make_less_is_not_enough() -> None:
    graph = rings(7, classes=3)
    assert len(fit_stacking(guesses(graph), graph).weights)
    assert not len(fit_stacking(guesses(graph), graph, torch.tensor([0.05, 3.0, 3.0], dtype=torch.float64)).weights)


def test_a_hundred_validation_nodes_and_ten_of_a_second_class_are_enough() -> None:
    """Edges tell most of these, and logits next to nothing."""
    graph = rings(1, alike=0.98)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    logits = guesses(graph) * torch.where(graph.train_mask, 1.0, 0.2)[:, None]
    found = graph.val_mask & (graph.labels == 1)
    for most, of, are in (
        (99, graph.val_mask, False),
        (100, graph.val_mask, True),
        (9, found, False),
        (10, found, True),
    ):
        few = replace(graph, val_mask=graph.val_mask & ~(of & (of.cumsum(0) > most)))
        assert bool(len(fit_stacking(logits, few).weights)) == are, most


def test_rounding_is_no_evidence() -> None:
    """Two fits of one loss, where no edge joins own nodes, differ by rounding, which may be alike at all nodes."""
    for seed in range(12):
        graph = rings(seed, classes=3)
        apart = replace(graph, edge_index=graph.edge_index + torch.tensor([[0], [NODES]]))
        assert not len(fit_stacking(guesses(graph, seed), apart).weights), seed


@pytest.mark.parametrize("lacks", ["edges", "edges between own nodes", "labels", "validation nodes"])
def test_without_evidence_logits_stay(lacks: str) -> None:
    graph = rings(3)
    assert graph.val_mask is not None
    logits = guesses(graph)
    without = {
        "edges": graph.with_edges(torch.empty(0, dtype=torch.int64)),
        "edges between own nodes": replace(graph, edge_index=graph.edge_index + torch.tensor([[0], [NODES]])),
        "labels": replace(graph, labels=None, train_mask=None, val_mask=None, test_mask=None),
        "validation nodes": replace(graph, val_mask=torch.zeros(NODES, dtype=torch.bool)),
    }
    weights, found = stacked(logits, without[lacks])
    assert found is logits
    assert not len(weights)


def of_all(weights: Tensor, usual: Tensor) -> Stacking:
    """As of another day's validation nodes."""
    none = torch.empty(0, dtype=torch.int64)
    return Stacking(weights.repeat(6, 1), none, none, usual)


def test_a_validation_node_has_the_same_logits_while_nodes_are_judged_as_they_were() -> None:
    graph = rings(1)
    assert graph.val_mask is not None
    logits = guesses(graph)
    found = fit_stacking(logits, graph)
    assert found.folds.bincount().tolist() == pytest.approx([len(found.folds) / 5] * 5, abs=1)
    first = found.logits(logits, graph)
    assert torch.equal(Stacking(**vars(found)).logits(logits, graph), first)
    one = int(found.judged[0])
    fewer = graph.val_mask.clone()
    fewer[one] = False
    later = found.logits(logits, replace(graph, val_mask=fewer))
    assert torch.equal(later[~graph.val_mask], first[~graph.val_mask])
    assert torch.equal(later, of_all(found.weights[-1], found.usual).logits(logits, graph))
    assert not torch.allclose(later[one], first[one], atol=1e-3)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_labels_that_are_gone_later_move_their_neighbours_alone(share: float) -> None:
    """Were shares of classes counted anew, all nodes would move, and many would be called what is hardly known."""
    graph = rings(6)
    assert graph.labels is not None
    assert graph.train_mask is not None
    logits = guesses(graph)
    found = fit_stacking(logits, graph)
    assert len(found.weights)
    gone = graph.train_mask & (graph.labels == 1)
    gone &= gone.cumsum(0) <= share * int(gone.sum())
    later = found.logits(logits, replace(graph, train_mask=graph.train_mask & ~gone))
    near = torch.zeros(NODES, dtype=torch.bool)
    near[graph.edge_index[1][gone[graph.edge_index[0]]]] = True
    moved = (later - found.logits(logits, graph)).abs().amax(1)
    assert bool((moved[~near] == 0).all())
    assert float(moved[near].max()) > 0.1


def test_an_edge_that_is_recorded_twice_counts_once() -> None:
    graph = rings(7)
    twice = replace(graph, edge_index=graph.edge_index.repeat(1, 3))
    assert torch.equal(fit_stacking(guesses(graph), twice).weights, fit_stacking(guesses(graph), graph).weights)


SOUND = vars(Stacking(torch.ones(6, 10, dtype=torch.float64), torch.arange(4), torch.arange(4), EVEN))


@pytest.mark.parametrize(
    "change",
    [
        {"weights": torch.full((6, 10), float("nan"), dtype=torch.float64)},
        {"weights": torch.ones(2, 10, dtype=torch.float64)},
        {"weights": torch.ones(6, 8, dtype=torch.float64)},
        {"weights": torch.ones(6, 10)},
        {"weights": torch.ones(10, dtype=torch.float64)},
        {"folds": torch.arange(4) + 5},
        {"folds": torch.arange(3)},
        {"judged": torch.arange(4.0)},
        {"usual": torch.ones(3, dtype=torch.float64)},
        {"usual": torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)},
    ],
)
def test_what_no_training_keeps_is_known(change: Mapping[str, Tensor]) -> None:
    assert Stacking(**SOUND).is_of(3)
    assert not Stacking(**{**SOUND, **change}).is_of(3)


def test_of_several_logits_those_are_taken_that_are_best_with_own_edges() -> None:
    """Votes may say nothing that own edges do not say."""
    graph = rings(3)
    good, noise = guesses(graph), guesses(graph) + 8 * guesses(graph).flip(0)
    for said, place in (([good, noise], 0), ([noise, good], 1), ([good, good], 0)):
        taken, found = fit_best_stacking(said, graph)
        assert taken == place
        assert torch.equal(found.weights, fit_stacking(said[place], graph).weights)
    val = graph.val_mask
    assert val is not None
    few = replace(graph, val_mask=val & (val.cumsum(0) < 90))
    assert fit_best_stacking([noise, good], few)[0] == 0, "so few tell nothing"
    assert fit_best_stacking([noise], graph)[0] == 0


PRIVATE: Settings = merge(voting(), {"train": {"select_by": "last"}, "model": {"blocks": ["pooled.6"]}})


@pytest.mark.parametrize("change", [{}, PRIVATE], ids=["open", "private"])
def test_a_prediction_has_the_weights_of_its_training(
    change: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.tensor([1.0, 0, 0, 2.0, *[0.0] * 6], dtype=torch.float64)
    stacked, voted = [], torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def fitted(said: Sequence[Tensor], *_: object) -> tuple[int, Stacking]:
        stacked.append(said[0])
        return 0, of_all(weights, EVEN)

    monkeypatch.setattr("veilgraph.paradigms.sealed.label_holder.fit_best_stacking", fitted)
    monkeypatch.setattr("veilgraph.paradigms.sealed.label_holder.with_votes", lambda *_, classes_alone: voted)
    found = train(
        saved(tmp_path / "graphs", small_job(2, MARGINS, change), small_graphs(nodes=40, training=20)), tmp_path / "run"
    )
    assert found.summary["stacked"] == 1.0
    assert torch.equal(stacked[0], voted) == bool(change), "what network and votes say together, or the network alone"
    rows = [list(column.cells) for column in run_table(found.summary).columns]
    assert (
        dict(zip(*([str(cell) for cell in cells] for cells in rows), strict=True))["own edges added to margins at home"]
        == "yes"
    )
    before = found.predictions.uncalibrated
    keeper = RunDirectory.open(found.path).party("A").keeper
    assert float((predict(found.path).uncalibrated - before).abs().max()) < 4e-3
    keeper.put("stacking", vars(of_all(weights, EVEN)) | {"weights": torch.empty((0, 0), dtype=torch.float64)}, {})
    assert float((predict(found.path).uncalibrated - before).abs().max()) > 2e-2
    assert RunDirectory.open(found.path).party("B").keeper.get("stacking") is None
    for damaged in ({"other": weights}, {**SOUND, "weights": weights}):
        keeper.put("stacking", damaged, {})
        with refused(RunError, code="lost", key="stacking", party="A"):
            predict(found.path)


def test_a_prediction_takes_the_logits_that_its_training_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, voted = torch.tensor([1.0, *[0.0] * 9], dtype=torch.float64), torch.zeros(40, 3, dtype=torch.float64)
    voted[:, 1] = 9
    stacked = "veilgraph.paradigms.sealed.label_holder.fit_best_stacking"
    monkeypatch.setattr("veilgraph.paradigms.sealed.label_holder.with_votes", lambda *_, classes_alone: voted)
    for taken in (0, 1):
        monkeypatch.setattr(stacked, lambda *_, taken=taken: (taken, of_all(weights, EVEN)))
        folder = tmp_path / str(taken)
        job = saved(folder / "graphs", small_job(2, MARGINS, PRIVATE), small_graphs(nodes=40, training=20))
        found = train(job, folder / "run")
        again = predict(found.path).uncalibrated
        assert float((again - found.predictions.uncalibrated).abs().max()) < 4e-3
        assert bool((again[:, 1] > 0.99).all()) == (taken == 0)


@pytest.mark.parametrize("job", [{"output": "classes"}, {"named_nodes": 3}, merge(PRIVATE, {"output": "classes"})])
def test_jobs_that_do_not_stack_keep_nothing_and_predict_again(job: Settings, tmp_path: Path) -> None:
    found = train(saved(tmp_path / "graphs", small_job(2, merge(MARGINS, job)), small_graphs()), tmp_path / "run")
    assert "stacked" not in found.summary
    run = found.path
    assert RunDirectory.open(run).party("A").keeper.get("stacking") is None
    predict(run, nodes=[1] if "named_nodes" in job else None)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_that_is_no_number_is_no_evidence() -> None:
    graph = rings(1)
    for weight in (math.inf, math.nan):
        assert not len(fit_stacking(guesses(graph), graph, torch.tensor([1.0, weight], dtype=torch.float64)).weights)
