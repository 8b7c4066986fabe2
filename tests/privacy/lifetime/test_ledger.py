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

from tests import nightly
from tests.errors import refused
from tests.privacy.lifetime.ledgers import EVENT, NODES, charge, count_of, ledger
from veilgraph.core.errors import BudgetSpent
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, LocalEvent
from veilgraph.privacy.gaussian import Gaussian
from veilgraph.privacy.lifetime.costs import EVERYBODY
from veilgraph.privacy.lifetime.ledger import About, Budget

EDGE = GaussianEvent(5.0, "replacement", "edge")
NODE = GaussianEvent(5.0, "replacement", "node")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "ledger"


def budget_for(releases, delta=1e-5, event=EVENT, **more):
    return Budget(accountant.total({event: releases}, delta), 1e-4, **more)


@pytest.mark.parametrize("releases", [1, 3, 7])
def test_the_first_release_beyond_the_total_is_refused_and_the_one_before_is_not(folder, releases):
    opened = ledger(folder, budget_for(releases))
    for left in range(releases, 0, -1):
        assert opened.room(EVENT, opened.keys(NODES), 1e-5) == left
        charge(opened)
    assert opened.total() == pytest.approx(opened.budget.epsilon, rel=1e-12)
    with refused(BudgetSpent, code="lifetime"):
        charge(opened)
    assert count_of(opened) == releases
    assert opened.room(EVENT, opened.keys(NODES), 1e-5) == 0
    charge(opened, GaussianEvent(1e9))  # what costs nearly nothing is no more than rounding


def test_a_calibrated_release_fits_its_budget_exactly_once(folder):
    for epsilon in (0.1, 1.0, 4.0, 16.0):
        event = GaussianEvent(Gaussian.for_total(epsilon, 1e-5, 1, 1.0))
        opened = ledger(folder / str(epsilon), Budget(epsilon, 1e-4))
        charge(opened, event)
        with pytest.raises(BudgetSpent):
            charge(opened, event)


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from(NODES[:6]), min_size=1),
            st.sampled_from([EVENT, GaussianEvent(9.0), GaussianEvent(9.0, "replacement"), LaplaceEvent(8.0)]),
            st.integers(1, 3),
            st.sampled_from([1e-5, 1e-7, None]),
        ),
        max_size=8,
    )
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_node_is_ever_beyond_the_budget_and_nothing_that_fits_is_refused(tmp_path_factory, charges):
    folder, limit = tmp_path_factory.mktemp("ledgers") / "ledger", 2.0
    opened, least = ledger(folder, Budget(limit, 1e-4, "row", "zero-out")), 1e-4
    paid: dict[str, Counter[Event]] = {node: Counter() for node in NODES}
    for nodes, event, count, delta in charges:
        tried = {node: paid[node] + (Counter({event: count}) if node in nodes else Counter()) for node in NODES}
        at = min(least, delta or math.inf)
        if max(total(events, at) for events in tried.values()) <= limit:
            charge(opened, event, count, nodes, delta)
            paid, least = tried, at
        else:
            with pytest.raises(BudgetSpent):
                charge(opened, event, count, nodes, delta)
    assert opened.total() == pytest.approx(max(total(events, least) for events in paid.values()), rel=1e-9)
    assert ledger(folder, Budget(limit, 1e-4, "row", "zero-out")).total() == opened.total()


def total(events, delta):
    mu = math.hypot(*(event.mu(count) for event, count in events.items()))
    return accountant.gaussian_epsilon(mu, delta) + sum(
        event.epsilon * count for event, count in events.items() if not event.mu(1)
    )


def test_nodes_that_no_release_depends_on_have_all_of_their_budget(folder):
    opened = ledger(folder, budget_for(1))
    charge(opened, ids=NODES[:10])
    charge(opened, ids=NODES[10:])
    with pytest.raises(BudgetSpent):
        charge(opened, ids=NODES[9:11])
    assert opened.room(EVENT, opened.keys(["somebody new"]), 1e-5) == 1


