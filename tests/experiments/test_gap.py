"""GAP as a reference: what its noise costs, and that it learns; measuring goes on where it was cut off."""

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from research.gap import Gap, _Classifier, _Encoder, _noisy_gradients, gap_logits
from research.gap_sets import LEVELS
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.accountant import gaussian_epsilon

DELTA = 1e-5
SMALL = Gap("edge", math.inf, DELTA, dim=4)


@pytest.fixture(scope="module")
def graph() -> PartyGraph:
    return PartyGraph.from_data("A", synthetic_data(300, 12, 3, 0))


@pytest.mark.parametrize("level", LEVELS)
def test_all_noise_together_costs_what_was_asked(level: str) -> None:
    how = Gap(level, 4.0, DELTA, hops=3, degree_bound=10, steps=50)
    mu = 3 * (2 if level == "edge" else 10) / how.sums_deviation**2
    if level == "node":
        mu += 2 * how.steps / how.gradients_deviation**2
    assert gaussian_epsilon(math.sqrt(mu), DELTA) == pytest.approx(4, rel=1e-6)


def clipped(network: nn.Module, inputs: Sequence[Tensor], labels: Tensor) -> tuple[list[Tensor], list[float]]:
    """The sum of the nodes' gradients, each formed by itself and clipped to length 1, and how long they were."""
    parameters = list(network.parameters())
    total, lengths = [torch.zeros_like(each) for each in parameters], []
    for node in range(len(labels)):
        loss = functional.cross_entropy(network(*(x[node : node + 1] for x in inputs)), labels[node : node + 1])
        found = torch.autograd.grad(loss, parameters)
        lengths.append(float(torch.cat([each.flatten() for each in found]).norm()))
        total = [one + each / max(1.0, lengths[-1]) for one, each in zip(total, found, strict=True)]
    return total, lengths


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
@pytest.mark.parametrize(
    "network",
    [lambda: nn.Linear(4, 3), lambda: _Encoder(4, SMALL, 3), lambda: _Classifier(SMALL, 3)],
    ids=["layer", "encoder", "classifier"],
)
def test_noise_is_added_to_clipped_gradients_of_single_nodes(
    network: Callable[[], nn.Module], layout: torch.layout
) -> None:
    torch.manual_seed(0)
    learner, labels = network(), torch.randint(0, 3, (40,))
    inputs = [2 * torch.randn(40, 4).relu() for _ in range(3 if isinstance(learner, _Classifier) else 1)]
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.mul_(3)
        labels[:20] = learner(*inputs)[:20].argmax(dim=1)  # whose gradients are short
    expected, lengths = clipped(learner, inputs, labels)
    assert min(lengths) < 1 < max(lengths)
    given = [each.to_sparse_csr() if layout == torch.sparse_csr else each for each in inputs]

    def noise(deviation: float) -> Tensor:
        _noisy_gradients(learner, given, labels, deviation)
        found = [each.grad for each in learner.parameters() if each.grad is not None]
        return torch.cat([(40 * each - one).flatten() for each, one in zip(found, expected, strict=True)])

    assert float(noise(1e-7).abs().max()) < 1e-5
    assert 0.7 < float(torch.cat([noise(70.0) for _ in range(30)]).std()) / 70 < 1.4
    assert not any(each._forward_hooks for each in learner.modules())


def test_it_learns_without_noise_and_nothing_where_all_is_noise(graph: PartyGraph) -> None:
    labels = graph.labels
    assert labels is not None

    def accuracy(how: Gap) -> float:
        found = gap_logits(graph, how, 0).argmax(dim=1)[graph.test_mask]
        return float(found.eq(labels[graph.test_mask]).double().mean())

    free = accuracy(Gap("edge", math.inf, DELTA))
    assert free > 0.7
    assert accuracy(Gap("node", 0.1, DELTA, steps=20)) < free - 0.1
