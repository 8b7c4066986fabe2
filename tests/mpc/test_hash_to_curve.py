"""Names hashed in processes beside this one: as here, and none stays or answers by halves."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.mpc.hash_to_curve import POINT_BYTES, hash_all, hash_processes, serve

NAMES = [b"", b"a", b"a\0", "北京".encode(), bytes(range(256)), b"x" * 100_000, *(b"%d" % row for row in range(500))]
P = 2**255 - 19


def hashed(name: bytes) -> bytes:
    """H by its definition."""
    for count in range(256):
        digest = hashlib.sha256(b"veilgraph alignment/" + bytes([count]) + name).digest()
        u = int.from_bytes(digest, "little") % 2**255
        if u < P and pow(u**3 + 486662 * u**2 + u, (P - 1) // 2, P) == 1:
            return u.to_bytes(POINT_BYTES, "little")
    raise AssertionError(name)


def test_processes_hash_as_the_definition_says_for_any_number_of_threads() -> None:
    twin = b"".join(map(hashed, NAMES))
    assert hash_all(NAMES) == twin
    with hash_processes(2) as hashing, ThreadPoolExecutor(5) as pool:
        parts = list(pool.map(hashing, [NAMES[start::7] for start in range(7)]))
        assert parts == [b"".join(map(hashed, NAMES[start::7])) for start in range(7)]
        assert hashing([]) == b""
        assert hashing(NAMES) == twin


def test_a_list_is_its_number_lengths_and_bytes() -> None:
    sink = io.BytesIO()
    serve(io.BytesIO(struct.pack("<3I", 2, 1, 2) + b"abc" + struct.pack("<2I", 1, 0)), sink)
    assert sink.getvalue() == hash_all([b"a", b"bc", b""])


def children() -> set[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, check=False).stdout
    return {int(each) for each in found.split()}


@pytest.mark.skipif(not shutil.which("ps"), reason="needs ps")
def test_no_process_stays_whatever_ends_the_block() -> None:
    before = children()

    def fail() -> None:
        with hash_processes(2):
            assert len(children() - before) >= 2
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not [pid for pid in children() - before if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("answer", ["", "a part of it"])
def test_a_process_that_has_ended_is_one_error(answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "ends"
    program.write_text(f"#!/bin/sh\nhead -c 1 > /dev/null; printf '{answer}'\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with hash_processes(1) as hashing:
        for names in ([b"a"], NAMES):
            with refused(RunError, code="hash-process"):
                hashing(names)


def test_the_end_of_the_block_is_an_error_to_threads_that_go_on() -> None:
    with hash_processes(1) as hashing:
        assert hashing([b"a"]) == hash_all([b"a"])
    with refused(RunError, code="hash-process"):
        hashing([b"a"])


def test_processes_end_with_a_party_that_is_killed() -> None:
    """They hold its standard error open till then, and nothing of theirs is written to it."""
    program = (
        "from veilgraph.mpc.hash_to_curve import hash_processes\n"
        "import time\n"
        "with hash_processes(2) as hashing:\n"
        "    print(len(hashing([b'a'] * 1000)), flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as party:
        assert party.stdout is not None
        assert party.stderr is not None
        assert party.stdout.readline() == b"32000\n"
        party.send_signal(signal.SIGKILL)
        assert party.stderr.read() == b""


@pytest.mark.parametrize("octets", [2, 4, 6, 12, 14])
def test_a_list_that_breaks_off_ends_a_process_quietly(octets: int) -> None:
    """A party is killed in the midst of writing one."""
    command = [sys.executable, "-m", "veilgraph.mpc.hash_to_curve"]
    broken = (struct.pack("<3I", 2, 3, 2) + b"abcde")[:octets]
    ended = subprocess.run(command, input=broken, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_what_interrupts_a_party_from_a_terminal_leaves_its_processes_to_the_party() -> None:
    command, ask = [sys.executable, "-m", "veilgraph.mpc.hash_to_curve"], struct.pack("<2I", 1, 1) + b"a"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            process.stdin.write(ask)
            process.stdin.flush()
            assert process.stdout.read(POINT_BYTES) == hash_all([b"a"])
            process.send_signal(signal.SIGINT)
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_process_that_cannot_be_started_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with refused(RunError, code="hash-process"), hash_processes(1):
        raise AssertionError
