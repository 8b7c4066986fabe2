"""Starting parties, and what becomes of the others when one fails, dies or hangs."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from tests.roles.federation import Settings, build_role, small_job, small_parties
from veilgraph.core.errors import DataError, LinkTimeout, PeerFailed, RangeOverflow, VeilgraphError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.run.fitting import train_step
from veilgraph.run.launch import report_failure, run_processes, run_threads

TIMEOUT_S = 1.5


def tick() -> None:
    pass


# Threads


def test_results_of_threads_come_back_by_party() -> None:
    ticks: list[int] = []
    programs: dict[PartyId, Callable[[Link], str]] = dict.fromkeys(["A", "B"], lambda link: link.party * 2)
    assert run_threads(programs, 5, lambda: ticks.append(1)) == {"A": "AA", "B": "BB"}


def test_the_first_cause_is_raised_not_its_consequences() -> None:
    def waits(link: Link) -> None:
        link.receive("C", Tag(Kind.SHARE))

    def fails(link: Link) -> None:
        time.sleep(0.1)
        raise DataError("C's own fault")

    with pytest.raises(DataError, match="own fault"):
        run_threads({"A": waits, "B": waits, "C": fails}, 5, tick)


def test_an_error_that_is_not_ours_comes_through() -> None:
    def fails(link: Link) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        run_threads({"A": fails, "B": lambda link: link.receive("A", Tag(Kind.SHARE))}, 5, tick)


def test_a_failing_callback_stops_every_party() -> None:
    stopped: list[PartyId] = []

    def waits(link: Link) -> None:
        try:
            link.receive("A" if link.party == "B" else "B", Tag(Kind.SHARE))
        finally:
            stopped.append(link.party)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_threads({"A": waits, "B": waits}, 30, interrupt)
    assert sorted(stopped) == ["A", "B"]


# Hung parties

METHODS: list[Settings] = [
    {"model": {"initial": {"method": "collaborative"}}},
    {"model": {"rounds": 2, "initial": {"method": "individual"}}},
]


@pytest.mark.parametrize("method", METHODS, ids=["collaborative", "individual, rounds"])
@pytest.mark.parametrize(
    ("victim", "steps"),
    [
        ("A", None),
        ("B", None),
        (SERVER, None),
        ("A", 0),
        ("B", 0),
        ("C", 2),
        (SERVER, 0),
        (SERVER, 2),
    ],
)
def test_a_party_that_falls_silent_is_named(victim: PartyId, steps: int | None, method: Settings) -> None:
    """``steps``: how many it does before it hangs; None: it does not even say hello."""
    settings = small_job(3, method)
    graphs = {graph.party: graph for graph in small_parties(3)}
    over = threading.Event()

    def program(link: Link) -> None:
        role = build_role(settings, link, graphs)
        try:
            if link.party == victim and steps is None:
                over.wait(30)
                return
            role.setup([])
            for step in range(4):
                if link.party == victim and step == steps:
                    over.wait(30)
                    return
                train_step(role, step, step + 1)
        except VeilgraphError:
            over.set()
            raise

    started = time.perf_counter()
    with pytest.raises(LinkTimeout, match=f"nothing more came from {victim};"):
        run_threads(dict.fromkeys(["A", "B", "C", SERVER], program), TIMEOUT_S, tick)
    assert time.perf_counter() - started < TIMEOUT_S + 15


def test_a_thread_that_never_ends_does_not_hold_up_the_error() -> None:
    over = threading.Event()

    def hangs(link: Link) -> None:
        over.wait(30)

    def waits(link: Link) -> None:
        link.receive("B", Tag(Kind.SHARE))

    started = time.perf_counter()
    try:
        with pytest.raises(LinkTimeout, match="from B"):
            run_threads({"A": waits, "B": hangs}, 0.3, tick)
        assert time.perf_counter() - started < 15
    finally:
        over.set()


# Processes, here without veilgraph inside so that they start quickly

FAILS = "import sys; sys.stderr.write({!r}); sys.exit({})"
SLEEPS = "import time; time.sleep({})"
WAITS_FOR_END = """
import socket, sys
ends = dict(end.rsplit('=', 1) for end in sys.argv[1:])
end = socket.socket(fileno=int(ends[{!r}]))
end.recv(1)
sys.stderr.write('PeerFailed: I cannot receive from {}: it closed the connection')
sys.exit(3)
"""


def in_background(commands: dict[PartyId, str]) -> Future[None]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run_processes, {party: ["-c", text] for party, text in commands.items()}, tick)
    pool.shutdown(wait=False)
    return future


def test_processes_that_end_well() -> None:
    counted: list[int] = []
    run_processes({"A": ["-c", SLEEPS.format(0.2)], "B": ["-c", "pass"]}, lambda: counted.append(1))
    assert counted


def test_each_process_gets_its_own_ends_only() -> None:
    talk = """
