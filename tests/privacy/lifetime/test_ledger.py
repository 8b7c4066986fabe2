"""What a lifetime ledger lets pass: never a release that takes a node beyond the budget, and all others."""

import math
import os
import random
import signal
import threading
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from veilgraph_averaging.private.event import SampledEvent

from tests import nightly
from tests.errors import refused
from tests.privacy.lifetime.ledgers import EVENT, NODES, charge, count_of, ledger
from veilgraph.core.errors import BudgetSpent
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, LocalEvent, Scope
from veilgraph.privacy.lifetime_costs import EVERYBODY
from veilgraph.privacy.lifetime_ledger import Budget

EDGE = GaussianEvent(5.0, "replacement", "edge")
NODE = GaussianEvent(5.0, "replacement", "node")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledger"


def budget_for(releases, delta=1e-5, event=EVENT, **more):
    return Budget(accountant.total({event: releases}, delta), delta, **more)


@pytest.mark.parametrize("releases", [1, 3, 7])
def test_the_first_release_beyond_the_total_is_refused_and_the_one_before_is_not(folder, releases):
    opened = ledger(folder, budget_for(releases))
    for left in range(releases, 0, -1):
        assert opened.room(EVENT, opened.keys(NODES)) == left
        charge(opened)
    assert opened.total() == pytest.approx(opened.budget.epsilon, rel=1e-12)
    with refused(BudgetSpent, code="lifetime"):
        charge(opened)
    assert count_of(opened) == releases
    assert opened.room(EVENT, opened.keys(NODES)) == 0
    charge(opened, GaussianEvent(1e9))  # what costs nearly nothing is no more than rounding


def test_a_calibrated_release_fits_its_budget_exactly_once(folder):
    for epsilon in (0.1, 1.0, 4.0, 16.0):
        event = GaussianEvent(accountant.analytic_multiplier(epsilon, 1e-5))
        opened = ledger(folder / str(epsilon), Budget(epsilon, 1e-5))
        charge(opened, event)
        with pytest.raises(BudgetSpent):
            charge(opened, event)


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(NODES[:6]), min_size=1),
            st.sampled_from([EVENT, GaussianEvent(9.0), GaussianEvent(9.0, "replacement"), LaplaceEvent(8.0)]),
            st.integers(1, 3),
            st.sampled_from([1e-5, 1e-300, None]),
        ),
        max_size=8,
    )
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_node_is_ever_beyond_the_budget_and_nothing_that_fits_is_refused(tmp_path_factory, charges):
    folder, limit = tmp_path_factory.mktemp("ledgers") / "ledger", 2.0
    opened = ledger(folder, Budget(limit, 1e-4, "node", "zero-out"))
    paid: dict[str, Counter[Event]] = {node: Counter() for node in NODES}
    for nodes, event, count, delta in charges:
        tried = {node: paid[node] + (Counter({event: count}) if node in nodes else Counter()) for node in NODES}
        if max(total(events, 1e-4) for events in tried.values()) <= limit:
            charge(opened, event, count, nodes, delta)
            paid = tried
        else:
            with pytest.raises(BudgetSpent):
                charge(opened, event, count, nodes, delta)
    assert opened.total() == pytest.approx(max(total(events, 1e-4) for events in paid.values()), rel=1e-9)
    assert ledger(folder, Budget(limit, 1e-4, "node", "zero-out")).total() == opened.total()


def total(events, delta):
    mu = math.hypot(*(event.mu(count) for event, count in events.items()))
    return accountant.gaussian_epsilon(mu, delta) + sum(
        event.epsilon * count for event, count in events.items() if not event.mu(1)
    )


