"""Hash text to Curve25519, in this process or, of many names, in others beside it: hashing holds Python's lock.

A process is started as ``python -m veilgraph.mpc.hash_to_curve``. It gets names and no secret, and ends with its input.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from queue import SimpleQueue
from typing import IO, Final, TypeAlias

import gmpy2

from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as
from veilgraph.core.threads import run_and_leave

POINT_BYTES: Final = 32

HashAll: TypeAlias = Callable[[Sequence[bytes]], bytes]
"""Names → H of each, one after the other."""

_PRIME: Final = gmpy2.mpz(2**255 - 19)
_A: Final = 486662
_HASHED: Final = gmpy2.mpz(2**255 - 1)
_DOMAINS: Final = [b"veilgraph alignment/" + bytes([count]) for count in range(256)]
_COUNT: Final = struct.Struct("<I")


def hash_all(names: Sequence[bytes]) -> bytes:
    """Return H(name) of each: a ``HashAll``.

    H(name) is the first of SHA-256(domain, 0, name), (domain, 1, name), … that is a u of the curve by its first 255
    bits. It is of small order, which is refused, with probability 2^-252. The time depends on the name.
    """
    return b"".join(map(_hash, names))


def _hash(name: bytes) -> bytes:
    for domain in _DOMAINS:  # half of all numbers are a u of the curve
        u = gmpy2.mpz.from_bytes(sha256(domain + name).digest(), "little") & _HASHED
        if u < _PRIME and gmpy2.jacobi(((u + _A) * u + 1) * u, _PRIME) == 1:
            return bytes(u.to_bytes(POINT_BYTES, "little"))
    raise AssertionError


@contextmanager
def hash_processes(count: int) -> Iterator[HashAll]:
    """Start processes, and give what has one of them hash, for that many threads at a time.

    Raises ``RunError``: none can be started; there: the process has ended.
    """
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def hash_elsewhere(names: Sequence[bytes]) -> bytes:
        process = idle.get()
        try:
            return _ask(process, names)
        finally:
            idle.put(process)

    with ExitStack() as stack:
        for _ in range(count):
            command = [sys.executable, "-m", "veilgraph.mpc.hash_to_curve"]
            with os_errors_as(RunError, "no process can start to hash ids", "free some memory", code="hash-process"):
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            stack.callback(_end, process)
            idle.put(process)
        yield hash_elsewhere


def _ask(process: subprocess.Popen[bytes], names: Sequence[bytes]) -> bytes:
    source, sink = process.stdout, process.stdin
    if source is None or sink is None:
        raise AssertionError
    hashed = b""
    try:
        sink.write(struct.pack(f"<{1 + len(names)}I", len(names), *map(len, names)) + b"".join(names))
        sink.flush()
        hashed = source.read(POINT_BYTES * len(names))
    except (OSError, ValueError):  # it is gone, or the pipes are closed
        pass
    if len(hashed) != POINT_BYTES * len(names):
        raise RunError(
            "a process that hashed ids of an alignment ended; see whether memory ran out, and begin again",
            code="hash-process",
            value=process.poll(),
        )
    return hashed


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def serve(source: IO[bytes], sink: IO[bytes]) -> None:
    """Answer each list of names in ``source`` until it ends: their number, lengths (uint32) and bytes."""
    while count := source.read(_COUNT.size):
        lengths = struct.unpack(f"<{_COUNT.unpack(count)[0]}I", source.read(_COUNT.size * _COUNT.unpack(count)[0]))
        sink.write(hash_all([source.read(length) for length in lengths]))
        sink.flush()


def main() -> None:
    """Serve standard input until it ends, in the midst of a list too, or nobody reads the answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what interrupts a party ends this by its input
    with suppress(BrokenPipeError, struct.error):
        serve(sys.stdin.buffer, sys.stdout.buffer)


if __name__ == "__main__":
    run_and_leave(main)
