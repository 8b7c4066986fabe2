"""Adam and backward passes without what torch imports for its compiler: torch's own, to the bit."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import backward

from tests.roles.federation import Settings, small_job
from veilgraph.nn.layers import Adam, zero_with_gradients
from veilgraph.runtime.launch.jobs import train


def trained(kind: type[torch.optim.Adam], steps: int) -> tuple[list[torch.Tensor], torch.optim.Adam]:
    """Weights in two groups after so many steps, half of them by an optimiser that went on from the other's state."""
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (3,), (2,))]
    optimizer = made(kind, weights)
    for step in range(steps):
        if step == steps // 2:
            state = optimizer.state_dict()
            optimizer = made(kind, weights)
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        (weights[0] @ weights[1]).square().sum().backward()  # the third has no gradient
        optimizer.step()
    return [weight.detach() for weight in weights], optimizer


def made(kind, weights: list[nn.Parameter]) -> torch.optim.Adam:
    groups = [{"params": weights[:1], "lr": 0.1}, {"params": weights[1:]}]
    optimizer: torch.optim.Adam = kind(groups, lr=0.01, weight_decay=1e-3)
    return optimizer


@pytest.mark.parametrize("steps", [1, 6])
def test_weights_and_state_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    weights, wanted = trained(torch.optim.Adam, steps)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch._dynamo", None)  # who imports the compiler fails
        found, ours = trained(Adam, steps)
    assert all(torch.equal(one, other) for one, other in zip(weights, found, strict=True))
    state, theirs = ours.state_dict(), wanted.state_dict()
    assert state["param_groups"] == theirs["param_groups"]
    assert state["state"].keys() == theirs["state"].keys() == {0, 1}
    for index, values in theirs["state"].items():
        assert values.keys() == state["state"][index].keys()
        assert all(torch.equal(value, state["state"][index][key]) for key, value in values.items())


SYMBOLIC = "torch.fx.experimental.symbolic_shapes"
"""What imports sympy."""


def passed() -> tuple[list[Tensor], list[Tensor]]:
    """A leaf with weights, and two outputs of which one goes into the other."""
    generator = torch.Generator().manual_seed(3)
    leaves = [torch.randn(shape, generator=generator, requires_grad=True) for shape in ((7, 4), (4, 5), (5, 2))]
    first = (leaves[0] @ leaves[1]).tanh()
    return leaves, [first, (first @ leaves[2]).exp()]


@pytest.mark.parametrize("count", [1, 2])
def test_gradients_are_those_of_torch(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    (leaves, outputs), (ours, again) = passed(), passed()
    given = [torch.randn_like(output, requires_grad=False) for output in outputs[-count:]]
    backward(outputs[-count:], given)
    monkeypatch.setitem(sys.modules, SYMBOLIC, None)  # who imports it fails
    with pytest.raises(ImportError):
        backward(again[-1:], given[-1:], retain_graph=True)
    with torch.no_grad():
        number = zero_with_gradients(again[-count:], given)
    backward(number)
    assert number == 0
    for one, other in zip(leaves, ours, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_a_gradient_of_another_shape_is_refused_though_torch_could_add_it_up() -> None:
    _, (output, _) = passed()
    with pytest.raises(RuntimeError):
        zero_with_gradients([output], [torch.ones(7, 7, 5)])


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"rounds": 2}},
        {"train": {"batch_size": 16}, "model": {"local": {"fanout": 3}}},
        {"paradigm": "horizontal"},
    ],
    ids=["rounds", "batches", "horizontal"],
)
def test_no_training_imports_sympy(changes: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SYMBOLIC, None)
    assert train(small_job(2, {"train": {"epochs": 1}}, changes), tmp_path / "run").metrics