def test_who_has_no_id_may_be_anybody(folder):
    """So its releases, and those of each other node, are one total, whichever came first."""
    opened = ledger(folder, budget_for(3))
    charge(opened, ids=NODES[:5])
    charge(opened, keys=EVERYBODY)
    assert opened.room(EVENT, opened.keys(NODES[:5])) == 1
    assert opened.room(EVENT, EVERYBODY) == 1
    assert opened.room(EVENT, opened.keys(["somebody new"])) == 2
    charge(opened, keys=EVERYBODY)
    for keys in (EVERYBODY, opened.keys(NODES[:1])):
        with pytest.raises(BudgetSpent):
            charge(opened, keys=keys)
    charge(opened, ids=["somebody new"])
    assert opened.total() == pytest.approx(opened.budget.epsilon, rel=1e-12)
    assert ledger(folder, budget_for(3)).total() == opened.total()
    assert opened.nodes == 6


SAMPLED = SampledEvent(1e3, 0.1, 11)
CHEAP = [
    (GaussianEvent(1e3), 1),
    (GaussianEvent(1e300), 10**6),  # μ² is below every float
    (LaplaceEvent(1e12), 1),
    (LocalEvent(5e-324), 1),
    (SAMPLED, 1),
    (SampledEvent(1e12, 1.0, 2**31 - 1), 1),
]


@pytest.mark.parametrize("delta", [5e-324, 1e-300, 1e-5, 1 - 1e-16, None])
@pytest.mark.parametrize(("event", "count"), CHEAP)
def test_a_cheap_job_leaves_the_total_as_it_was_whatever_its_delta(folder, event, count, delta):
    """At the least δ of any job the first of these refused every job after it, for ever."""
    about = (event.unit, event.neighbours)
    costly = GaussianEvent(0.75 * (1 + (event.neighbours == "replacement")), event.neighbours, event.unit)
    budget = Budget(accountant.total({costly: 1}, 1e-4) + 0.05, 1e-4, *about)
    opened = ledger(folder, budget)
    charge(opened, event, count, delta=delta)
    assert opened.total() < 0.05
    charge(opened, costly, delta=1e-5)
    assert ledger(folder, budget).total() == pytest.approx(budget.epsilon, abs=0.05)


def test_many_cheap_sampled_jobs_use_up_no_more_of_delta_than_of_epsilon(folder):
    """A twentieth of δ was taken by each, so that twenty refused every job after them."""
    opened = ledger(folder, Budget(1.0, 1e-4, "node-edges", "zero-out"))
    for _ in range(40):
        charge(opened, SAMPLED)
    assert opened.total() < 0.2
    assert (opened.room(GaussianEvent(10.0, unit="node-edges"), opened.keys(NODES)) or 0) > 5


def test_what_costs_everything_is_refused_and_leaves_nothing_behind(folder):
    """Neither a line nor the list of who would have paid, with which refused jobs would fill the disk."""
    opened = ledger(folder, Budget(8.0, 1e-4, "node", "zero-out"))
    before = sorted(folder.rglob("*"))
    for event in (GaussianEvent(5e-324), GaussianEvent(1e-200), LaplaceEvent(5e-324), LaplaceEvent(1e-308)):
        for count in (1, 10**18):
            with refused(BudgetSpent, code="lifetime"):
                charge(opened, event, count)
    assert sorted(folder.rglob("*")) == before
    charge(opened)


def test_a_ledger_of_jobs_without_number_still_opens_and_pays(folder):
    """A holder without a limit takes what costs everything: that is its total, and nothing fails."""
    opened = ledger(folder)
    for event in (GaussianEvent(5e-324), LaplaceEvent(5e-324), LocalEvent(1e308), SampledEvent(1e-3, 1.0, 2**31)):
        charge(opened, event, 10**18, delta=5e-324)
    assert ledger(folder).total() == math.inf
    assert ledger(folder).total_with(SAMPLED, 10**18, 1000) == math.inf


