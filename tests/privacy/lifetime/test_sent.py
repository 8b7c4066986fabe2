"""Rows that were released: the same bytes again, and new ones for what has changed alone."""

import numpy as np
import pytest
import torch

from tests.errors import refused
from tests.privacy.lifetime.ledgers import NODES, count_of, ledger
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.privacy import accountant
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.lifetime.costs import EVERYBODY
from veilgraph.privacy.lifetime.ledger import Budget
from veilgraph.privacy.lifetime.sent import SentRows

EVENT = GaussianEvent(2.0)
ONE = Budget(accountant.total({EVENT: 1}, 1e-5), 1e-5)


class Holder:
    """Its rows, and what it released."""

    def __init__(self, folder, budget=ONE, ids=NODES, whole=False):
        self.lifetime, self.ids, self.whole = ledger(folder, budget), list(ids), whole
        self.rows = torch.randn(len(self.ids), 3, dtype=torch.float64)
        self.made, self.paid = [], []

    def sent(self, of="data", event=EVENT, mechanism="gaussian", kill=None, whole=False):
        rows = self.of(of, whole=whole)
        return rows.release("embeddings", self.rows, event, mechanism, self._noised, kill or self.paid.append)

    def holds(self, of="data", event=EVENT, mechanism="gaussian"):
        return self.of(of).holds("embeddings", event, mechanism)

    def of(self, of="data", *, whole=False):
        """Without ids everybody pays, and rows go by their places."""
        if self.whole:
            account = Account(self.lifetime, EVERYBODY, 1e-5, "ab" * 32, "job")
            return SentRows(account, np.arange(len(self.rows), dtype=np.uint64), lambda _: EVERYBODY, of, by_place=True)
        each = self.lifetime.each_key(self.ids)
        account = Account(self.lifetime, self.lifetime.keys(self.ids), 1e-5, "ab" * 32, "job")
        return SentRows(account, each, lambda new: np.sort(each[new.numpy()]), of, whole=whole)

    def _noised(self, rows):
        self.made.append(len(rows))
        return rows + torch.randn(rows.shape, dtype=torch.float64)


@pytest.fixture
def holder(tmp_path):
    torch.manual_seed(3)
    return Holder(tmp_path / "ledger")


def test_the_same_rows_are_the_same_bytes_and_cost_nothing(holder):
    assert not holder.holds()
    first = holder.sent()
    assert holder.holds()
    assert not holder.holds(of="other data")
    for _ in range(5):
        assert torch.equal(holder.sent(), first)
    assert holder.made == [20]
    assert count_of(holder.lifetime) == 1
    assert len(holder.paid) == 6  # the ledger of the run is asked every time


def test_rows_follow_their_nodes_and_not_their_places(holder):
    first = holder.sent()
    order = torch.randperm(20)
    holder.ids, holder.rows = [holder.ids[place] for place in order], holder.rows[order]
    assert torch.equal(holder.sent(), first[order])
    holder.ids, holder.rows = holder.ids[:7], holder.rows[:7]
    assert torch.equal(holder.sent(), first[order][:7])
    assert count_of(holder.lifetime) == 1


def test_what_has_changed_is_released_anew_and_paid_for_by_its_own_nodes(holder):
    first = holder.sent()
    holder.rows[4] += 1e-12
    with pytest.raises(BudgetSpent):
        holder.sent()
    holder.rows[4] -= 1e-12
    roomy = Holder.__new__(Holder)
    roomy.__dict__ |= holder.__dict__ | {"lifetime": ledger(holder.lifetime.lines.folder, Budget(50.0, 1e-5))}
    roomy.rows[4] += 1
    second = roomy.sent()
    changed = (second != first).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [4]
    prices = {node: len(roomy.lifetime._read.costs.prices(roomy.lifetime.keys([node]))) for node in NODES}
    assert set(prices.values()) == {2}
    price = accountant.total({EVENT: 2}, 1e-5)
    assert roomy.lifetime.total() == pytest.approx(price)
    others = roomy.lifetime.keys([node for place, node in enumerate(NODES) if place != 4])
    assert roomy.lifetime._read.costs.most(1e-5, others) == pytest.approx(ONE.epsilon)


