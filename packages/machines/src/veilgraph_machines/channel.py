"""Bytes over authenticated connections between a party's machines, over several of them at the same time.

What is done over a connection is written as a generator that yields what it waits for, so that one thread does it all:
nobody who is slow, or falls silent, holds up what others do.
"""

from __future__ import annotations

import json
import select
import ssl
from collections.abc import Generator, Sequence
from typing import Any, Final, Generic, TypeVar

from veilgraph_machines.secret import rank_of

Result = TypeVar("Result")
Turns = Generator[int, None, Result]
"""Yields the ``select.poll`` events that it waits for, or 0 to let others have their turn."""

_RECORDS_A_TURN: Final = 64
_LENGTH_BYTES: Final = 4
_MAX_NOTE_BYTES: Final = 1 << 16
_LONGEST_POLL_S: Final = 1e6


class Closed(OSError):
    """The other end closed the connection."""


class Task(Generic[Result]):
    """Something that is done over one connection, by turns."""

    def __init__(self, connection: ssl.SSLSocket, turns: Turns[Result]) -> None:
        self.connection, self._turns = connection, turns
        self.event = 0
        self.results: list[Result] = []

    @property
    def done(self) -> bool:
        """Whether it has its result."""
        return bool(self.results)

    def advance(self) -> bool:
        """Goes on as far as it can; whether it may go on at once.

        Raises:
            OSError: the connection broke, or the other end is not a machine of this party.
        """
        try:
            self.event = next(self._turns)
        except StopIteration as end:
            self.results.append(end.value)
        return self.done or not self.event


def run(tasks: Sequence[Task[Any]], timeout_s: float) -> None:
    """Does all of them.

    Raises:
        TimeoutError: nothing came or went for so long.
        OSError: a connection broke.
    """
    left = list(tasks)
    while left:
        goes_on = [task.advance() for task in left]
        left = [task for task in left if not task.done]
        if left and not any(goes_on) and not ready(left, timeout_s):
            raise TimeoutError(f"nothing came or went in {timeout_s:g} s")


def move(
    outgoing: Sequence[tuple[ssl.SSLSocket, memoryview]],
    incoming: Sequence[tuple[ssl.SSLSocket, memoryview]],
    timeout_s: float,
) -> None:
    """Sends and receives all of it at the same time: machines that give each other much never block each other.

    Args:
        outgoing: what goes out over which connection, each once.
        incoming: what is filled from which connection, each once.
        timeout_s: longest time in which nothing comes or goes.

    Raises:
        OSError: as ``run``.
    """
    sending = [Task(connection, send(connection, view)) for connection, view in outgoing]
    run([*sending, *(Task(connection, fill(connection, view)) for connection, view in incoming)], timeout_s)


def ready(tasks: Sequence[Task[Any]], timeout_s: float, besides: int | None = None) -> bool:
    """Waits until one of them can go on, or something is to be read from the descriptor ``besides``."""
    events = {} if besides is None else {besides: select.POLLIN}
    for task in tasks:
        descriptor = task.connection.fileno()
        events[descriptor] = events.get(descriptor, 0) | task.event
    poll = select.poll()
    for descriptor, mask in events.items():
        poll.register(descriptor, mask)
    return bool(poll.poll(1000 * min(timeout_s, _LONGEST_POLL_S)))


def greet(connection: ssl.SSLSocket) -> Turns[int]:
    """Does the handshake and returns the rank that the other end's certificate names."""
    while True:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            yield select.POLLIN
        except ssl.SSLWantWriteError:
            yield select.POLLOUT
        else:
            return rank_of(connection)


def send(connection: ssl.SSLSocket, view: memoryview) -> Turns[None]:
    """Sends the whole view."""
    done = records = 0
    while done < view.nbytes:
        try:
            done += connection.send(view[done:])
        except ssl.SSLWantReadError:
            yield select.POLLIN
        except ssl.SSLWantWriteError:
            yield select.POLLOUT
        else:
            records += 1
            if records % _RECORDS_A_TURN == 0:
                yield 0


def fill(connection: ssl.SSLSocket, view: memoryview) -> Turns[None]:
    """Receives exactly as much as the view holds."""
    done = records = 0
    while done < view.nbytes:
        try:
            count = connection.recv_into(view[done:])
        except ssl.SSLWantReadError:
            yield select.POLLIN
        except ssl.SSLWantWriteError:
            yield select.POLLOUT
        else:
            if not count:
                raise Closed("the other end closed the connection")
            done += count
            records += 1
            if records % _RECORDS_A_TURN == 0:
                yield 0


def send_note(connection: ssl.SSLSocket, note: dict[str, Any]) -> Turns[None]:
    """Sends some small facts."""
    content = json.dumps(note).encode()
    yield from send(connection, memoryview(len(content).to_bytes(_LENGTH_BYTES, "little") + content))


def receive_note(connection: ssl.SSLSocket) -> Turns[dict[str, Any]]:
    """Receives what ``send_note`` sent."""
    length = bytearray(_LENGTH_BYTES)
    yield from fill(connection, memoryview(length))
    size = int.from_bytes(length, "little")
    if size > _MAX_NOTE_BYTES:
        raise OSError(f"a note of {size} bytes came, at most {_MAX_NOTE_BYTES} are allowed")
    content = bytearray(size)
    yield from fill(connection, memoryview(content))
    try:
        note = json.loads(content)
    except ValueError as error:
        raise OSError(f"a note came that is no JSON ({error})") from error
    if not isinstance(note, dict):
        raise OSError(f"a note came that is a JSON {type(note).__name__}")
    return note
