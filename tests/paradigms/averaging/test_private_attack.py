"""A canary's membership, asked of what a holder released: found without noise, and no more than ε says with it."""

from functools import cache

import torch
from torch import Tensor
from veilgraph_averaging.private.event import SampledEvent, reach
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.training import Terms
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import nightly
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.private_jobs import graph, job, local, network, without
from veilgraph.privacy import accountant

ROUNDS, RATE, NOISE, CLIP, DELTA, TRIALS = 3, 0.5, 10.0, 0.01, 1e-5, 200
BOUND = 3


@cache
def worlds() -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of all terms with the canary and without it, and the direction in which its terms point.

    The canary's features are large and its clip is small, so its own term is as long as any may be; it is a neighbour
    of as many others as the bound allows, whose terms change with it.
    """
    net = network(job({"model": {"dim": 8}}))
    whole = graph(6, [(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)])
    whole.features[0] = 40 * net.input.weight.detach().sum(0)
    assert whole.labels is not None
    whole.labels[:4] = whole.labels[0]
    here, gone = Terms(whole, 1, torch.float64), Terms(without(whole, 0), 1, torch.float64)
    with_it = torch.stack([here.gradient(net, each) for each in range(6)])
    without_it = torch.stack([gone.gradient(net, each) for each in range(5)])
    difference = _clipped(with_it).sum(0) - _clipped(without_it).sum(0)
    return with_it, without_it, difference / difference.norm()


def _clipped(rows: Tensor) -> Tensor:
    found: Tensor = rows * (CLIP / rows.norm(dim=1, keepdim=True)).clamp_max(1)
    return found


def proven(noise: float) -> float:
    """What an attacker who adds up all rounds along that direction proves of ε, with a confidence of 95 %."""
    given = {"clip": CLIP, "noise_multiplier": noise, "sampling_rate": RATE}
    return proven_of(*worlds(), job({"averaging": {"privacy": given}}), ROUNDS, noise)


def proven_of(
    with_it: Tensor, without_it: Tensor, direction: Tensor, settings: AveragingJob, rounds: int, noise: float
) -> float:
    """The same of any terms with a canary and without it."""
    plan = settings.training_plan
    assert plan is not None
    publisher = plan.paid_by(None, fixed_secrets("attack", noise))

    def scores(rows: Tensor) -> Tensor:
        found = [
            sum(
                publisher.sampled_sum(len(rows), rows.__getitem__, rows.shape[1], step) @ direction
                for step in range(rounds)
            )
            for _ in range(TRIALS)
        ]
        return torch.stack(found)  # type: ignore[arg-type]

    inside, outside = scores(with_it), scores(without_it)
    middle = float((inside.mean() + outside.mean()) / 2)
    right, wrong = int((inside > middle).sum()), int((outside > middle).sum())
    return epsilon_lower_bound(right, wrong, TRIALS, DELTA, 0.95)


@nightly
def test_a_canary_is_found_without_noise_and_with_it_no_better_than_the_ledger_says() -> None:
    total = accountant.total({SampledEvent(NOISE, RATE, reach(1, BOUND)): ROUNDS}, DELTA)
    assert 2 < total < 3
    assert proven(NOISE) < total
    assert proven(NOISE / 100) > total


@nightly
def test_a_canary_is_found_in_class_sums_without_noise_and_with_it_no_better_than_the_ledger_says() -> None:
    """A row of length 1 whose label is known: of seven classes its term is 0.93 long."""
    classes, changes = 7, {**local("gin", 0), "averaging": {"privacy": {"degree_bound": None, "sampling_rate": 1.0}}}
    canary = torch.outer(torch.full((classes,), 1 / classes) - torch.eye(classes)[0], torch.eye(3)[0]).double()
    others = 0.1 * torch.randn(5, classes * 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with_it, direction = torch.cat([canary.view(1, -1), others]), canary.flatten() / canary.norm()

    def found(noise: float) -> float:
        settings = job(changes, {"averaging": {"privacy": {"noise_multiplier": noise}}, "train": {"epochs": 1}})
        return proven_of(with_it, others, direction, settings, 1, noise)

    total = accountant.total({SampledEvent(1.5, 1.0, 1): 1}, DELTA)
    assert found(1.5) < total < found(0.015)


def test_one_canarys_terms_reach_what_they_are_counted_for() -> None:
    """Its own term goes, its neighbours' turn towards it, and no bit of the others moves."""
    with_it, without_it, direction = worlds()
    moved = (_clipped(with_it)[1:] - _clipped(without_it)) @ direction / CLIP
    assert float(moved[:BOUND].min()) > 0.5
    assert torch.equal(with_it[1 + BOUND :], without_it[BOUND:])
