"""What the label holder makes of noisy votes at home: more right nodes where they tell something, and no fewer else."""

import math
from dataclasses import replace
from functools import partial
from statistics import fmean, median, stdev

import numpy as np
import pytest
import torch
from scipy.stats import t as student
from torch import Tensor

from research import sealed_privacy
from tests.mpc.sessions import fixed_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.sealed.evidence import (
    LEAST_LEFT,
    LabelKnowledge,
    class_log_probabilities,
    epsilon_for,
    left_by_noise,
    vote_log_likelihood,
    with_votes,
)
from veilgraph.privacy.geometric import two_sided

NODES, CLASSES = 900, 3


def world(alike: float = 0.85, edges: bool = True) -> tuple[LabelKnowledge, Tensor, Tensor]:
    """The label holder's graph, a model's log-probabilities of which 0.6 are right, and votes without noise."""
    draw = torch.Generator().manual_seed(3)
    labels = torch.randint(CLASSES, (NODES,), generator=draw)
    place = torch.arange(NODES)
    train, val = place % 4 == 0, place % 4 == 1

    def neighbours(count: int) -> tuple[Tensor, Tensor]:
        targets = torch.randint(NODES, (count * NODES,), generator=draw)
        same = torch.rand(len(targets), generator=draw) < alike
        wanted = torch.where(same, labels[targets], torch.randint(CLASSES, (len(targets),), generator=draw))
        by_class = [(labels == each).nonzero()[:, 0] for each in range(CLASSES)]
        picks = torch.randint(1 << 30, (len(targets),), generator=draw)
        sources = torch.stack(
            [by_class[want][pick % len(by_class[want])] for want, pick in zip(wanted, picks, strict=True)]
        )
        return sources, targets

    own = torch.stack(neighbours(3)) if edges else torch.empty(2, 0, dtype=torch.int64)
    graph = PartyGraph("A", torch.zeros(NODES, 1), own, labels=labels, num_classes=CLASSES)
    graph = replace(graph, train_mask=train, val_mask=val, test_mask=~train & ~val)
    right = torch.rand(NODES, generator=draw) < 0.6
    taken = torch.where(right, labels, torch.randint(CLASSES, (NODES,), generator=draw))
    scores = (torch.nn.functional.one_hot(taken, CLASSES) + torch.rand(NODES, CLASSES, generator=draw) / 2).double()
    sources, targets = neighbours(2)
    votes = torch.zeros(NODES, CLASSES, dtype=torch.float64)
    votes.index_put_((targets, labels[sources]), torch.ones(len(targets), dtype=torch.float64), accumulate=True)
    votes[train] = 0
    return LabelKnowledge(graph, CLASSES), scores.log_softmax(1), votes


def accuracy(logits: Tensor, known: LabelKnowledge) -> float:
    mask, labels = known.graph.test_mask, known.graph.labels
    assert mask is not None
    assert labels is not None
    return float((logits.argmax(1) == labels)[mask].double().mean())


def noisy(votes: Tensor, epsilon: float) -> Tensor:
    return votes + (0 if math.isinf(epsilon) else two_sided(tuple(votes.shape), epsilon, fixed_secrets("evidence")))


def test_votes_make_more_nodes_right_the_more_epsilon_is_spent() -> None:
    known, scores, votes = world()
    base = accuracy(scores, known)
    found = [
        accuracy(with_votes(scores, noisy(votes, epsilon), epsilon, known), known)
        for epsilon in (1.0, 2.0, 4.0, math.inf)
    ]
    assert base + 0.02 < found[0] < found[1] < found[2] + 0.01
    assert found[-1] >= found[2] > base + 0.1


@pytest.mark.parametrize("epsilon", [1e-4, 0.05])
def test_votes_that_are_noise_change_next_to_nothing(epsilon: float) -> None:
    known, scores, votes = world()
    found = with_votes(scores, noisy(votes, epsilon), epsilon, known)
    assert float((found.argmax(1) == scores.argmax(1)).double().mean()) > 0.95
    assert abs(accuracy(found, known) - accuracy(scores, known)) < 0.02


