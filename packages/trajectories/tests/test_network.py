"""The network over moving objects: against a loop, and what it must not depend on."""

import numpy as np
import pytest
import torch
from torch import Tensor
from veilgraph_trajectories.network import MovingGNN
from veilgraph_trajectories.windows import Windows, windows

OBJECTS, FRAMES, RADIUS = 7, 9, 2.0


@pytest.fixture(scope="module")
def network() -> MovingGNN:
    torch.manual_seed(3)
    found = MovingGNN(5, RADIUS).double()
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return found


def paths(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions [OBJECTS, FRAMES, 2], and who is there: some come and go, one is away for a frame."""
    draws = np.random.default_rng(seed)
    walked = draws.uniform(0, 2.5, (OBJECTS, 1, 2)) + draws.normal(0, 0.3, (OBJECTS, FRAMES, 2)).cumsum(axis=1)
    here = np.ones((OBJECTS, FRAMES), bool)
    here[0, :3] = here[1, 6:] = here[2, 4] = False
    return torch.from_numpy(walked), torch.from_numpy(here)


def seen(positions: Tensor, here: Tensor) -> Windows:
    objects, frame = here.nonzero().T.numpy()
    return windows(
        objects, frame, positions[here].numpy(), length=FRAMES, stride=FRAMES, radius=RADIUS, dtype=torch.float64
    )


def loop(network: MovingGNN, positions: Tensor, here: Tensor, observed: int) -> Tensor:
    """What the network's formulas say, object by object: [OBJECTS, FRAMES − 1, 2]."""

    def inward(vector: Tensor, heading: Tensor) -> Tensor:
        (x, y), (a, b) = vector, heading
        return torch.stack([a * x + b * y, a * y - b * x])

    state = [torch.zeros(5).double()] * OBJECTS
    course = [torch.zeros(2).double()] * OBJECTS
    was: list[Tensor | None] = [None] * OBJECTS
    found = torch.zeros(OBJECTS, FRAMES - 1, 2).double()
    for t in range(FRAMES - 1):
        if t < observed:
            now = [positions[i, t] if here[i, t] else None for i in range(OBJECTS)]
        else:
            now = [None if was[i] is None else found[i, t - 1] for i in range(OBJECTS)]
        zero = torch.zeros(2).double()
        went = [zero if p is None or q is None else p - q for p, q in zip(now, was, strict=True)]
        course = [zero if p is None else 0.9 * c + u for p, c, u in zip(now, course, went, strict=True)]
        heading = [c / (c @ c + 0.01).sqrt() for c in course]
        following = []
        for i, p in enumerate(now):
            around = torch.zeros(5).double()
            for j, q in enumerate(now):
                if i == j or p is None or q is None or (q - p).norm() >= RADIUS:
                    continue
                x, d = q - p, (q - p).norm()
                vectors = (x / RADIUS, x / d * torch.exp(-d), went[i], went[j])
                told = torch.stack([inward(each, heading[i]) for each in vectors]).T.reshape(-1)
                message = torch.relu(network.message(told) + network.before(state[j]))
                weight = (1 + torch.cos(torch.pi * d / RADIUS)) / 2
                around = around + weight * torch.relu(network.heard(message))
            own = torch.cat([inward(went[i], heading[i]), around])
            following.append(torch.zeros(5).double() if p is None else network.cell(own[None], state[i][None])[0])
            along, across = network.output(following[i])
            a, b = heading[i]
            if p is not None:
                found[i, t] = p + went[i] + along * heading[i] + across * torch.stack([-b, a])
        state, was = following, now
    return found


@pytest.mark.parametrize("observed", [4, FRAMES])
def test_it_is_its_formulas(network: MovingGNN, observed: int) -> None:
    positions, here = paths()
    with torch.no_grad():
        wanted = loop(network, positions, here, observed)
        given = seen(positions, here)
        found = network(given) if observed == FRAMES else network.roll_out(given, observed)
    if observed < FRAMES:
        wanted = wanted[:, observed - 1 :]
        there = here[:, observed - 1, None].expand(-1, FRAMES - observed)
    else:
        there = here[:, :-1]
    assert torch.allclose(found[there], wanted[there], atol=1e-10)


def test_a_new_network_goes_on_as_it_went() -> None:
    positions, here = paths()
    fresh = MovingGNN(5, RADIUS).double()
    with torch.no_grad():
        found = fresh.roll_out(seen(positions, here), 5)
    went = torch.where((here[:, 4] & here[:, 3])[:, None], positions[:, 4] - positions[:, 3], 0)
    wanted = positions[:, 4, None] + went[:, None] * torch.arange(1, FRAMES - 4)[None, :, None]
    assert torch.allclose(found[here[:, 4]], wanted[here[:, 4]])
