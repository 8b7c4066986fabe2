"""How a party's machines find each other: the leader opens a door at its address, the others come to it.

Every connection is TLS 1.3, at both ends with a certificate that names the machine and that only who has the party's
secret can make; nothing is said over it before. Once all are there nobody listens any more.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Final

from veilgraph.core.errors import ConfigError, LinkError, LinkTimeout
from veilgraph_machines.channel import Task, Turns, greet, receive_note, run, send_note
from veilgraph_machines.group import LEADER, MachineGroup
from veilgraph_machines.listener import GREETING_S, Door, Greeting, Note, tls_socket
from veilgraph_machines.secret import tls_context

_POLL_S: Final = 0.05
_RETRY_S: Final = 0.5


def open_door(host: str, port: int, secret: bytes) -> Door:
    """The leader's, on the interface of ``host`` alone.

    Args:
        host: name or IPv4 address of this machine, where the others reach it.
        port: 0 for a free one.
        secret: of the party.

    Raises:
        ConfigError: the address is not this machine's, or is taken.
    """
    return Door(host, port, secret, LEADER)


def lead(
    door: Door,
    count: int,
    *,
    timeout_s: float,
    idle_s: float,
    check: Callable[[], None] = lambda: None,
) -> MachineGroup:
    """Waits for the others, closes the door and forms the group.

    Args:
        door: as ``open_door`` gives it.
        count: M, with the leader.
        timeout_s: longest wait for them to come, and for one another at work.
        idle_s: longest wait of the others for work.
        check: called now and then while they come; raises where they will not.

    Raises:
        LinkTimeout: one did not come in time.
        LinkError: one is gone again.
    """
    facts = {"release": release_here(), "count": count, "timeout_s": timeout_s, "idle_s": idle_s}
    there: dict[int, tuple[ssl.SSLSocket, int]] = {}

    def greeting(connection: ssl.SSLSocket) -> Turns[tuple[int, Note]]:
        rank = yield from greet(connection)
        yield from send_note(connection, {**facts, "taken": rank in there})
        return rank, (yield from receive_note(connection))

    try:
        with closing(door):
            _await(door, greeting, there, count, timeout_s, check)
        addresses = {rank: (connection.getpeername()[0], port) for rank, (connection, port) in there.items()}
        roster = {"session": secrets.token_hex(), "addresses": addresses}
        run([Task(connection, send_note(connection, roster)) for connection, _ in there.values()], timeout_s)
    except BaseException as error:
        for connection, _ in there.values():
            connection.close()
        if isinstance(error, OSError):
            raise LinkError(f"a machine of this party is gone again ({error})") from error
        raise
    return MachineGroup({rank: connection for rank, (connection, _) in there.items()}, LEADER, timeout_s, idle_s)


def _await(
    door: Door,
    greeting: Greeting,
    there: dict[int, tuple[ssl.SSLSocket, int]],
    count: int,
    timeout_s: float,
    check: Callable[[], None],
) -> None:
    """Fills in who is there, connection and port, until that is everybody."""
    deadline = time.monotonic() + timeout_s
    while missing := [rank for rank in range(1, count) if rank not in there]:
        check()
        if time.monotonic() > deadline:
            raise LinkTimeout(
                f"machine {', '.join(map(str, missing))} of this party did not come in {timeout_s:g} s; start there: "
                f"veilgraph net machine --party PARTY.yaml --rank {missing[0]}",
                code="machine-missing",
                value=missing,
            )
        for connection, rank, note in door.admit(greeting, _POLL_S):
            if rank in there or not 0 < rank < count or not isinstance(note.get("port"), int):
                connection.close()
            else:
                there[rank] = connection, note["port"]
        for rank in [rank for rank, (connection, _) in there.items() if _is_gone(connection)]:
            there.pop(rank)[0].close()


def follow(host: str, port: int, rank: int, secret: bytes) -> MachineGroup:
    """Joins the group of a leader as machine ``rank``; waits without end until somebody listens at the address.

    Raises:
        LinkError: who answers does not have the secret, or is gone again; or the rank is taken.
        ConfigError: the leader has another release of veilgraph, or no place for this rank.
    """
    context = tls_context(secret, rank, ssl.PROTOCOL_TLS_CLIENT)
    connections: dict[int, ssl.SSLSocket] = {}
    try:
        connections[LEADER] = _connect(context, _reach(host, port), LEADER)
        facts = _received(connections[LEADER], GREETING_S)
        count, timeout_s = _check_admission(facts, rank), float(facts["timeout_s"])
        with ExitStack() as stack:
            door = None
            if rank < count - 1:
                door = stack.enter_context(closing(Door(connections[LEADER].getsockname()[0], 0, secret, rank)))
            _sent(connections[LEADER], {"port": 0 if door is None else door.port})
            roster = _received(connections[LEADER], timeout_s)
            for lower in range(1, rank):
                reached = socket.create_connection(roster["addresses"][str(lower)], timeout=GREETING_S)
                connections[lower] = _connect(context, reached, lower)
                _sent(connections[lower], {"session": roster["session"]})
            if door is not None:
                _receive_higher(door, rank, count, roster["session"], connections, timeout_s)
        return MachineGroup(connections, rank, timeout_s, float(facts["idle_s"]))
    except BaseException as error:
        for connection in connections.values():
            connection.close()
        if isinstance(error, OSError):
            raise LinkError(f"{host}:{port}: no group with the party's own process there ({_reason(error)})") from error
        raise


def _reach(host: str, port: int) -> socket.socket:
    while True:
        try:
            return socket.create_connection((host, port), timeout=GREETING_S)
        except OSError:
            time.sleep(_RETRY_S)


def _connect(context: ssl.SSLContext, reached: socket.socket, expected: int) -> ssl.SSLSocket:
    """Does the handshake over a connection, with machine ``expected`` and no other."""
    try:
        connection = tls_socket(context, reached, server_side=False)
    except OSError:
        reached.close()
        raise
    try:
        task = Task(connection, greet(connection))
        run([task], GREETING_S)
        if task.results[0] != expected:
            raise ssl.SSLError(f"machine {task.results[0]} answers in the place of machine {expected}")
    except OSError:
        connection.close()
        raise
    return connection


def _check_admission(facts: Note, rank: int) -> int:
    """Return M, the party's machines; raise if the leader has another release, or no place for ``rank``."""
    release = str(facts.get("release"))
    if release != release_here():
        raise ConfigError(
            f"{release_here()} here, and {release} where the party joins; install the same on all its machines"
        )
    count = int(facts["count"])
    if not 0 < rank < count:
        raise ConfigError(f"rank={rank}: the party has {count} machines, so it is from 1 to {count - 1}")
    if facts["taken"]:
        raise LinkError(f"rank={rank}: another machine has taken it; give every machine of the party a rank of its own")
    return count


