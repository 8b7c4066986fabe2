"""An optimiser whose steps an adversary lengthens, and nobody else's."""

import torch
from torch import nn

from research.active_labels import amplify


def trained(most, steps, target=100.0):
    """Two weights that go towards a target by SGD, the first of them the adversary's."""
    weights = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.001)
    if most is not None:
        amplify(optimizer, weights[:1], most=most)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(((weight - target) ** 2).sum() for weight in weights).backward()
        optimizer.step()
    return [float(weight.detach()[0]) for weight in weights]


def test_the_adversarys_steps_grow_while_the_sign_stays_and_others_are_as_ever():
    honest = trained(None, 8)
    assert trained(1.0, 8) == honest
    own, other = trained(5.0, 8)
    assert other == honest[1]
    assert 2 * honest[0] < own < 5 * honest[0]


def test_a_factor_falls_back_where_the_sign_changes():
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    amplify(optimizer, [weight], most=5.0)
    moved = []
    for sign in (1.0, 1.0, 1.0, -1.0, -1.0):
        before = weight.detach().clone()
        weight.grad = torch.full((1,), sign)
        optimizer.step()
        moved.append(float((weight.detach() - before)[0]))
    assert moved == [-1.0, -1.5, -2.25, 1.0, 1.5]
