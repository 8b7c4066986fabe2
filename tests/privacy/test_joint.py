"""Noise that holders make together: its exact law, what is sent of it, and who can take it off."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor
from veilgraph_testing.mechanism import check_event

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.privacy.planned import job, planned
from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import MemoryKeeper
from veilgraph.mpc.mask import PairwiseMasks, open_sum
from veilgraph.privacy import accountant
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.event import GaussianEvent, Joint, JointGaussianEvent, from_json, to_json
from veilgraph.privacy.noise import gaussian, granularity
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.publisher import OPEN, NoisedPublisher
from veilgraph.privacy.release_cache import RunCache

SIGMA, CLIP, BITS = 2.0, 1.5, 32
SHAPE = (6000, 4)
Laws = NDArray[np.float64]


# The law of a sum of rounded normals, in cells: to the digits of float64, without a sample


def rounded_normals(cells: float, summands: int) -> Laws:
    """P[R_1 + … + R_k = m] around 0: each is a normal of so many cells, rounded."""
    width = math.ceil(12 * cells) + 2
    whole = np.arange(-width, width + 1)
    one: Laws = ndtr((whole + 0.5) / cells) - ndtr((whole - 0.5) / cells)
    found = one
    for _ in range(summands - 1):
        found = np.convolve(found, one)
    return found


def exact_delta(law: Laws, moved: int, epsilon: float) -> float:
    """The least δ at which the law and itself, moved by whole cells, are (ε, δ) apart."""
    here, there = (np.pad(law, each) for each in ((0, moved), (moved, 0)))
    return float(np.clip(here - math.exp(epsilon) * there, 0, None).sum())


@pytest.mark.parametrize(("summands", "moved"), [(2, 1), (2, 4), (4, 3), (4, 8)])
def test_what_is_left_is_as_private_as_one_normal(summands: int, moved: int) -> None:
    cells = 2.0
    mu = moved / (math.sqrt(summands) * cells)
    law, fewer = rounded_normals(cells, summands), rounded_normals(cells, summands - 1)
    for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0, 4.0):
        claimed = accountant.gaussian_delta(epsilon, mu)
        assert exact_delta(law, moved, epsilon) <= claimed + 1e-12
        assert exact_delta(fewer, moved, epsilon) > claimed, "one holder more that colludes takes nothing away"


# Who makes it


@pytest.mark.parametrize(("holders", "colluding"), [(1, 0), (2, 1), (3, 2), (4, -1), (8, 7), (3, True), (3, 0.5)])
def test_fewer_than_two_others_make_nothing_together(holders: int, colluding: Any) -> None:
    with refused(ConfigError, key="privacy.joint_noise.colluding", value=colluding):
        Joint(holders, colluding)


def plan_of(holders: int, colluding: int | None, **privacy: Any) -> Plan:
    """Of B; the label holder beside so many makes no noise."""
    more: dict[str, Any] = {} if colluding is None else {"joint_noise": {"colluding": colluding}}
    return planned(job(holders=holders + 1, schedule="once", clip=CLIP, **more, **privacy), "B", nodes=SHAPE[0])


@pytest.mark.parametrize("unit", [{}, {"unit": "edge", "degree_bound": 3}, {"unit": "node", "degree_bound": 3}])
def test_a_ledger_has_the_gaussian_release_and_who_is_trusted(unit: dict[str, Any]) -> None:
    joint, alone = (plan_of(4, colluding, epsilon_total=3.0, **unit) for colluding in (1, None))
    event = joint.event
    assert isinstance(event, JointGaussianEvent)
    assert isinstance(alone.event, GaussianEvent)
    assert (event.holders, event.colluding) == (4, 1)
    assert event.noise_multiplier == alone.event.noise_multiplier
    assert (event.unit, event.neighbours) == (alone.event.unit, alone.event.neighbours)
    assert joint.epsilon_total == alone.epsilon_total == pytest.approx(3, rel=1e-8)
    assert joint.mechanism("embeddings").variance == pytest.approx(alone.mechanism("embeddings").variance / 3)
    check_event(event)
    assert from_json(to_json(event)) != alone.event
    with refused(ConfigError, key="privacy.joint_noise.colluding"):
        from_json(to_json(event) | {"colluding": 3})


def every_step(holders: int, colluding: int | None, rounds: int = 1, **privacy: Any) -> dict[str, Plan]:
    more: dict[str, Any] = {} if colluding is None else {"joint_noise": {"colluding": colluding}}
    settings = job(40, rounds, holders, clip=CLIP, **more, **privacy)
    return {name: planned(settings, name, nodes=SHAPE[0]) for name in settings.data.names}


@pytest.mark.parametrize("rounds", [1, 3])
def test_in_every_step_all_add_what_the_one_with_the_most_releases_needs(rounds: int) -> None:
    """The label holder's gradients are in no sum: their noise is its own, and all of it."""
    plans, alone = (every_step(4, colluding, rounds, epsilon_total=6.0) for colluding in (1, None))
    assert {plan.multiplier for plan in plans.values()} == {alone["A"].multiplier}
    assert alone["A"].multiplier > alone["B"].multiplier
    assert len({plan.mechanism("embeddings") for plan in plans.values()}) == 1
    assert plans["A"].epsilon_total == pytest.approx(6.0, rel=1e-8)
    for name, plan in plans.items():
        assert plan.step == alone[name].step
        assert plan.epsilon_total == accountant.total({GaussianEvent(plan.multiplier): plan.releases}, plan.delta)
        assert isinstance(plan.event, JointGaussianEvent)
        assert plan.alone_event == GaussianEvent(plan.multiplier)
        whole = (plan.multiplier * CLIP) ** 2
        assert plan.mechanism("embeddings").variance == pytest.approx(whole / 3, rel=1e-12)
        whole = (plan.multiplier * plan.settings.gradient_clip) ** 2
        assert plan.mechanism("gradients").variance == pytest.approx(whole / 3, rel=1e-12)
        assert plan.mechanism("gradients", alone=True).variance == pytest.approx(whole, rel=1e-12)
        assert plan.alone == (name == "A")


