"""Draws that come out alike: of a label there are few outcomes, and two draws tell more than one even where both agree.

What was released is known by the draw that made it. Known by its bytes, snapshots of a label that come out alike would
be paid for once.
"""

from pathlib import Path

import pytest
import torch

from tests.errors import refused
from tests.privacy.lifetime.ledgers import RUN, count_of, ledger
from veilgraph.core.errors import BudgetSpent
from veilgraph.core.secrets import system_secrets
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.privacy.label_publisher import LABELS, LabelPublisher
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.lifetime_ledger import Account, Budget, Lifetime
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import OWN_RELEASE, LifetimeCache, RunCache
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.session.publishers import LifetimeAccount

EPSILON, TIMES = 0.5, 12
JOB = parse_job({"label_privacy": {"epsilon": EPSILON}})


class Draws:
    """How many there were."""

    count = 0

    def __call__(self, size: int) -> bytes:
        self.count += 1
        return system_secrets(size)


def one_label(lifetime: Lifetime, label: int, draws: Draws, epsilon: float = EPSILON, snapshot: str = "") -> int:
    """What a holder with a single label learns from, in a job of that snapshot, as the label is now."""
    key = lifetime.keys(["c7"])
    sent = LifetimeCache(Account(lifetime, key, None, RUN, "job"), key, snapshot=snapshot)
    door = LabelPublisher(LabelResponse(epsilon, 2), torch.tensor([label]), None, draws, sent)
    return int(door.perturbed())


def test_a_label_that_goes_back_and_forth_is_sent_as_it_was(tmp_path: Path) -> None:
    lifetime, draws = ledger(tmp_path / "ledger", Budget(EPSILON, 1e-4)), Draws()
    assert len({one_label(lifetime, day % 2, draws) for day in range(TIMES)}) == 1
    assert count_of(lifetime) == draws.count == 1


def test_a_snapshot_a_day_pays_for_every_draw(tmp_path: Path) -> None:
    lifetime, draws = ledger(tmp_path / "ledger", Budget(EPSILON * TIMES, 1e-4)), Draws()
    for day in range(TIMES):
        one_label(lifetime, day % 2, draws, snapshot=f"day-{day}")
        assert count_of(lifetime) == draws.count == day + 1
    with refused(BudgetSpent, key="limits.max_epsilon", value=EPSILON * TIMES):
        one_label(lifetime, TIMES % 2, draws, snapshot="one-more")
    assert lifetime.total() == pytest.approx(EPSILON * TIMES)
    for day in range(TIMES):
        one_label(lifetime, 0, draws, snapshot=f"day-{day}")
    assert count_of(lifetime) == draws.count - 1 == TIMES, "the one that was refused was drawn, and never sent"


def test_a_draw_with_another_epsilon_pays_though_it_comes_out_as_before(tmp_path: Path) -> None:
    lifetime, draws = ledger(tmp_path / "ledger", Budget(100.0, 1e-4)), Draws()
    epsilons = [EPSILON + day / 8 for day in range(TIMES)]
    for epsilon in epsilons:
        one_label(lifetime, 1, draws, epsilon)
    assert lifetime.total() == pytest.approx(sum(epsilons))


def test_fewer_labels_without_ids_may_be_others_and_are_drawn_anew_and_paid_for(tmp_path: Path) -> None:
    """Another file has somebody else in the first places: their number alone tells, whatever the labels are."""
    lifetime, draws, labels = ledger(tmp_path / "ledger", Budget(100.0, 1e-4)), Draws(), torch.tensor([0, 1, 1, 0])
    for count, flip, times in ((4, 0, 1), (4, 1, 1), (2, 0, 2)):
        given, lasting = labels[:count] ^ flip, LifetimeAccount(lifetime, None)
        sent = LifetimeCache(lasting.account(JOB, None), lasting.each_key(count), by_place=True)
        LabelPublisher(LabelResponse(EPSILON, 2), given, None, draws, sent).perturbed()
        assert count_of(lifetime) == draws.count == times
    assert lifetime.total() == pytest.approx(2 * EPSILON)


def test_labels_that_are_drawn_again_as_a_whole_pay_for_every_draw(tmp_path: Path) -> None:
    """What was kept is lost each time, as on a disk that is put back."""
    labels, draws = torch.tensor([0, 1]), Draws()
    with Ledger.open(tmp_path / "ledger.jsonl", 1e-12, None, job="0" * 64) as run:
        for day in range(TIMES):
            keeper = FolderKeeper(tmp_path)
            door = LabelPublisher(LabelResponse(EPSILON, 2), labels, run, draws, RunCache(run, keeper, "as they are"))
            first = door.perturbed()
            again = LabelPublisher(LabelResponse(EPSILON, 2), labels, run, draws, RunCache(run, keeper, "as they are"))
            assert torch.equal(again.perturbed(), first), "what is kept is sent again for nothing"
            assert run.releases(LABELS) == draws.count == day + 1
            keeper.path(OWN_RELEASE).unlink()


def test_what_a_run_kept_of_other_nodes_is_not_sent_again(tmp_path: Path) -> None:
    """As many nodes of another alignment: what was kept would be given out as theirs, and nobody would pay."""
    labels, draws, keeper = torch.arange(64) % 2, Draws(), FolderKeeper(tmp_path)
    with Ledger.open(tmp_path / "ledger.jsonl", 1e-12, None, job="0" * 64) as run:
        found = {
            nodes: LabelPublisher(
                LabelResponse(EPSILON, 2), labels, run, draws, RunCache(run, keeper, nodes)
            ).perturbed()
            for nodes in ("these", "others")
        }
        assert not torch.equal(*found.values())
        assert run.releases(LABELS) == 2
        again = LabelPublisher(LabelResponse(EPSILON, 2), labels, run, draws, RunCache(run, keeper, "others"))
        assert torch.equal(again.perturbed(), found["others"])
        assert run.releases(LABELS) == 2
