"""The clocks of ``benchmarks.turns``: parties that take turns are told the time of parties that work at once."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch

from benchmarks import critical_path, step
from benchmarks.critical_path import Share, shares
from benchmarks.turns import Moment, TurnLink, Turns
from tests.roles.federation import small_parties
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.runtime.launch.processes import run_threads

TAG = Tag(Kind.SHARE)


class Ticks:
    """A clock that goes on by what is said to be computed. One thread computes at a time, or this would go wrong."""

    def __init__(self) -> None:
        self.now = 0.0

    def compute(self, ticks: int) -> None:
        for _ in range(ticks):
            before = self.now
            time.sleep(0.002)
            self.now = before + 1


def ends_of(ticks: Ticks, **programs: Callable[[Link], object]) -> tuple[Turns, dict[PartyId, float]]:
    """What every party's clock said when its program ended."""
    turns, sent, ends = Turns(lambda: ticks.now), dict[tuple[PartyId, PartyId, Tag], Moment](), dict[PartyId, float]()

    def of(party: PartyId) -> Callable[[Link], None]:
        def run(link: Link) -> None:
            with turns.turn(party):
                programs[party](TurnLink(link, turns, sent))
                ends[party] = turns.now().at

        return run

    with turns.background():
        run_threads({party: of(party) for party in programs}, 5.0, lambda: None)
    return turns, ends


def test_a_thread_goes_on_when_it_and_what_it_waits_for_are_ready() -> None:
    ticks = Ticks()

    def early(link: Link) -> None:
        ticks.compute(3)
        link.send("B", TAG, torch.ones(1))
        ticks.compute(2)
        link.receive("B", TAG)  # from tick 5 to 7

    def late(link: Link) -> None:
        ticks.compute(1)
        link.receive("A", TAG)  # from tick 1 to 3
        ticks.compute(4)
        link.send("A", TAG, torch.ones(1))
        ticks.compute(1)

    _, ends = ends_of(ticks, A=early, B=late)
    assert ends == {"A": 7, "B": 8}
    assert ticks.now == 11


def test_work_in_the_background_costs_only_who_waits_for_it() -> None:
    ticks = Ticks()

    def program(_: Link) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="offline") as pool:
            first, second = pool.submit(ticks.compute, 3), pool.submit(ticks.compute, 2)  # done at ticks 3 and 5
            ticks.compute(1)
            first.result()
            ticks.compute(1)
            second.result()
            ticks.compute(1)

    turns, ends = ends_of(ticks, A=program)
    assert ends == {"A": 6}
    end = max(turns.moments, key=lambda moment: moment.at)
    assert shares(turns.moments, Moment(0.0), end) == {("A", False): Share(1e3, 2e3), ("A", True): Share(5e3, 0)}


def test_pools_that_share_out_the_holders_own_work_need_no_turn() -> None:
    ticks = Ticks()

    def program(_: Link) -> None:
        with ThreadPoolExecutor(1, thread_name_prefix="ring dense") as pool:
            for done in [pool.submit(ticks.compute, 2) for _ in range(2)]:
                done.result()

    turns, ends = ends_of(ticks, A=program)
    assert ends == {"A": 4}
    assert not any(moment.background for moment in turns.moments)


def test_errors_pass_and_the_token_goes_on() -> None:
    ticks = Ticks()

    def fail() -> None:
        ticks.compute(2)
        raise ValueError("in the background")

    def program(_: Link) -> None:
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(ValueError, match="in the background"):
                pool.submit(fail).result()
            ticks.compute(1)

    submit = ThreadPoolExecutor.submit
    _, ends = ends_of(ticks, A=program, B=program)
    assert ends == {"A": 3, "B": 3}
    assert ThreadPoolExecutor.submit is submit


def test_shares_count_what_lies_between_two_moments() -> None:
    a1 = Moment(1.0, "A", False, None)
    b2 = Moment(3.0, "B", False, a1)
    b3 = Moment(4.0, "B", True, Moment(2.0, "B", True, None))
    a4 = Moment(6.0, "A", False, b2)
    everything = [a1, b2, b3, a4]
    assert shares(everything, Moment(2.0), a4) == {
        ("A", False): Share(3000.0, 0.0),
        ("B", False): Share(1000.0, 0.0),
        ("B", True): Share(0.0, 2000.0),
    }


def test_a_step_of_a_job_is_shorter_than_all_that_is_computed_in_it() -> None:
    turns, ends = critical_path.follow(step.job(5), small_parties(2))
    assert len(ends) == 5
    assert all(one.at < other.at for one, other in pairwise(ends))
    found = shares(turns.moments, ends[1], ends[4])
    length = (ends[4].at - ends[1].at) * 1e3
    assert sum(share.on_path for share in found.values()) == pytest.approx(length)
    assert found.keys() == {(party, background) for party in ("A", "B", SERVER) for background in (False, True)}
    assert all(share.on_path + share.off_path > 0 for share in found.values())
    assert length < sum(share.on_path + share.off_path for share in found.values())
