from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from veilgraph.nn.adam import Adam


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