import os, socket, sys
ends = dict(end.rsplit('=', 1) for end in sys.argv[1:])
for peer, number in ends.items():
    socket.socket(fileno=os.dup(int(number))).sendall(ME.encode())
for peer, number in ends.items():
    assert socket.socket(fileno=int(number)).recv(1).decode() == peer
numbers = {int(number) for number in ends.values()}
assert len(numbers) == 2
"""
    run_processes({party: ["-c", f"ME = {party!r}\n{talk}"] for party in "ABC"}, tick)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("RangeOverflow: h^0 does not fit; lower it", RangeOverflow),
        ("Traceback ...\nsome warning\nDataError: a: b: c", DataError),
    ],
)
def test_the_error_of_a_process_is_raised_here(text: str, error: type[Exception]) -> None:
    commands = {"A": WAITS_FOR_END.format("B", "B"), "B": FAILS.format(text, 3)}
    with pytest.raises(error, match=text.splitlines()[-1].partition(": ")[2].replace("^", r"\^")):
        in_background(commands).result(timeout=30)


def test_a_defect_in_a_process_names_the_process() -> None:
    with pytest.raises(PeerFailed, match=r"B's process ended with code 1: .*ZeroDivisionError"):
        in_background({"A": "pass", "B": "1 / 0"}).result(timeout=30)
    with pytest.raises(PeerFailed, match="B's process ended with code 7: no message"):
        in_background({"A": "pass", "B": "import sys; sys.exit(7)"}).result(timeout=30)


def test_report_failure_is_what_the_launcher_reads(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_failure(RangeOverflow("two\nlines:  here")) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "RangeOverflow: two lines: here"


def test_a_killed_process_is_named_although_others_fail_before_it_in_order() -> None:
    kill = "import os, signal, time; time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)"
    commands = {"A": WAITS_FOR_END.format(SERVER, SERVER), "B": kill, SERVER: WAITS_FOR_END.format("B", "B")}
    with pytest.raises(PeerFailed, match=r"\bB\b.*(-9|killed|SIGKILL)"):
        in_background(commands).result(timeout=30)


def test_a_stopped_process_does_not_hold_up_the_others_error() -> None:
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    late = "import sys, time; time.sleep(0.5); sys.stderr.write('LinkTimeout: A waited 1 s for B'); sys.exit(3)"
    future = in_background({"A": late, "B": stop})
    finished, _ = wait([future], timeout=15)
    _kill_stopped_children()
    assert finished, "run_processes still waits"
    with pytest.raises(LinkTimeout, match="for B"):
        future.result(timeout=30)


def _kill_stopped_children() -> None:
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            if Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
                os.kill(int(child), signal.SIGKILL)


def test_an_interrupt_ends_the_processes_and_closes_their_files() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_processes({"A": ["-c", SLEEPS.format(30)], "B": ["-c", SLEEPS.format(30)]}, interrupt)
    assert time.perf_counter() - started < 20
    gc.collect()  # an open file would be a ResourceWarning, and warnings are errors here


def test_many_launches_leave_no_descriptors_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run_processes({party: ["-c", "pass"] for party in "ABC"}, tick)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert torch.get_num_threads() == 1
