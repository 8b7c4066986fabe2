"""What every node has paid, beside sums that are kept for each by itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, LocalEvent
from veilgraph.privacy.lifetime_costs import EVERYBODY, Costs, Price, epsilon, price

EVENTS: list[Event] = [GaussianEvent(3.0), GaussianEvent(9.0, "replacement"), LaplaceEvent(4.0), LocalEvent(0.25)]
CHARGES = st.lists(
    st.tuples(st.sets(st.integers(0, 12), max_size=8), st.sampled_from(EVENTS), st.integers(1, 4)), max_size=10
)


def keys(nodes):
    return np.array(sorted(nodes), dtype=np.uint64)


def total(events, delta):
    """Gaussian noise by the sum of μ², and all else by the sum of pure ε."""
    mu = math.hypot(*(event.mu(1) for event in events))
    return accountant.gaussian_epsilon(mu, delta) + sum(event.epsilon for event in events if not event.mu(1))


def test_it_is_never_less_than_what_the_accountant_finds_for_releases_that_were_chosen_before():
    cases: list[dict[Event, int]] = [{EVENTS[0]: 5}, {EVENTS[2]: 2}, {EVENTS[0]: 2, LaplaceEvent(2.0): 3}]
    for counts in cases:
        spent = Price(*map(sum, zip(*(price(event, count, 1e-5) for event, count in counts.items()), strict=True)))
        found, known = epsilon(spent, 1e-5), accountant.total(counts, 1e-5)
        assert found >= known * (1 - 1e-9)
        if all(event.mu(1) for event in counts):
            assert found == pytest.approx(known, rel=1e-12)


@settings(max_examples=30)
@given(
    CHARGES, st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 3)), max_size=4), st.sampled_from([1e-3, 1e-6])
)
def test_what_everybody_pays_each_node_has_paid_whenever_it_comes(charges, of_all, delta):
    """Who never paid for itself has paid what everybody did; of everybody the node that paid most counts."""
    costs, common = Costs(), list[Event]()
    mine: dict[int, list[Event]] = {node: [] for node in range(13)}
    for turn in range(max(len(charges), len(of_all))):
        for nodes, event, count in charges[turn : turn + 1]:
            costs.add(keys(nodes), price(event, count, delta))
            for node in nodes:
                mine[node] += [event] * count
        for event, count in of_all[turn : turn + 1]:
            costs.add(EVERYBODY, price(event, count, delta))
            common += [event] * count
    totals = {node: total(events + common, delta) for node, events in mine.items()}
    most = max([*totals.values(), total(common, delta)])
    assert costs.most(delta) == pytest.approx(most, rel=1e-9)
    assert costs.most(delta, keys([99])) == pytest.approx(total(common, delta), rel=1e-9)
    for node, wanted in totals.items():
        assert costs.most(delta, keys([node])) == pytest.approx(wanted, rel=1e-9)
    more = max(total([*events, *common, EVENTS[0]], delta) for events in [*mine.values(), []])
    assert costs.most(delta, EVERYBODY, price(EVENTS[0], 1, delta)) == pytest.approx(more, rel=1e-9)
    assert costs.nodes == sum(bool(events) for events in mine.values())


def test_probabilities_to_show_all_add_up_and_come_off_delta():
    costs, one = Costs(), Price(0.04, 0.0, 1e-7)
    for _ in range(3):
        costs.add(keys([1, 2]), one)
    costs.add(keys([2]), one)
    for nodes, times in (([1], 3), ([2], 4), ([3], 0)):
        wanted = accountant.gaussian_epsilon(math.sqrt(0.04 * times), 1e-6 - 1e-7 * times) if times else 0.0
        assert costs.most(1e-6, keys(nodes)) == pytest.approx(wanted, rel=1e-9)
    costs.add(EVERYBODY, one.times(5))
    assert costs.most(1e-6, keys([1])) < math.inf
    costs.add(EVERYBODY, one)
    assert costs.most(1e-6, keys([2])) == math.inf, "nothing of δ is left"
