"""What tasks make of a holder's data and of sums, against the plain computation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, mean_absolute_error, mean_squared_error, r2_score, roc_auc_score
from veilgraph_averaging.links import PairsOwn
from veilgraph_averaging.node_tasks import Graphs, GraphsOwn
from veilgraph_averaging.plain import PlainAveraging

from tests import nightly
from tests.errors import refused
from tests.paradigms.averaging.own_graphs import graphs_for, task_job
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.horizontal.tally import Classification
from veilgraph.protocol.judge import binned_auc, binned_precision, bins_of, histogram

SEEDS = st.integers(0, 10_000)

# Values


def of(graph: PartyGraph) -> torch.Tensor:
    assert graph.targets is not None
    return graph.targets


def trained(task: str, graphs: list[PartyGraph]) -> PlainAveraging:
    twin = PlainAveraging(task_job(task), graphs)
    for number in range(1, 4):
        twin.round(number)
    return twin


@pytest.mark.parametrize("task", ["values", "values, bounds"])
def test_errors_are_those_of_all_predictions(task: str) -> None:
    graphs = graphs_for(task)
    twin = trained(task, graphs)
    found = twin.scores().values
    for split in ("train", "val", "test"):
        masks = [getattr(graph, f"{split}_mask") for graph in graphs]
        true = np.concatenate([graph.targets[mask] for graph, mask in zip(graphs, masks, strict=True)])  # type: ignore[index]
        said = [twin.predictions(graph.party).columns["value"][mask] for graph, mask in zip(graphs, masks, strict=True)]
        guessed = torch.cat(said).numpy()
        assert found[f"{split}_rmse"] == pytest.approx(mean_squared_error(true, guessed) ** 0.5, rel=1e-9)
        assert found[f"{split}_mae"] == pytest.approx(mean_absolute_error(true, guessed), rel=1e-9)
        assert found[f"{split}_r2"] == pytest.approx(r2_score(true, guessed), abs=1e-6)


def test_targets_too_small_to_add_up_are_refused() -> None:
    graphs = [replace(graph, targets=1e-6 * of(graph)) for graph in graphs_for("values")]
    twin = PlainAveraging(task_job("values"), graphs)
    with refused(DataError, key="targets"):
        twin.round(1)


def test_a_node_without_a_target_is_in_no_split() -> None:
    (graph, *_) = graphs_for("values")
    assert graph.targets is not None
    unknown = graph.targets.clone()
    unknown[0] = torch.nan  # a training node
    with refused(DataError, key="train_mask"):
        replace(graph, targets=unknown).validate()
    with refused(DataError, key="targets"):
        replace(graph, targets=graph.targets / 0).validate()
    with refused(DataError, key="targets"):
        replace(graph, labels=torch.zeros(graph.num_nodes, dtype=torch.int64), num_classes=2).validate()


# Links


def pairs_of(seed: int, nodes: int = 30, edges: int = 60) -> tuple[PartyGraph, PairsOwn]:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    graph = PartyGraph("A", torch.randn(nodes, 2, generator=generator), torch.cat([ends, ends.flip(0)], dim=1))
    return graph, PairsOwn.divided(graph, torch.float64, LearningStreams(seed, "A"), 0.1, 0.2)


def keys(ends: torch.Tensor, nodes: int) -> list[int]:
    low, high = ends.sort(dim=0).values
    return (low * nodes + high).tolist()  # type: ignore[no-any-return]


@nightly
@given(SEEDS)
def test_no_message_passes_an_edge_that_is_held_back(seed: int) -> None:
    graph, own = pairs_of(seed)
    nodes = graph.num_nodes
    every = {key for key in keys(graph.edge_index, nodes) if key // nodes != key % nodes}
    edges = own.pairs.where(own.pairs.linked)
    by_split = [set(keys(edges.where(edges.split == split).ends, nodes)) for split in range(3)]
    assert sum(map(len, by_split)) == edges.size == len(every)
    assert set.union(*by_split) == every
    assert [len(found) for found in by_split[1:]] == [round(0.1 * len(every)), round(0.2 * len(every))]
    passed = {key for key in keys(own.graph.edge_index, nodes) if key // nodes != key % nodes}
    assert passed == by_split[0] == set(own.taken.tolist())


def test_in_one_place_pairs_are_each_of_one_holders_nodes() -> None:
    whole = PairsOwn.joined([pairs_of(seed)[1] for seed in (1, 2)], torch.float64)
    drawn = whole.training(3, torch.Generator().manual_seed(0))
    assert torch.equal(*(drawn.ends // 30))
    assert set((drawn.ends[0, ~drawn.linked] // 30).tolist()) == {0, 1}


@nightly
@given(SEEDS)
def test_pairs_without_an_edge_have_none_and_are_the_same_again(seed: int) -> None:
    graph, own = pairs_of(seed)
    nodes = graph.num_nodes
    every = set(keys(graph.edge_index, nodes))
    others = own.pairs.where(~own.pairs.linked)
    assert not every & set(keys(others.ends, nodes))
    assert bool((others.ends[0] != others.ends[1]).all())
    assert torch.equal(others.split.bincount(), own.pairs.where(own.pairs.linked).split.bincount())
    _, again = pairs_of(seed)
    assert torch.equal(again.pairs.ends, own.pairs.ends)
    drawn = own.training(3, torch.Generator().manual_seed(seed))
    assert int((~drawn.linked).sum()) == 3 * int(drawn.linked.sum())
    assert not set(own.taken.tolist()) & set(keys(drawn.where(~drawn.linked).ends, nodes))


@nightly
@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 300), st.floats(0.1, 30), SEEDS)
def test_what_histograms_say_is_within_its_bound(linked: int, others: int, bins: int, wide: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = wide * torch.randn(linked + others, generator=generator, dtype=torch.float64)
    truth = torch.arange(linked + others) < linked
    counts = histogram(scores[truth], bins), histogram(scores[~truth], bins)
    for found, exact in (
        (binned_auc(*counts), roc_auc_score(truth, scores)),
        (binned_precision(*counts), average_precision_score(truth, scores)),
    ):
        assert found is not None
        assert abs(found[0] - exact) <= found[1] + 1e-9
    order = scores.argsort()
    assert bool((bins_of(scores, bins)[order].diff() >= 0).all())


def test_links_are_scored_split_by_split() -> None:
    graphs = graphs_for("links")
    twin = trained("links", graphs)
    owns = [twin.task.own(graph, LearningStreams(0, graph.party)) for graph in graphs]
    scores = torch.cat([twin.infer(graph.party) for graph in graphs])
    split, truth = (torch.cat([getattr(own.pairs, name) for own in owns]) for name in ("split", "linked"))
    found = twin.scores()
    summary = found.values
    for place, name in enumerate(("train", "val", "test")):
        own, said = truth[split == place], scores[split == place]
        for figure, metric in (("auc", roc_auc_score), ("ap", average_precision_score)):
            value, error = summary[f"{name}_{figure}"], summary[f"{name}_{figure}_error"]
            assert value is not None
            assert error is not None
            assert abs(value - metric(own, said)) <= error + 1e-9
    loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[split == 1], truth[split == 1].double())
    assert found.val_loss == pytest.approx(float(loss))


# Graphs


@pytest.mark.parametrize("readout", ["mean", "sum", "max"])
def test_a_graph_is_what_its_nodes_are_together(readout: str) -> None:
    settings = task_job("graphs", {"averaging": {"task": {"readout": readout}}})
    graphs = graphs_for("graphs")
    twin = PlainAveraging(settings, graphs)
    (graph, *_) = graphs
    assert graph.membership is not None
    own = GraphsOwn.of(graph, torch.float64)
    network = twin.network
    with torch.no_grad():
        h = network.body(own.features, own.adjacency, None).relu()  # type: ignore[operator]
        parts = [h[graph.membership == number] for number in range(4)]
        rows = [{"mean": part.mean(dim=0), "sum": part.sum(dim=0), "max": part.amax(dim=0)}[readout] for part in parts]
        expected = network.head(torch.stack(rows))  # type: ignore[operator]
    assert torch.allclose(twin.infer("A"), expected)
    assert isinstance(twin.task, Graphs)
    tally, of_tally = twin.task.judging.tally(network, own, expected), Classification(2)
    right = expected.argmax(dim=1) == torch.tensor([0, 1, 0, 1])
    counts = of_tally.confusion(tally)
    assert counts.sum(dim=2).tolist() == [[1, 1], [0, 1], [1, 0]]  # 4 graphs of 24 nodes, by split and class
    assert counts.diagonal(dim1=1, dim2=2).sum(dim=1).tolist() == [int(right[[0, 3]].sum()), right[1], right[2]]
    assert tally[15:].view(2, 2, -1).sum(dim=2).tolist() == [[1, 0], [0, 1]]  # ranked: val and test, class 1 and not
    assert len(tally) == of_tally.tally_size
    assert twin.task.examples(own) == 2


def test_what_is_of_a_graph_is_the_same_at_its_nodes() -> None:
    (graph, *_) = graphs_for("graphs")
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.membership is not None
    labels, train = graph.labels.clone(), graph.train_mask.clone()
    labels[1], train[2] = 1 - labels[1], ~train[2]
    across = torch.cat([graph.edge_index, torch.tensor([[0], [6]])], dim=1)
    for key, change in (
        ("labels", {"labels": labels}),
        ("train_mask", {"train_mask": train}),
        ("membership", {"edge_index": across}),
        ("membership", {"membership": graph.membership - 1}),
        ("membership", {"membership": graph.membership[1:]}),
    ):
        with refused(DataError, key=key, party="A"):
            replace(graph, **change).validate()  # type: ignore[arg-type]
