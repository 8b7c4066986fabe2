"""What a holder makes of symbols at home, by a second computation of every column, and when it leaves them out."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from veilgraph_averaging.symbols.home import AtHome, judged_by

from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.stacking import Floats, Regression, RegressionInputs
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.judge import area_under_curve

LAW = LabelResponse(1.0, 3).transition()


def holder(nodes: int, classes: int, *, rare: float = 0.0, seed: int = 0) -> AtHome:
    """With edges one way, loops and nodes without any; a third of the nodes each is trained on, judged and tested."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (nodes,), generator=generator)
    if rare:
        labels = (torch.rand(nodes, generator=generator) < rare).long()
    edges = torch.randint(nodes - 2, (2, 2 * nodes), generator=generator)
    place = torch.arange(nodes) % 3
    graph = PartyGraph("A", torch.zeros(nodes, 1), edges, labels=labels, num_classes=classes, train_mask=place == 0,
        val_mask=place == 1, test_mask=place == 2)  # fmt: skip
    own = torch.randn(nodes, classes, generator=generator, dtype=torch.float64).log_softmax(1)
    return AtHome(graph, own.numpy(), np.linspace(1.0, 2.0, classes))


def random_counts(home: AtHome, seed: int) -> Tensor:
    nodes, classes = home.own.shape
    return torch.randint(4, (nodes, classes), generator=torch.Generator().manual_seed(seed)).double()


def columns_by_hand(home: AtHome, counts: Tensor, law: Tensor | None) -> list[Floats]:
    """Node by node, and neighbour by neighbour."""
    graph, (nodes, classes) = home.graph, home.own.shape
    assert graph.labels is not None
    assert graph.train_mask is not None
    near = [set[int]() for _ in range(nodes)]
    for first, second in graph.edge_index.T.tolist():
        if first != second:
            near[first].add(second)
            near[second].add(first)
    trained, labels = graph.train_mask.tolist(), graph.labels.tolist()
    votes = np.zeros((nodes, classes))
    for node in range(nodes):
        for other in near[node]:
            votes[node, labels[other] if trained[other] else int(home.own[other].argmax())] += 1

    def by_class(found: Floats) -> Floats:
        shares = np.ones((classes, classes))
        for node in range(nodes):
            if trained[node]:
                shares[labels[node]] += found[node]
        return np.asarray(shares / shares.sum(1, keepdims=True))

    told, mixing = counts.numpy(), by_class(votes)
    means = by_class(told) if law is None else mixing @ law.numpy()

    def shares(found: Floats) -> Floats:
        return np.asarray(np.log((found + 1) / (found.sum(1, keepdims=True) + classes)))

    likely = np.array([[float(told[v] @ np.log(means[c])) for c in range(classes)] for v in range(nodes)])
    near_likely = np.log(np.array([[votes[v] @ mixing[c] for c in range(classes)] for v in range(nodes)]) + 0.5)
    return [near_likely, shares(votes), likely, shares(told)]


def fitted_by_hand(home: AtHome, more: Sequence[Floats], fitting: NDArray[np.bool_]) -> Floats:
    """As research/union_privacy.py fits them."""
    graph = home.graph
    assert graph.labels is not None
    assert graph.val_mask is not None
    judged = graph.val_mask.numpy()
    columns = [home.own, *(each - each[judged].mean(0) for each in more)]
    units = [math.sqrt(float((each[judged] ** 2).mean())) + 1e-12 for each in columns]
    inputs = RegressionInputs(
        [each / unit for each, unit in zip(columns, units, strict=True)], np.ones((len(judged), 1))
    )
    fit = Regression(graph.labels.numpy()[fitting], home.by_class).fitted(inputs.of(fitting), (units[0],), 0.03)
    return inputs.sums(fit)


