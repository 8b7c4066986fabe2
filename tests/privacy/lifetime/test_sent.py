"""Rows that were released: the same bytes again whatever has changed, and draws for nodes that enter alone."""

import logging

import numpy as np
import pytest
import torch

from tests.errors import refused
from tests.privacy.lifetime.ledgers import NODES, count_of, ledger
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.privacy import accountant
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.lifetime_costs import EVERYBODY
from veilgraph.privacy.lifetime_ledger import Account, Budget
from veilgraph.privacy.release_cache import LifetimeCache, Release

EVENT = GaussianEvent(2.0)
ONE = Budget(accountant.total({EVENT: 1}, 1e-5), 1e-5)


class RunLedger:
    """Of a run that shows each release."""

    def __init__(self, pay):
        self.pay = pay

    def has_paid(self, channel, content):
        return False

    def spend(self, event, channel, step, *, content, by_rows):
        assert by_rows
        self.pay(content)

    def room(self, event, *, by_rows):
        return None


class Holder:
    """Its rows, and what it released."""

    def __init__(self, folder, budget=ONE, ids=NODES, named=True):
        self.lifetime, self.ids, self.named = ledger(folder, budget), list(ids), named
        self.rows = torch.randn(len(self.ids), 3, dtype=torch.float64)
        self.made, self.paid = [], []

    def sent(self, event=EVENT, mechanism="gaussian", kill=None, **of):
        cache = self.of(kill, **of)
        return cache.release(Release("embeddings", event, mechanism), self.rows, self._noised)

    def is_free(self, event=EVENT, mechanism="gaussian", **of):
        return self.of(**of).is_free(Release("embeddings", event, mechanism))

    def fits(self, **of):
        return self.of(**of).room(Release("embeddings", EVENT, "gaussian")) != 0

    def of(self, kill=None, **of):
        """Without ids everybody pays, and rows go by their places."""
        keys = self.lifetime.keys(self.ids) if self.named else EVERYBODY
        each = self.lifetime.each_key(self.ids) if self.named else np.arange(len(self.rows), dtype=np.uint64)
        account, run = Account(self.lifetime, keys, 1e-5, "ab" * 32, "job"), RunLedger(kill or self.paid.append)
        return LifetimeCache(account, each, run, by_place=not self.named, **of)  # type: ignore[arg-type]

    def _noised(self, rows):
        self.made.append(len(rows))
        return rows.to_dense() + torch.randn(rows.shape, dtype=torch.float64)


@pytest.fixture
def holder(tmp_path):
    torch.manual_seed(3)
    return Holder(tmp_path / "ledger")


def test_the_same_bytes_are_sent_again_whatever_has_changed_and_cost_nothing(holder, caplog):
    assert not holder.is_free()
    first = holder.sent()
    assert holder.is_free()
    for change in (0.0, 1e-12, 1.0):
        holder.rows[4] += change
        assert holder.fits()
        assert torch.equal(holder.sent(), first)
    assert holder.made == [20]
    assert count_of(holder.lifetime) == 1
    assert len(holder.paid) == 4  # the ledger of the run is asked every time
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2
    assert "embeddings: of 1 nodes the data have changed" in told[0]


def test_rows_follow_their_nodes_and_not_their_places(holder):
    first = holder.sent()
    order = torch.randperm(20)
    holder.ids, holder.rows = [holder.ids[place] for place in order], holder.rows[order]
    assert torch.equal(holder.sent(), first[order])
    holder.ids, holder.rows = holder.ids[:7], holder.rows[:7]
    assert torch.equal(holder.sent(), first[order][:7])
    assert count_of(holder.lifetime) == 1


def test_who_enters_is_drawn_and_pays_alone_and_who_leaves_comes_back_as_before(holder):
    first, old = holder.sent(), (list(holder.ids), holder.rows)
    holder.ids, holder.rows = [*holder.ids[5:], "new"], torch.cat([holder.rows[5:] + 1, torch.ones(1, 3)])
    assert holder.fits(), "its budget has room, and the others pay nothing"
    second = holder.sent()
    assert torch.equal(second[:15], first[5:])
    assert holder.made == [20, 1]
    with holder.lifetime.lines.held():
        (_, entry) = holder.lifetime.lines.entries
    assert holder.lifetime.lines.cohort(entry.cohort).tolist() == holder.lifetime.keys(["new"]).tolist()
    holder.ids, holder.rows = old
    assert torch.equal(holder.sent(), first)
    assert count_of(holder.lifetime) == 2
    assert holder.lifetime.total() == pytest.approx(ONE.epsilon)


