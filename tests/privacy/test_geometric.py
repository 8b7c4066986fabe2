"""Noise on whole numbers: its law to the last digit, and what it costs by an independent accountant."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from dp_accounting.pld.privacy_loss_distribution import from_discrete_laplace_mechanism
from scipy.stats import chisquare

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ConfigError
from veilgraph.privacy import geometric
from veilgraph.privacy.accountant import total
from veilgraph.privacy.event import EVENTS, AggregationEvent, GeometricEvent, from_json, to_json
from veilgraph.privacy.geometric import LEAST_EPSILON, Chance, biased, two_sided, variance

EPSILONS = (0.01, 0.5, 1.0, 2.0, 4.0)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_numbers_are_as_frequent_as_the_law_says(epsilon: float) -> None:
    drawn = two_sided((60_000,), epsilon, fixed_secrets("geometric")).numpy()
    law = math.tanh(epsilon / 2) * np.exp(-epsilon * np.arange(4000))
    most = int(np.flatnonzero(law * len(drawn) > 10).max(initial=0))
    counts = np.bincount((drawn + most).clip(-1, 2 * most + 1) + 1, minlength=2 * most + 3)
    expected = np.array([law[most + 1 :].sum(), *law[most::-1], *law[1 : most + 1], law[most + 1 :].sum()])
    kept = expected * len(drawn) > 1
    observed, wanted = counts[kept], expected[kept]
    assert chisquare(observed, wanted / wanted.sum() * observed.sum()).pvalue > 1e-3
    assert drawn.var() == pytest.approx(variance(epsilon), rel=0.06)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_another_accountant_says_the_same_of_one_release_and_of_five(epsilon: float) -> None:
    for count in (1, 5):
        ours = total({GeometricEvent(epsilon): count}, 1e-6)
        theirs = from_discrete_laplace_mechanism(epsilon, 1, value_discretization_interval=1e-3)
        assert ours == pytest.approx(count * epsilon)
        assert theirs.self_compose(count).get_epsilon_for_delta(0) == pytest.approx(ours, rel=2e-2 / epsilon * 1e-1)


def test_it_is_added_to_gaussian_noise_of_the_same_unit() -> None:
    both = total({GeometricEvent(2.0): 1, AggregationEvent(3.0, "replacement", "edge"): 1}, 1e-5)
    assert both == 2.0 + total({AggregationEvent(3.0, "replacement", "edge"): 1}, 1e-5)


def test_the_event_is_read_back_and_is_of_edges_alone() -> None:
    event = GeometricEvent(1.5)
    assert from_json(to_json(event)) == event
    assert EVENTS["geometric"] is GeometricEvent
    with pytest.raises(ConfigError, match="unit='node'"):
        GeometricEvent(1.0, unit="node")
    with refused(ConfigError, key="epsilon"):
        GeometricEvent(0.0)


@pytest.mark.parametrize("chance", [Chance(1.0, 0, 1), Chance(0.3, 5, 1), Chance(2.0, 6, 0), Chance(1e-9, 3, 1)])
def test_digits_of_a_chance_are_those_of_the_real_number(chance: Chance) -> None:
    with localcontext(prec=400):
        exact = 1 / (chance.beside + (Decimal(chance.epsilon) * 2**chance.digit).exp())
        found = sum(Decimal(chance.word(place)) / 2 ** (63 * (place + 1)) for place in range(4))
        assert 0 <= exact - found < Decimal(2) ** -252


def test_a_word_that_is_equal_is_decided_by_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them a chance would be a multiple of 2^-63, and far values could not be drawn at all."""
    chance = Chance(1.0, 2, 1)
    first, second = chance.word(0), chance.word(1)
    following = iter([torch.tensor([second - 1, second, second + 1]), torch.tensor([0])])

    class Given(geometric.Words):
        def take(self, shape: tuple[int, ...]) -> torch.Tensor:
            found = next(following)
            assert tuple(found.shape) == shape
            return found

    words = torch.tensor([first - 1, first, first, first, first + 1])
    assert biased(chance, words, Given(bytes(32))).tolist() == [1, 1, 1, 0, 0]
    far = Chance(4.0, 5, 0)
    assert far.word(0) == far.word(1) == 0, "less likely than 2^-126, and drawn all the same"
    assert far.word(2) > 0


def test_what_cannot_be_drawn_is_refused_and_what_is_drawn_is_new() -> None:
    for epsilon in (math.inf, math.nan, LEAST_EPSILON / 2, 0.0, -1.0):
        with refused(ConfigError, key="epsilon"):
            two_sided((2,), epsilon, fixed_secrets("refused"))
    source = fixed_secrets("twice")
    assert not torch.equal(two_sided((50,), 0.1, source), two_sided((50,), 0.1, source))
    assert not two_sided((1000,), 1e300, source).any()
    assert two_sided((3, 0), 1.0, source).shape == (3, 0)
    large = two_sided((1000,), LEAST_EPSILON, source).double()
    assert 0.8 < float(large.std()) / variance(LEAST_EPSILON) ** 0.5 < 1.2