def crossed_by_hand(home: AtHome, more: Sequence[Floats]) -> float:
    graph = home.graph
    assert graph.labels is not None
    assert graph.val_mask is not None
    labels, judged = graph.labels.numpy(), graph.val_mask.numpy().nonzero()[0]
    order = judged[np.argsort(labels[judged], kind="stable")]
    found = np.zeros(home.own.shape)
    for fold in range(5):
        out = order[fold::5]
        fitting = graph.val_mask.numpy().copy()
        fitting[out] = False
        found[out] = fitted_by_hand(home, more, fitting)[out]
    if home.own.shape[1] == 2:
        auc = area_under_curve(torch.from_numpy(found[judged]), torch.from_numpy(labels[judged]))
        assert auc is not None
        return auc
    return float((found[judged].argmax(1) == labels[judged]).mean())


@pytest.mark.parametrize("law", [LAW, None], ids=["trained", "all"])
@pytest.mark.parametrize("seed", range(6))
def test_logits_are_those_by_hand_and_symbols_are_used_where_cross_validation_is_better(
    law: Tensor | None, seed: int
) -> None:
    home = holder(90, 3, seed=seed)
    assert home.graph.labels is not None
    assert home.graph.val_mask is not None
    counts = random_counts(home, seed) + (seed % 2) * 3 * torch.nn.functional.one_hot(home.graph.labels, 3)
    columns, judged = columns_by_hand(home, counts, law), home.graph.val_mask.numpy()
    without, found = home.mixed(counts, law)
    expected = fitted_by_hand(home, columns[:2], judged)
    assert np.allclose(without.numpy(), expected, atol=1e-9)
    if crossed_by_hand(home, columns) > crossed_by_hand(home, columns[:2]):
        expected = fitted_by_hand(home, columns, judged)
    assert np.allclose(found.numpy(), expected, atol=1e-9)


def test_some_noise_is_left_out_though_it_fits_the_validation_nodes_better() -> None:
    """Else symbols that say nothing would be used wherever they are."""
    left_out = 0
    for seed in range(12):
        home = holder(60, 2, seed=100 + seed)
        without, found = home.mixed(random_counts(home, seed), None)
        left_out += torch.equal(without, found)
    assert 3 <= left_out <= 11


def test_of_rare_labels_a_better_ranking_is_enough() -> None:
    """No prediction changes by symbols that put the rare nodes first among those taken for the others."""
    home = holder(3000, 2, rare=0.02, seed=1)
    assert home.graph.labels is not None
    flat = np.log(np.full(home.own.shape, 0.5) * [1.96, 0.04])
    rare = home.graph.labels[:, None].double()
    home = AtHome(home.graph, flat, np.ones(2))
    counts = torch.cat([1 - rare, rare], 1)
    spread = random_counts(home, 2)
    without, found = home.mixed(counts + 3 * spread, LabelResponse(0.5, 2).transition())
    assert not torch.equal(without, found)
    assert bool((found.argmax(1) == 0).double().mean() > 0.97)


def test_the_figure_that_it_chooses_by_is_named() -> None:
    two, three = holder(90, 2).graph, holder(90, 3).graph
    assert judged_by(two, 2) == "auc"
    assert judged_by(three, 3) == "accuracy"
    assert three.labels is not None
    assert three.val_mask is not None
    lacking = replace(three, labels=torch.where(three.val_mask, three.labels % 2, three.labels))
    assert judged_by(lacking, 3) == "accuracy", "one of three classes is lacking there"
    assert two.labels is not None
    assert two.val_mask is not None
    one_class = replace(two, labels=two.labels.masked_fill(two.val_mask, 0))
    assert judged_by(one_class, 2) == "accuracy", "validation nodes of one class have no AUC"


def test_labels_of_test_nodes_are_not_read() -> None:
    home = holder(90, 3)
    labels = home.graph.labels
    assert labels is not None
    assert home.graph.test_mask is not None
    other = labels.clone()
    other[home.graph.test_mask] = (other[home.graph.test_mask] + 1) % 3
    changed = AtHome(replace(home.graph, labels=other), home.own, home.by_class)
    for one, two in zip(
        home.mixed(random_counts(home, 1), LAW), changed.mixed(random_counts(home, 1), LAW), strict=True
    ):
        assert torch.equal(one, two)