def test_two_sums_one_after_the_other_are_as_private_as_two_normals() -> None:
    """Steps compose: the product of the exact laws of what k holders leave in two sums, each moved."""
    cells, summands, moved, epsilon = 1.5, 3, 2, 1.0
    law, mu = rounded_normals(cells, summands), moved / (math.sqrt(summands) * cells)
    here, there = (np.pad(law, each) for each in ((0, moved), (moved, 0)))
    both = np.clip(np.outer(here, here) - math.exp(epsilon) * np.outer(there, there), 0, None).sum()
    claimed = accountant.gaussian_delta(epsilon, math.sqrt(2) * mu)
    assert 0.9 * claimed < both <= claimed + 1e-12
    assert both > accountant.gaussian_delta(epsilon, mu), "two sums cost no more than one"


# What is sent


class Holders:
    """P that publish, with masks between every two, and what the server opens of their rows."""

    def __init__(self, holders: int, colluding: int, **privacy: Any) -> None:
        self.names = [chr(ord("B") + place) for place in range(holders)]
        self.plan = plan_of(holders, colluding, noise_multiplier=SIGMA, **privacy)
        self.source = fixed_secrets("joint", holders, colluding)
        keys: dict[str, dict[str, bytes]] = {name: {} for name in self.names}
        for one, other in itertools.combinations(self.names, 2):
            keys[one][other] = keys[other][one] = self.source(32)
        self.masks = {name: PairwiseMasks(name, keys[name], self.source(32)) for name in self.names}
        self.step = 0

    def sums(self, rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """What is opened, and what each holder put in."""
        self.step += 1
        released, hidden = {}, []
        for name in self.names:
            with NoisedPublisher(self.plan, None, self.source) as door:
                released[name] = door.summand(rows[name], 0)
            hidden.append(self.masks[name].hide(released[name], BITS, "rows", self.step, "", exactly=True))
        return open_sum(hidden, BITS, torch.float64, "the sum", ""), released


def zeros(names: list[str]) -> dict[str, Tensor]:
    return {name: torch.zeros(SHAPE, dtype=torch.float64) for name in names}


def long_rows(names: list[str]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {name: 2 * torch.randn(SHAPE, dtype=torch.float64, generator=generator) for name in names}


def test_what_is_opened_is_the_sum_to_the_last_bit_and_on_one_grid() -> None:
    holders = Holders(5, 1)
    opened, released = holders.sums(long_rows(holders.names))
    assert torch.equal(opened, torch.stack(list(released.values())).sum(dim=0))
    cells = opened / granularity(SIGMA * CLIP / 2)
    assert torch.equal(cells, cells.round())
    remainders = torch.bincount(cells.to(torch.int64).flatten() % 16, minlength=16).double()
    expected = cells.numel() / 16
    assert float(((remainders - expected) ** 2 / expected).sum()) < 50, "its lowest bits are not uniform"


@pytest.mark.parametrize("what", ["finer", "division"])
def test_what_the_ring_does_not_hold_exactly_is_refused(what: str) -> None:
    masks = PairwiseMasks("B", {"C": bytes(32)}, bytes(32))
    values = gaussian((5, 2), 1e-4 if what == "finer" else 1.0, system_secrets)
    with refused(RangeOverflow, key="rows", value=BITS):
        masks.hide(values / (3 if what == "division" else 1), BITS, "rows", 1, "", exactly=True)


# The same bytes in two sums


def reused(first: dict[str, Tensor], second: dict[str, Tensor], changed: str) -> Tensor:
    """The difference of two sums where all but one holder send again what they sent."""
    return second[changed] - first[changed]


def test_two_sums_in_which_the_others_repeat_themselves_show_the_one_that_changed() -> None:
    """The attack on rows that are sent again: a holder's share of the noise is all that hides it."""
    holders = Holders(8, 1)
    rows = zeros(holders.names)
    before, first = holders.sums(rows)
    rows["B"] = torch.zeros(SHAPE, dtype=torch.float64)
    rows["B"][:, 0] = CLIP
    after, second = holders.sums(rows)
    share = (SIGMA * CLIP) ** 2 / 7
    assert float(reused(first, second, "B").var(dim=0).mean()) == pytest.approx(2 * share, rel=0.06)
    # Ours: everybody's noise is new, and the difference has that of two sums, each of which was paid for.
    assert float((after - before).var(dim=0).mean()) == pytest.approx(2 * 8 * share, rel=0.06)
    assert 2 * share < (SIGMA * CLIP) ** 2 / 3 < 2 * 8 * share
    for name in holders.names:
        assert not bool((first[name] == second[name]).all(dim=1).any()), "a row went out twice"


def test_nothing_of_it_is_kept_or_goes_anywhere_else() -> None:
    joint, alone = plan_of(3, 1, noise_multiplier=SIGMA), plan_of(3, None, noise_multiplier=SIGMA)
    with refused(ConfigError, key="privacy.joint_noise"):
        NoisedPublisher(joint, None, system_secrets, cache=RunCache(None, MemoryKeeper(), ""))
    rows = torch.zeros(SHAPE)
    with NoisedPublisher(joint, None, system_secrets) as door, refused(ConfigError, key="privacy.joint_noise"):
        door.embeddings(rows, 0)
    with NoisedPublisher(alone, None, system_secrets) as door, refused(ConfigError, key="privacy"):
        door.summand(rows, 0)
    with pytest.raises(NotImplementedError):
        OPEN.summand(rows, 0)


@pytest.mark.parametrize("channel", ["embeddings", "gradients"])
def test_canaries_are_among_the_rows_and_those_that_are_watched_are_noted(channel: Any) -> None:
    canaries = Canaries.draw(20, SHAPE[0], system_secrets)
    plan = every_step(3, 1, 2, noise_multiplier=1e-3, canaries=20)["B"]
    with NoisedPublisher(plan, None, system_secrets, canaries) as door:
        door.watched = torch.tensor([0, 5])
        lengths = door.summand(torch.zeros(SHAPE), 0, channel).norm(dim=1) / plan.clip(channel)
        assert door.clean.shape == ((2, SHAPE[1]) if channel == "embeddings" else (0,))
    there = torch.zeros(SHAPE[0], dtype=torch.bool)
    there[canaries.rows[canaries.coins]] = True
    assert float((lengths[there] - 1).abs().max()) < 0.1
    assert float(lengths[~there].max()) < 0.1