def test_rows_of_several_nodes_data_are_drawn_together_and_all_pay(tmp_path):
    torch.manual_seed(3)
    holder = Holder(tmp_path / "ledger", Budget(50.0, 1e-5))
    first = holder.sent(whole=True)
    holder.rows[4] += 1
    assert torch.equal(holder.sent(whole=True), first)
    holder.ids, holder.rows = [*holder.ids, "new"], torch.cat([holder.rows, torch.ones(1, 3)])
    second = holder.sent(whole=True)
    assert (second[:20] != first).any(dim=1).all()
    assert holder.made == [20, 21]
    assert holder.lifetime.total() == pytest.approx(accountant.total({EVENT: 2}, 1e-5))
    holder.ids, holder.rows = holder.ids[:7], holder.rows[:7]
    assert torch.equal(holder.sent(whole=True), second[:7])


@pytest.mark.parametrize("whole", [False, True])
def test_a_draw_that_nobody_can_pay_for_does_not_take_the_place_of_what_was_paid(holder, whole):
    first, old = holder.sent(whole=whole), (list(holder.ids), holder.rows)
    holder.lifetime.charge(EVENT, "other", 1, holder.lifetime.keys(["new"]), delta=1e-5, run="ab" * 32, job="job")
    holder.ids, holder.rows = [*holder.ids, "new"], torch.cat([holder.rows, torch.ones(1, 3)])
    assert not holder.fits(whole=whole)
    with pytest.raises(BudgetSpent):
        holder.sent(whole=whole)
    holder.ids, holder.rows = old
    assert holder.is_free(whole=whole)
    assert torch.equal(holder.sent(whole=whole), first)


def test_another_snapshot_draws_all_anew_and_all_pay(holder):
    holder.sent()
    assert not holder.is_free(snapshot="february")
    assert not holder.fits(snapshot="february")
    with pytest.raises(BudgetSpent):
        holder.sent(snapshot="february")
    holder.lifetime = ledger(holder.lifetime.lines.folder, Budget(50.0, 1e-5))
    first, second = holder.sent(), holder.sent(snapshot="february")
    assert bool((first != second).all())
    assert torch.equal(holder.sent(), first)
    assert holder.lifetime.total() == pytest.approx(accountant.total({EVENT: 2}, 1e-5))


def test_sparse_rows_are_told_apart_as_dense_ones_are(holder, caplog):
    holder.rows = torch.eye(20, dtype=torch.float64).to_sparse_csr()
    first = holder.sent()
    assert torch.equal(holder.sent(), first)
    assert not caplog.records
    changed = torch.eye(20, dtype=torch.float64)
    changed[3, 3] = 2
    holder.rows = changed.to_sparse_csr()
    assert torch.equal(holder.sent(), first)
    assert "of 1 nodes" in caplog.text


@pytest.mark.parametrize("change", [{"event": GaussianEvent(3.0)}, {"mechanism": "gaussian(clip=2.0)"}])
def test_another_mechanism_is_another_release(holder, change):
    holder.sent()
    assert not holder.is_free(**change)
    with pytest.raises(BudgetSpent):
        holder.sent(**change)


class Killed(Exception):
    pass


def test_a_kill_between_keeping_and_paying_sends_nothing_and_pays_once(holder):
    def kill(released):
        raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            holder.sent(kill=kill)
        assert not holder.is_free()
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
    return Holder(tmp_path / "ledger", Budget(50.0, 1e-5), named=False)


def test_rows_without_names_are_sent_again_as_a_whole(nameless):
    first = nameless.sent()
    nameless.rows[4] += 1
    assert torch.equal(nameless.sent(), first)
    assert nameless.made == [20]
    assert nameless.lifetime.nodes == 0
    assert nameless.lifetime.total() == pytest.approx(accountant.total({EVENT: 1}, 1e-5))


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
    assert not nameless.fits()
    with pytest.raises(BudgetSpent):
        nameless.sent()
    assert torch.equal(named.sent(), named.sent()), "what it kept is its own"
    assert named.made == [20]
