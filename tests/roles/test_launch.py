"""Starting parties, and what becomes of the others when one fails, dies or hangs."""

import gc
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.errors import refused
from tests.roles.federation import Settings, build_role, small_job, small_parties
from veilgraph.core.errors import DataError, LinkTimeout, PeerFailed, RangeOverflow, VeilgraphError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.runtime.launch.processes import PROCESS_DIED, Tick, run_processes, run_threads
from veilgraph.runtime.session.training import train_step

TIMEOUT_S = 1.5


def tick() -> None:
    pass


# Threads


def test_the_first_cause_is_raised_not_its_consequences() -> None:
    def waits(link: Link) -> None:
        link.receive("C", Tag(Kind.SHARE))

    def fails(link: Link) -> None:
        time.sleep(0.1)
        raise DataError("C's own fault; mend it", party="C")

    with refused(DataError, party="C"):
        run_threads({"A": waits, "B": waits, "C": fails}, 5, tick)


def test_an_error_that_is_not_ours_comes_through() -> None:
    def fails(link: Link) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError):
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

METHODS: dict[str, Settings] = {
    "collaborative": {"model": {"initial": {"method": "collaborative"}}},
    "rounds": {"model": {"rounds": 2, "initial": {"method": "individual"}}},
}


@pytest.mark.parametrize(
    ("victim", "steps", "method"),
    [
        ("A", None, "rounds"),
        pytest.param("B", 0, "collaborative", marks=nightly),
        pytest.param("C", 2, "rounds", marks=nightly),
        (SERVER, 2, "collaborative"),
    ],
)
def test_a_party_that_falls_silent_is_named(victim: PartyId, steps: int | None, method: str) -> None:
    """``steps``: how many it does before it hangs; None: it does not even say hello."""
    settings = small_job(3, METHODS[method])
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
    with refused(LinkTimeout, code="silent", party=victim):
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
        with refused(LinkTimeout, code="silent", party="B"):
            run_threads({"A": waits, "B": hangs}, 0.3, tick)
        assert time.perf_counter() - started < 15
    finally:
        over.set()


# Processes, here without veilgraph inside so that they start quickly

FAILS = "import os, sys; os.write(int(sys.argv[1]), {!r}); sys.exit(3)"
SLEEPS = "import time; time.sleep({})"
WAITS_FOR_END = """
import os, socket, sys
ends = dict(end.rsplit('=', 1) for end in sys.argv[3:])
end = socket.socket(fileno=int(ends[{!r}]))
end.recv(1)
os.write(int(sys.argv[1]), {!r})
sys.exit(3)
"""


def waits_for_end(peer: PartyId) -> str:
    return WAITS_FOR_END.format(peer, PeerFailed(f"I cannot receive from {peer}").to_json().encode())


@pytest.fixture(autouse=True)
def _snippet_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself: the package that it is in imports pytest."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def run_snippets(texts: Mapping[PartyId, str], tick: Tick = tick) -> None:
    run_processes("snippet", {party: [text] for party, text in texts.items()}, tick)


def in_background(commands: dict[PartyId, str]) -> Future[None]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run_snippets, commands, tick)
    pool.shutdown(wait=False)
    return future


def test_each_process_gets_its_own_ends_only() -> None:
    talk = """
import os, socket, sys
ends = dict(end.rsplit('=', 1) for end in sys.argv[3:])
for peer, number in ends.items():
    socket.socket(fileno=os.dup(int(number))).sendall(ME.encode())
for peer, number in ends.items():
    assert socket.socket(fileno=int(number)).recv(1).decode() == peer
numbers = {int(number) for number in ends.values()}
assert len(numbers) == 2
"""
    run_snippets({party: f"ME = {party!r}\n{talk}" for party in "ABC"})


def test_the_error_of_a_process_is_raised_here() -> None:
    """As it was there: its class, and what it says apart from its words."""
    error = RangeOverflow("two\nlines: lower it", code="too-large", key="model.feature_bits", value=20, party="B")
    commands = {"A": waits_for_end("B"), "B": f"print(1); {FAILS.format(error.to_json().encode())}"}
    with refused(RangeOverflow, code="too-large", key="model.feature_bits", value=20, party="B") as caught:
        in_background(commands).result(timeout=30)
    assert str(caught.value) == "two lines: lower it"


@pytest.mark.parametrize(
    "report", [b"", b'{"kind": "RangeOverflow"}', b'{"kind": "SystemExit", "message": "x"}', b"\xff"]
)
def test_a_process_whose_report_is_none_ended_without_a_word(report: bytes) -> None:
    with refused(PeerFailed, code=PROCESS_DIED, party="B", value=3):
        in_background({"A": "pass", "B": FAILS.format(report)}).result(timeout=30)


def test_a_defect_in_a_process_names_the_process() -> None:
    with refused(PeerFailed, code=PROCESS_DIED, party="B", value=1) as caught:
        in_background({"A": "pass", "B": "1 / 0"}).result(timeout=30)
    assert "ZeroDivisionError" in str(caught.value)
    with refused(PeerFailed, code=PROCESS_DIED, party="B", value=7):
        in_background({"A": "pass", "B": "import sys; sys.exit(7)"}).result(timeout=30)


def test_a_killed_process_is_named_although_others_fail_before_it_in_order() -> None:
    kill = "import os, signal, time; time.sleep(0.2); os.kill(os.getpid(), signal.SIGKILL)"
    commands = {"A": waits_for_end(SERVER), "B": kill, SERVER: waits_for_end("B")}
    with refused(PeerFailed, code=PROCESS_DIED, party="B", value=-9):
        in_background(commands).result(timeout=30)


def test_a_stopped_process_does_not_hold_up_the_others_error() -> None:
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    late = f"import time; time.sleep(0.5); {FAILS.format(LinkTimeout('A waited 1 s for B').to_json().encode())}"
    future = in_background({"A": late, "B": stop})
    finished, _ = wait([future], timeout=15)
    _kill_stopped_children()
    assert finished, "run_processes still waits"
    with refused(LinkTimeout, code="silent", party="B"):
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
        run_snippets({"A": SLEEPS.format(30), "B": SLEEPS.format(30)}, interrupt)
    assert time.perf_counter() - started < 20
    gc.collect()  # an open file would be a ResourceWarning, and warnings are errors here


def test_many_launches_leave_no_descriptors_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run_snippets(dict.fromkeys("ABC", "pass"))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert torch.get_num_threads() == 1
