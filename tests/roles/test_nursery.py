"""Parties that are forks of one process: what they inherit, what they do not, and who ends with whom."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.errors import refused
from tests.paradigms.cutting import wait_for
from veilgraph.core.errors import PeerFailed
from veilgraph.core.types import SERVER
from veilgraph.runtime.launch import fork_server as nursery
from veilgraph.runtime.launch.processes import PROCESS_DIED, Tick, run_processes

PARTIES = ("A", "B", SERVER)
WAITS = "import os; os.read(0, 1) # {}"


@pytest.fixture(autouse=True)
def _parties_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def tick() -> None:
    pass


def run(module: str, *arguments: str, tick: Tick = tick) -> None:
    run_processes(module, dict.fromkeys(PARTIES, arguments), tick)


def processes(mark: object) -> dict[int, str]:
    """Process id → name, of the nursery and the parties whose lines have ``mark`` in them; none that is dead."""
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


@pytest.mark.parametrize("forks", [True, False])
def test_a_session_begins_with_what_the_launching_process_has_by_then(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nursery, "FORKS", forks)
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
                run("snippet", look)
            found = [mark, str(tmp_path / mark), 0o027, [], [True, True, True, False]]
            assert str(caught.value).endswith(f"AssertionError: {json.dumps(found)}")
    finally:
        os.umask(before)
        signal.signal(signal.SIGHUP, hangup)
        signal.signal(signal.SIGINT, interrupt)


def test_nobody_else_holds_the_ends_of_a_party_that_is_gone() -> None:
    run(
        "snippet",
        """
import socket, sys
ends = dict(end.rsplit("=", 1) for end in sys.argv[3:])
if "B" in ends:
    end = socket.socket(fileno=int(ends["B"]))
    end.settimeout(20)
    assert end.recv(1) == b""
""",
    )


def test_what_cannot_be_imported_is_said() -> None:
    with refused(PeerFailed, code=PROCESS_DIED, value=1, party="A") as caught:
        run("no_such_module")
    assert str(caught.value).endswith("ModuleNotFoundError: No module named 'no_such_module'")


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
        run("snippet", stop, tick=interrupt)
    assert done.is_set()
    assert processes(tmp_path) == {}


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_nursery_is_noticed_and_its_parties_end(signal_: signal.Signals, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        launch = pool.submit(run, "snippet", WAITS.format(tmp_path))
        wait_for(lambda: len(born_with(tmp_path)) == len(PARTIES), 30, "the parties")
        (mother,) = [pid for pid, name in processes(tmp_path).items() if name not in PARTIES]
        os.kill(mother, signal_)
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


def test_a_killed_launcher_takes_nursery_and_parties_along(tmp_path: Path) -> None:
    with launched(WAITS.format(tmp_path)) as launcher:
        wait_for(lambda: len(born_with(tmp_path)) == len(PARTIES), 30, "the parties")
        launcher.kill()
    wait_for(lambda: processes(tmp_path) == {}, 15, "the parties to end by themselves")


def test_an_interrupt_from_the_terminal_ends_parties_that_do_not_hear_it(tmp_path: Path) -> None:
    """It reaches the nursery as well."""
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
