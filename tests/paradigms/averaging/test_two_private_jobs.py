"""A game over two jobs of class sums: what both openings tell of one record, against what the ledger for life counts.

Whoever plays knows all rows but whether one is there, and all noise but its holder's. δ is large, so that few trials
prove most of an ε.
"""

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.private.plan import SampledPlan
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.private_jobs import job, local
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_costs import EVERYBODY
from veilgraph.privacy.lifetime_ledger import Account, Budget, Lifetime

DELTA, NOISE, TRIALS, SURE = 0.2, 1.0, 800, 0.95
CLASSES, COLUMNS = 7, 3
HERE, GONE, ENTERS = (True, True), (False, False), (False, True)
"""Whether the record is in the first job, and in the second."""
Play = Callable[[Tensor, Tensor], Tensor]  # both openings along the record's term, [trials] → a number, [trials]


def plan() -> SampledPlan:
    """One round of class sums."""
    own = {"degree_bound": None, "sampling_rate": 1.0, "batch": None, "noise_multiplier": NOISE, "delta": DELTA}
    sums = {**local("gin", 0), "averaging": {"privacy": own}, "train": {"epochs": 1}}
    found = job(sums, {"model": {"dim": 0}}).training_plan
    assert found is not None
    return found


def rows() -> tuple[Tensor, Tensor]:
    """Terms of all training nodes, [2, C·F], of which the first is as long as any may be; and its direction."""
    record = torch.outer(torch.full((CLASSES,), 1 / CLASSES) - torch.eye(CLASSES)[0], torch.eye(COLUMNS)[0]).double()
    record = (record / record.norm()).view(1, -1)
    others = 0.1 * torch.randn(1, CLASSES * COLUMNS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([record, others]), record[0]


@cache
def openings(history: tuple[bool, bool], *, again: bool = False) -> tuple[Tensor, Tensor]:
    """What each of two jobs opens, along the record's term and less what others add: [trials] each.

    ``again``: both jobs draw the same noise.
    """
    whole, direction = rows()

    def opened(number: int) -> Tensor:
        given = whole if history[number] else whole[1:]
        of = plan().paid_by(None, fixed_secrets("two jobs", history, 0 if again else number))
        sums = [of.sampled_sum(len(given), given.__getitem__, given.shape[1], 0) for _ in range(TRIALS)]
        return torch.stack(sums) @ direction - whole[1:].sum(0) @ direction

    return opened(0), opened(1)


def proven(play: Play, inside: tuple[bool, bool], outside: tuple[bool, bool] = GONE, *, again: bool = False) -> float:
    """The ε that a test proves which takes a number above the first history's mean for the first."""
    here, gone = (play(*openings(history, again=again)) for history in (inside, outside))
    least = (here.mean() - 1e-6).item()
    return epsilon_lower_bound(int((here > least).sum()), int((gone > least).sum()), TRIALS, DELTA, SURE)


def both(first: Tensor, second: Tensor) -> Tensor:
    return first + second


def change(first: Tensor, second: Tensor) -> Tensor:
    return second - first


@pytest.fixture
def totals(tmp_path: Path) -> list[float]:
    """What one holder's ledger for life says after a job, and after a second one."""
    found, lifetime = [], Lifetime(tmp_path / "ledger", "B", Budget(1000.0, DELTA), Marks(tmp_path / "marks"))
    whole, _ = rows()
    for number in range(2):
        account = Account(lifetime, EVERYBODY, DELTA, f"{number}" * 64, f"job {number}")
        with closing(Ledger.open(tmp_path / f"{number}.jsonl", DELTA, None, job=f"{number}" * 64)) as own:
            of = plan().paid_by(own, fixed_secrets("paid", number), account)
            of.sampled_sum(len(whole), whole.__getitem__, whole.shape[1], 0)
        found.append(lifetime.total())
    return found


def test_two_jobs_tell_more_of_a_record_than_one_is_paid_for_and_no_more_than_both(totals: list[float]) -> None:
    """The same job twice, and two jobs before and after a record enters: noise of each is its own."""
    one, two = totals
    assert one < proven(both, HERE) < two
    assert proven(lambda first, _: first, HERE) < one
    assert proven(change, ENTERS) < one
    assert proven(both, HERE, ENTERS) < one


def test_two_jobs_with_the_same_noise_would_name_a_record_that_enters(totals: list[float]) -> None:
    """The control: noise cancels from the difference."""
    assert proven(change, ENTERS, again=True) > 2 * totals[1]