def test_where_all_pay_no_row_stays_that_would_show_where_an_edge_changed(tmp_path):
    torch.manual_seed(3)
    holder = Holder(tmp_path / "ledger", Budget(50.0, 1e-5))
    first = holder.sent(whole=True)
    assert torch.equal(holder.sent(whole=True), first)
    holder.rows[4] += 1e-12
    second = holder.sent(whole=True)
    assert (second != first).any(dim=1).all()
    assert holder.made == [20, 20]
    assert holder.lifetime.total() == pytest.approx(accountant.total({EVENT: 2}, 1e-5))
    holder.ids, holder.rows = holder.ids[:7], holder.rows[:7]
    assert torch.equal(holder.sent(whole=True), second[:7])


@pytest.mark.parametrize("change", [{"event": GaussianEvent(3.0)}, {"mechanism": "gaussian(clip=2.0)"}])
def test_another_mechanism_is_another_release(holder, change):
    holder.sent()
    assert not holder.holds(**change)
    with pytest.raises(BudgetSpent):
        holder.sent(**change)


def test_rows_of_another_width_are_others(holder):
    holder.sent()
    holder.rows = torch.randn(20, 5, dtype=torch.float64)
    with pytest.raises(BudgetSpent):
        holder.sent()


class Killed(Exception):
    pass


def test_a_kill_between_keeping_and_paying_sends_nothing_and_pays_once(holder):
    def kill(released):
        raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            holder.sent(kill=kill)
        assert not holder.holds()
    first = holder.sent()
    assert holder.made == [20]
    assert torch.equal(holder.sent(), first)
    assert count_of(holder.lifetime) == 1


def test_what_was_kept_and_never_paid_for_is_paid_for_when_it_is_sent(holder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(holder.lifetime, "charge", _kill)
        with pytest.raises(Killed):
            holder.sent()
    assert count_of(holder.lifetime) == 0
    holder.sent()
    assert count_of(holder.lifetime) == 1
    assert holder.made == [20]


def _kill(*_, **__):
    raise Killed


def test_damage_is_one_clear_error(holder):
    holder.sent()
    (path,) = (holder.lifetime.lines.folder / "released").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with refused(RunError, key=path):
        holder.sent()


def test_what_cannot_be_kept_is_one_clear_error_and_is_neither_sent_nor_paid_for(holder):
    folder = holder.lifetime.lines.folder / "released"
    folder.write_bytes(b"")
    with refused(RunError, key=folder):
        holder.sent()
    assert count_of(holder.lifetime) == 0


# Without ids


@pytest.fixture
def nameless(tmp_path):
    torch.manual_seed(3)
    return Holder(tmp_path / "ledger", Budget(50.0, 1e-5), whole=True)


def test_rows_without_names_are_the_same_as_a_whole_or_all_are_new(nameless):
    first = nameless.sent()
    assert torch.equal(nameless.sent(), first)
    assert nameless.of().fits("embeddings", nameless.rows, EVENT, "gaussian")
    nameless.rows[4] += 1e-12
    second = nameless.sent()
    assert bool((first != second).all())
    assert nameless.made == [20, 20]
    assert nameless.lifetime.nodes == 0
    assert nameless.lifetime.total() == pytest.approx(accountant.total({EVENT: 2}, 1e-5))


@pytest.mark.parametrize("count", [7, 25])
def test_of_rows_without_names_others_than_before_are_all_new(nameless, count):
    """A part of them tells nothing of the rest, and neither do they of more."""
    first = nameless.sent()
    nameless.rows = torch.cat([nameless.rows, torch.randn(5, 3, dtype=torch.float64)])[:count]
    second = nameless.sent()
    shared = min(count, 20)
    assert bool((second[:shared] != first[:shared]).all())
    assert torch.equal(nameless.sent(), second)
    assert count_of(nameless.lifetime) == 2


def test_a_budget_that_is_spent_by_one_node_has_no_room_for_the_nameless(nameless):
    price = accountant.total({EVENT: 1}, 1e-5)
    nameless.lifetime = ledger(nameless.lifetime.lines.folder, Budget(price, 1e-5))
    named = Holder(nameless.lifetime.lines.folder, Budget(price, 1e-5), ids=NODES[:20])
    named.rows = named.rows[:20]
    named.sent()
    assert not nameless.of().fits("embeddings", nameless.rows, EVENT, "gaussian")
    with pytest.raises(BudgetSpent):
        nameless.sent()
    assert torch.equal(named.sent(), named.sent()), "what it kept is its own"
    assert named.made == [20]