def test_unlike_neighbours_tell_a_class_too() -> None:
    """Shares of classes among neighbours are the label holder's own, whatever they are."""
    known, scores, votes = world()
    labels = known.graph.labels
    assert labels is not None
    turned = (labels[known.graph.edge_index[0]] + 1) % CLASSES  # a neighbour is of the next class
    by_class = [(labels == each).nonzero()[:, 0] for each in range(CLASSES)]
    sources = torch.stack([by_class[each][place % len(by_class[each])] for place, each in enumerate(turned.tolist())])
    graph = replace(known.graph, edge_index=torch.stack([sources, known.graph.edge_index[1]]))
    found = with_votes(scores, votes.roll(1, dims=1), math.inf, replace(known, graph=graph))
    assert accuracy(found, known) > accuracy(scores, known) + 0.1


def test_rows_of_training_nodes_are_noise_and_say_nothing() -> None:
    known, scores, votes = world()
    told = vote_log_likelihood(votes.numpy() + 5 * known.of("train")[:, None], 2.0, known, scores.numpy().argmax(1))
    assert not told[known.of("train")].any()
    assert told[~known.of("train")].any()


@pytest.mark.parametrize("case", ["named", "no own edges", "no validation nodes", "classes alone"])
def test_it_is_of_use_with_less(case: str) -> None:
    """Of few nodes, without own edges, without validation nodes, or with classes for scores."""
    known, scores, votes = world(edges=case != "no own edges")
    rows, counts = scores, noisy(votes, 4.0)
    if case == "named":
        chosen = torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[:400]
        mask, labels = known.graph.test_mask, known.graph.labels
        assert mask is not None
        assert labels is not None
        found = with_votes(scores[chosen], counts[chosen], 4.0, replace(known, rows=chosen))
        kept = mask[chosen]
        before, after = (
            float((each.argmax(1) == labels[chosen])[kept].double().mean()) for each in (scores[chosen], found)
        )
        assert after > before + 0.05
        return
    if case == "no validation nodes":
        known = replace(known, graph=replace(known.graph, val_mask=None))
    if case == "classes alone":
        rows = class_log_probabilities(scores.argmax(1), known)
        assert torch.equal(rows.argmax(1), scores.argmax(1))
        assert np.allclose(rows.exp().sum(1), 1)
    assert accuracy(with_votes(rows, counts, 4.0, known), known) > accuracy(rows, known) + 0.05


@pytest.mark.parametrize("votes", [0.1, 1.0, 30.0])
def test_noise_leaves_more_of_more_votes_and_of_more_epsilon(votes: float) -> None:
    needed = epsilon_for(votes)
    assert left_by_noise(votes, needed) >= LEAST_LEFT > left_by_noise(votes, needed - 0.1)
    assert left_by_noise(2 * votes, needed) > left_by_noise(votes, needed) > left_by_noise(votes / 2, needed)
    assert left_by_noise(votes, math.inf) == 1


def test_noise_leaves_no_more_than_was_measured() -> None:
    """With margins: where it warns next to nothing, or nothing that seeds tell from 0, and else about the share.

    Far less where a node has hundreds of votes.
    """
    off = []
    for name in sealed_privacy.SETS:
        measured = partial(sealed_privacy.of, name, "margins")
        control, votes = fmean(measured(f"{sealed_privacy.CONTROL:g}")), fmean(sealed_privacy.of(name, "votes", "mean"))
        everything = 100 * (fmean(measured("inf")) - control)
        for epsilon in sealed_privacy.EPSILONS:
            pairs = zip(measured(f"{epsilon:g}"), measured(f"{sealed_privacy.CONTROL:g}"), strict=True)
            gains = [100 * (with_votes - without) for with_votes, without in pairs]
            gain, left = fmean(gains), left_by_noise(votes, epsilon)
            half = float(student.ppf(0.975, len(gains) - 1)) * stdev(gains) / len(gains) ** 0.5
            assert round(gain, 2) <= 0.2 or gain < half or left >= LEAST_LEFT, (name, epsilon)
            off += [(gain / everything - left, half / everything)] if everything > 0.4 else []
    assert len(off) > 20
    assert abs(median(each for each, _ in off)) < 0.06
    assert max(each - half for each, half in off) < 0.1, "by more than seeds leave open"