@pytest.mark.parametrize(
    ("unit", "neighbours", "event", "bounds"),
    [
        ("node", "zero-out", EVENT, True),
        ("node", "zero-out", NODE, True),
        ("node", "zero-out", EDGE, False),
        ("node", "replacement", NODE, True),
        ("node", "replacement", EVENT, False),
        ("node", "replacement", EDGE, False),
        ("edge", "replacement", EDGE, True),
        ("edge", "replacement", EVENT, False),
        ("edge", "replacement", NODE, False),
        ("edge", "replacement", LocalEvent(1.0), False),
        ("node", "replacement", LocalEvent(1.0), True),
        ("node", "replacement", LocalEvent(1.0, "label"), True),
        ("label", "replacement", LocalEvent(1.0), False),
    ],
)
def test_what_a_release_says_about_a_unit(folder, unit, neighbours, event, bounds):
    assert Scope(unit, neighbours).bounds(event) == bounds
    opened = ledger(folder, Budget(50.0, 1e-4, unit, neighbours))
    if bounds:
        charge(opened, event)
        assert 0 < opened.total() < 50
    else:
        with refused(BudgetSpent, code="lifetime"):
            charge(opened, event)


def test_the_first_release_says_what_the_total_is_about_and_what_was_released_before_a_limit_counts(folder):
    opened = ledger(folder)
    charge(opened, NODE)
    charge(opened, EVENT)  # without a limit nothing is refused
    limited = ledger(folder, Budget(50.0, 1e-4))
    assert limited.about == Scope("node", "replacement")
    assert limited.total() == math.inf
    with pytest.raises(BudgetSpent):
        charge(limited, NODE)
    assert limited.room(NODE, limited.keys(NODES)) == 0
    absent = ledger(folder, Budget(50.0, 1e-4, "node", "zero-out"))
    charge(absent, EVENT)
    assert absent.total() < 50


def test_what_was_paid_for_is_paid_for_once_by_whoever_paid(folder):
    opened = ledger(folder, budget_for(1))
    charge(opened, content="c" * 64)
    charge(ledger(folder, budget_for(1)), content="c" * 64)
    assert opened.has_paid("embeddings", "c" * 64, opened.keys(NODES))
    assert not opened.has_paid("gradients", "c" * 64, opened.keys(NODES))
    assert count_of(opened) == 1
    with pytest.raises(BudgetSpent):
        charge(opened, content="d" * 64)
    with pytest.raises(BudgetSpent):
        charge(opened, content="c" * 64, ids=[*NODES, "somebody else"])


def test_threads_pay_for_all_that_they_send_and_for_nothing_twice(folder):
    sent, opened = [], [ledger(folder, budget_for(60)) for _ in range(4)]

    def work(of):
        while True:
            try:
                charge(of)
            except BudgetSpent:
                return
            sent.append(1)

    threads = [threading.Thread(target=work, args=(each,)) for each in opened]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sent) == count_of(opened[0]) == 60


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "keys", [pytest.param(None, id="nodes"), pytest.param(EVERYBODY, marks=nightly, id="everybody")]
)
def test_processes_that_are_killed_have_paid_for_all_that_they_sent(folder, keys):
    """40 kills at random moments, two processes at a time: the last release that fits is the last that is made."""
    budget, draw, made = budget_for(3000), random.Random(7), 0
    ledger(folder, budget)
    for _ in range(20):
        children = [child(folder, budget, keys) for _ in range(2)]
        time.sleep(draw.uniform(0.0, 0.03))
        for pid, _ in children:
            os.kill(pid, signal.SIGKILL)
        for pid, pipe in children:
            os.waitpid(pid, 0)
            with os.fdopen(pipe, "rb") as said:
                made += len(said.read())
    after = ledger(folder, budget)
    assert 0 < made <= count_of(after) <= made + 40
    assert after.total() <= budget.epsilon * (1 + 1e-12)


def child(folder, budget, keys):
    """A process that pays and then says that it has sent, for as long as it lives."""
    end, said = os.pipe()
    if pid := os.fork():
        os.close(said)
        return pid, end
    try:
        of = ledger(folder, budget)
        while True:
            charge(of, keys=keys)
            os.write(said, b"x")
    finally:
        os._exit(0)