def _receive_higher(
    door: Door, rank: int, count: int, session: str, connections: dict[int, ssl.SSLSocket], timeout_s: float
) -> None:
    """Lets those of higher rank in, each once, that are of this session."""

    def greeting(connection: ssl.SSLSocket) -> Turns[tuple[int, Note]]:
        return (yield from greet(connection)), (yield from receive_note(connection))

    deadline = time.monotonic() + timeout_s
    while len(connections) < count - 1:
        if time.monotonic() > deadline:
            raise TimeoutError(f"a machine of higher rank did not come in {timeout_s:g} s")
        for connection, other, note in door.admit(greeting, _POLL_S):
            if note.get("session") != session or not rank < other < count or other in connections:
                connection.close()
            else:
                connections[other] = connection


def _received(connection: ssl.SSLSocket, timeout_s: float) -> Note:
    task = Task(connection, receive_note(connection))
    run([task], timeout_s)
    return task.results[0]


def _sent(connection: ssl.SSLSocket, note: Note) -> None:
    run([Task(connection, send_note(connection, note))], GREETING_S)


def _is_gone(connection: ssl.SSLSocket) -> bool:
    """Whether a machine that waits for the others has closed its end; there is nothing that it could say."""
    try:
        connection.recv(1)
    except ssl.SSLWantReadError:
        return False
    except OSError:
        return True
    return True


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "who answers there does not have this party's secret"
    return f"{error}; do both have the same secret?" if isinstance(error, ssl.SSLError) else str(error)


def release_here() -> str:
    """What must be the same on all machines of a party."""
    return f"veilgraph {version('veilgraph')} with torch {version('torch')}"
