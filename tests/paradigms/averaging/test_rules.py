"""Rules, against the formulas and in the cases in which one is another."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from veilgraph_averaging.network import AveragedNetwork, FedAdamSettings, FedProxSettings, FedSgdSettings, Own
from veilgraph_averaging.tasks import side_by_side
from veilgraph_averaging.training import apply_rule, pack_result, unpack_result

from tests.errors import refused
from tests.paradigms.averaging.jobs import close, graphs, job, twin_of
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER

STILL: Settings = {"model": {"dropout": 0.0}}


def by(name: str, **more: object) -> Settings:
    return {"averaging": {"rule": {"name": name, **more}}}


def test_the_proximal_term_is_that_of_the_paper() -> None:
    weights = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]
    start = [torch.tensor([0.0, 4.0]), torch.tensor([1.0])]
    assert float(FedProxSettings(mu=0.5).local_loss(torch.tensor(7.0), weights, start)) == 7 + 0.25 * (1 + 4 + 4)


def test_momentum_of_fedsgd_is_that_of_torch_and_is_kept_from_round_to_round() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.3, momentum=0.8)
    rule, found = FedSgdSettings(momentum=0.8), weight.detach().clone()
    memory = rule.memory(5)
    for _ in range(3):
        mean = torch.randn(5, generator=generator, dtype=torch.float64)
        found, weight.grad = rule.step(found, mean, memory, 0.3), mean
        optimizer.step()
    assert torch.allclose(found, weight.detach(), atol=1e-12)
    assert FedSgdSettings().memory(5) == {}


def test_fedsgd_is_gradient_descent_on_all_graphs_side_by_side() -> None:
    settings = job(STILL, by("fedsgd"), {"averaging": {"local_epochs": 1}, "train": {"learning_rate": 0.3}})
    whole = side_by_side(graphs(settings))
    assert whole.labels is not None
    assert whole.train_mask is not None
    own, classes = Own.of(whole, torch.float64), whole.num_classes or 0
    network = AveragedNetwork(
        settings.model, whole.num_features, classes, LearningStreams(settings.seed, SERVER), torch.float64
    )
    optimizer = torch.optim.SGD(network.parameters(), lr=0.3, weight_decay=settings.train.weight_decay)
    losses = []
    for _ in range(settings.train.epochs):
        optimizer.zero_grad()
        logits = network(own.features, own.adjacency, None)
        loss = functional.cross_entropy(logits[whole.train_mask], whole.labels[whole.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    twin, found, _ = twin_of(settings)
    assert close(twin.network.vector(), network.vector())
    assert found == pytest.approx(losses, abs=1e-9)


def test_fedadam_is_the_papers_algorithm() -> None:
    rule = FedAdamSettings(server_rate=0.1, beta_1=0.8, beta_2=0.9, tau=0.01)
    memory = rule.memory(2)
    weights, first, second = torch.tensor([1.0, -1.0]).double(), [0.0, 0.0], [0.0, 0.0]
    expected = weights.tolist()
    for number in range(1, 4):
        change = torch.tensor([0.5 * number, -2.0]).double()
        for place, delta in enumerate(change.tolist()):
            first[place] = 0.8 * first[place] + 0.2 * delta
            second[place] = 0.9 * second[place] + 0.1 * delta**2
            expected[place] += 0.1 * first[place] / (second[place] ** 0.5 + 0.01)
        weights = rule.step(weights, change, memory, 9.9)
        assert weights.tolist() == pytest.approx(expected, abs=1e-12)
    assert memory["first"].tolist() == pytest.approx(first, abs=1e-12)
    assert memory["second"].tolist() == pytest.approx(second, abs=1e-12)


def test_weights_count_by_training_nodes_and_moved_counts_are_whole_again() -> None:
    start, total = torch.tensor([5.0]), torch.tensor([3 * 2.0 + 1 * -2.0, 3 * 0.5 + 1 * 1.5, 4.0000019])
    weights, loss = apply_rule(job(), {}, start, total)
    assert weights.tolist() == [6.0]
    assert loss == 0.75
    same, none = apply_rule(job(), {}, start, torch.zeros(3))
    assert (same.tolist(), none) == ([5.0], None)
    for each in (loss, none):
        again, told = unpack_result(pack_result(weights, each))
        assert (again.tolist(), told) == ([6.0], each)


def test_a_module_with_running_statistics_is_refused() -> None:
    settings = job({"model": {"local": {"model": "custom"}}})
    streams = LearningStreams(0, SERVER)

    def network(module: type[torch.nn.Module]) -> AveragedNetwork:
        return AveragedNetwork(settings.model, 3, 2, streams, torch.float32, lambda dim: WithEdges(module(dim)))

    assert network(torch.nn.LayerNorm)
    with refused(ConfigError, key="model.local.model", value="custom"):
        network(torch.nn.BatchNorm1d)


class WithEdges(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.inner(h)
        return out