def test_who_has_no_id_may_be_anybody(folder):
    """So its releases, and those of each other node, are one total, whichever came first."""
    opened = ledger(folder, budget_for(3))
    charge(opened, ids=NODES[:5])
    charge(opened, keys=EVERYBODY)
    assert opened.room(EVENT, opened.keys(NODES[:5]), 1e-5) == 1
    assert opened.room(EVENT, EVERYBODY, 1e-5) == 1
    assert opened.room(EVENT, opened.keys(["somebody new"]), 1e-5) == 2
    charge(opened, keys=EVERYBODY)
    for keys in (EVERYBODY, opened.keys(NODES[:1])):
        with pytest.raises(BudgetSpent):
            charge(opened, keys=keys)
    charge(opened, ids=["somebody new"])
    assert opened.total() == pytest.approx(opened.budget.epsilon, rel=1e-12)
    assert ledger(folder, budget_for(3)).total() == opened.total()
    assert opened.nodes == 6


def test_the_least_delta_of_any_job_is_the_total_s(folder):
    opened = ledger(folder, budget_for(2))
    charge(opened)
    assert opened.delta == 1e-5
    with pytest.raises(BudgetSpent):
        charge(opened, delta=1e-6)
    assert opened.delta == 1e-5
    charge(opened)
    loose = ledger(folder.with_name("loose"), Budget(100.0, 1e-7))
    charge(loose, delta=1e-3)
    assert loose.delta == 1e-7


@pytest.mark.parametrize(
    ("unit", "neighbours", "event", "bounds"),
    [
        ("row", "zero-out", EVENT, True),
        ("row", "replacement", EVENT, False),
        ("row", "zero-out", GaussianEvent(5.0, "replacement"), True),
        ("row", "zero-out", EDGE, True),
        ("row", "replacement", NODE, True),
        ("edge", "replacement", EVENT, False),
        ("edge", "replacement", NODE, False),
        ("edge", "replacement", LocalEvent(1.0), False),
        ("node", "replacement", EDGE, False),
        ("node", "replacement", EVENT, False),
        ("node", "replacement", LocalEvent(1.0), True),
        ("node", "replacement", LocalEvent(1.0, "label"), True),
        ("label", "replacement", LocalEvent(1.0), False),
    ],
)
def test_what_a_release_says_about_a_unit(folder, unit, neighbours, event, bounds):
    assert About(unit, neighbours).bounds(event) == bounds
    opened = ledger(folder, Budget(50.0, 1e-4, unit, neighbours))
    if bounds:
        charge(opened, event)
        assert 0 < opened.total() < 50
    else:
        with refused(BudgetSpent, code="lifetime"):
            charge(opened, event)


def test_the_first_release_says_what_the_total_is_about_and_what_was_released_before_a_limit_counts(folder):
    opened = ledger(folder)
    charge(opened, EDGE)
    charge(opened, EVENT)  # without a limit nothing is refused
    limited = ledger(folder, Budget(50.0, 1e-4))
    assert limited.about == About("edge", "replacement")
    assert limited.total() == math.inf
    with pytest.raises(BudgetSpent):
        charge(limited, EDGE)
    assert limited.room(EDGE, limited.keys(NODES), 1e-5) == 0
    rows = ledger(folder, Budget(50.0, 1e-4, "row", "zero-out"))
    charge(rows, EVENT)
    assert rows.total() < 50


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


@pytest.mark.parametrize(
    "keys", [pytest.param(None, id="nodes"), pytest.param(EVERYBODY, marks=nightly, id="everybody")]
)
def test_processes_that_are_killed_have_paid_for_all_that_they_sent(folder, keys):
    """100 kills at random moments, two processes at a time: the last release that fits is the last that is made."""
    budget, draw, made = budget_for(3000), random.Random(7), 0
    ledger(folder, budget)
    for _ in range(50):
        children = [child(folder, budget, keys) for _ in range(2)]
        time.sleep(draw.uniform(0.0, 0.03))
        for pid, _ in children:
            os.kill(pid, signal.SIGKILL)
        for pid, pipe in children:
            os.waitpid(pid, 0)
            with os.fdopen(pipe, "rb") as said:
                made += len(said.read())
    after = ledger(folder, budget)
    assert 0 < made <= count_of(after) <= made + 100
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
