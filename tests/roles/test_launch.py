"""Starting parties, and what becomes of the others when one fails, dies or hangs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.errors import refused
from tests.paradigms.cutting import wait_for
from tests.roles.federation import Settings, build_role, small_job, small_parties
from veilgraph.core.errors import DataError, LinkTimeout, PeerFailed, RangeOverflow, VeilgraphError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.runtime.launch import fork_server
from veilgraph.runtime.launch import processes as launch
from veilgraph.runtime.launch.processes import PROCESS_DIED, Tick, run_processes, run_threads
from veilgraph.runtime.session.training import train_step

TIMEOUT_S = 1.5
PARTIES = ("A", "B", SERVER)
WAITS = "import os; os.read(0, 1) # {}"


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

    started = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        run_threads({"A": waits, "B": waits}, 30, interrupt)
    assert time.perf_counter() - started < 15, "it is called while they wait"
    assert sorted(stopped) == ["A", "B"]


def test_a_launcher_is_done_when_its_last_party_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it looks the next time."""
    monkeypatch.setattr(launch, "POLL_S", 30.0)
    started = time.perf_counter()
    run_threads(dict.fromkeys(PARTIES, lambda link: time.sleep(0.1)), 5, tick)
    assert time.perf_counter() - started < 15


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


@nightly
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


def run_everywhere(text: str, tick: Tick = tick) -> None:
    run_snippets(dict.fromkeys(PARTIES, text), tick)


def in_background(commands: dict[PartyId, str]) -> Future[None]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(run_snippets, commands, tick)
    pool.shutdown(wait=False)
    return future


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
    with refused(PeerFailed, code=PROCESS_DIED, value=1, party="A") as caught:
        run_processes("no_such_module", dict.fromkeys(PARTIES, ()), tick)
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_module'")


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


def test_many_launches_leave_no_descriptors_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run_snippets(dict.fromkeys("ABC", "pass"))
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert torch.get_num_threads() == 1


# Forks of one process: what they inherit, what they do not, and who ends with whom


def processes(mark: object) -> dict[int, str]:
    """Process id → name, of the fork server and the parties whose lines have ``mark`` in them; none that is dead."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if f"{mark}".encode() in (folder / "cmdline").read_bytes() and int(folder.name) != os.getpid():
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        except (OSError, ValueError):
            continue
    return found


def born_with(mark: object) -> list[str]:
    return [name for name in processes(mark).values() if name in PARTIES]


@nightly
def test_parties_draw_nothing_twice_and_find_all_imported_and_nothing_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    run_processes("drawing", {party: [str(tmp_path / party)] for party in PARTIES}, tick)
    told = {party: json.loads((tmp_path / party).read_text(encoding="utf-8")) for party in PARTIES}
    for name in told["A"]["drawn"]:
        assert len({told[party]["drawn"][name] for party in PARTIES}) == len(PARTIES), name
    for party in PARTIES:
        assert told[party]["name"] == party
        assert len(told[party]["imported"]) < 20, "each party imports it by itself"


@nightly
@pytest.mark.parametrize("forks", [True, False])
def test_a_session_begins_with_what_the_launching_process_has_by_then(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "FORKS", forks)
    look = """
import json, os, signal, sys
signals = signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP
found = [os.environ["MARK"], os.getcwd(), os.umask(0), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    [signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler) for each in signals]]
numbers = {0, 1, 2, int(sys.argv[1]), *(int(end.rsplit("=", 1)[1]) for end in sys.argv[3:])}
assert {int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")} == numbers
os.write(int(sys.argv[1]), json.dumps(found).encode())
assert False, json.dumps(found)
"""
    before, hangup = os.umask(0o027), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)  # of a shell's background job it is ignored
    try:
        for mark in ("one", "other"):
            monkeypatch.setenv("MARK", mark)
            (tmp_path / mark).mkdir()
            monkeypatch.chdir(tmp_path / mark)
            with refused(PeerFailed, code=PROCESS_DIED, value=1) as caught:
                run_everywhere(look)
            found = [mark, str(tmp_path / mark), 0o027, [], [True, True, True, False]]
            assert str(caught.value).endswith(f"AssertionError: {json.dumps(found)}")
    finally:
        os.umask(before)
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGINT, interrupt)


def test_nobody_else_holds_the_ends_of_a_party_that_is_gone() -> None:
    run_everywhere(
        """
import socket, sys
ends = dict(end.rsplit("=", 1) for end in sys.argv[3:])
if "B" in ends:
    end = socket.socket(fileno=int(ends["B"]))
    end.settimeout(20)
    assert end.recv(1) == b""
""",
    )


@pytest.mark.parametrize("stopped", [False, True])
def test_an_interrupt_leaves_nobody_behind(stopped: bool, tmp_path: Path) -> None:
    """Whether the parties are born by then or not, and whatever they do."""
    stop = f"import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.kill(os.getpid(), 19) # {tmp_path}"
    done = threading.Event()

    def interrupt() -> None:
        if not stopped or len(born_with(tmp_path)) == len(PARTIES):
            done.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_everywhere(stop, interrupt)
    assert done.is_set()
    assert processes(tmp_path) == {}


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_fork_server_is_noticed_and_its_parties_end(signal_: signal.Signals, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(run_everywhere, WAITS.format(tmp_path))
        wait_for(lambda: len(born_with(tmp_path)) == len(PARTIES), 30, "the parties")
        (server,) = [pid for pid, name in processes(tmp_path).items() if name not in PARTIES]
        os.kill(server, signal_)
        with refused(PeerFailed, code=PROCESS_DIED, value=-9, party="A"):
            launch.result(timeout=30)
    wait_for(lambda: processes(tmp_path) == {}, 15, "the parties to end by themselves")


LAUNCHER = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background job it is ignored
from veilgraph.runtime.launch.fork_server import WorkerSpec, spawn_workers
with spawn_workers("snippet", dict.fromkeys({parties!r}, WorkerSpec([{text!r}], 2, []))):
    input()
"""


def launched(text: str) -> subprocess.Popen[bytes]:
    script = LAUNCHER.format(parties=PARTIES, text=text)
    return subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )


def test_a_killed_launcher_takes_fork_server_and_parties_along(tmp_path: Path) -> None:
    with launched(WAITS.format(tmp_path)) as launcher:
        wait_for(lambda: len(born_with(tmp_path)) == len(PARTIES), 30, "the parties")
        launcher.kill()
    wait_for(lambda: processes(tmp_path) == {}, 15, "the parties to end by themselves")


def test_an_interrupt_from_the_terminal_ends_parties_that_do_not_hear_it(tmp_path: Path) -> None:
    """It reaches the fork server as well."""
    deaf = f"import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60) # {tmp_path}"
    with launched(deaf) as launcher:
        wait_for(lambda: len(born_with(tmp_path)) == len(PARTIES), 30, "the parties")
        wait_for(
            lambda: all(ignores(pid, signal.SIGINT) for pid, name in processes(tmp_path).items() if name in PARTIES),
            30,
            "them to be deaf",
        )
        os.killpg(launcher.pid, signal.SIGINT)
        launcher.wait(15)
    assert processes(tmp_path) == {}


def ignores(pid: int, which: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [int(line.split()[1], 16) for line in lines if line.startswith("SigIgn")]
    return bool(mask & 1 << which - 1)
