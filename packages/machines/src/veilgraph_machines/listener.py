"""A listener through which only machines with the party's secret come in; whoever else connects hinders nobody."""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import os_errors_as
from veilgraph.link.refusals import RefusalLog
from veilgraph_machines.channel import Task, Turns, ready
from veilgraph_machines.secret import tls_context

log = logging.getLogger("veilgraph")

GREETING_S: Final = 10.0
"""Longest time that somebody who connects has to show that it is a machine of the party."""

_MOST_STRANGERS: Final = 64

Note = dict[str, Any]
Greeting = Callable[[ssl.SSLSocket], Turns[tuple[int, Note]]]
"""What is said over a new connection, from the handshake on; gives the machine's rank and what it said."""


class Door:
    """Listens on one address. Nothing is said over a connection before its other end has shown that it has the secret.

    Args:
        host: name or IPv4 address of this machine.
        port: 0 for a free one.
        secret: of the party.
        rank: of this machine.

    Raises:
        ConfigError: the address is not this machine's, or is taken.
    """

    def __init__(self, host: str, port: int, secret: bytes, rank: int) -> None:
        self._context = tls_context(secret, rank, ssl.PROTOCOL_TLS_SERVER)
        with os_errors_as(
            ConfigError,
            f"machines.address={host}:{port}: cannot listen there",
            "give an address of the machine that joins the job, and a free port",
        ):
            self._listener = socket.create_server((socket.gethostbyname(host), port))
        self._listener.setblocking(False)
        self._arriving: list[tuple[Task[tuple[int, Note]], float, str]] = []
        self._refusals = RefusalLog(lambda _, words: log.warning("refused %s", words))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def admit(self, greeting: Greeting, wait_s: float) -> list[tuple[ssl.SSLSocket, int, Note]]:
        """Who has come in, waiting at most ``wait_s`` for something to happen: connection, rank, what it said."""
        ready([task for task, _, _ in self._arriving], wait_s, self._listener.fileno())
        self._accept(greeting)
        come, staying = [], []
        for arrival in self._arriving:
            task, deadline, address = arrival
            try:
                while not task.done and task.advance():
                    pass
                if not task.done and time.monotonic() > deadline:
                    raise TimeoutError(f"it said nothing for {GREETING_S:g} s")
            except OSError as error:
                self._refuse(task.connection, address, error)
                continue
            if task.done:
                come.append((task.connection, *task.results[0]))
            else:
                staying.append(arrival)
        self._arriving = staying
        return come

    def close(self) -> None:
        """Stops listening and drops whoever has not come in."""
        self._listener.close()
        for task, _, _ in self._arriving:
            task.connection.close()
        self._arriving = []
        self._refusals.close()

    def _accept(self, greeting: Greeting) -> None:
        while True:
            try:
                accepted, address = self._listener.accept()
            except OSError:  # nobody is there any more
                return
            try:
                connection = tls_socket(self._context, accepted, server_side=True)
            except OSError as error:
                self._refuse(accepted, address[0], error)
                continue
            if len(self._arriving) == _MOST_STRANGERS:
                task, _, oldest = self._arriving.pop(0)
                self._refuse(task.connection, oldest, OSError("too many connect at once"))
            task = Task(connection, greeting(connection))
            self._arriving.append((task, time.monotonic() + GREETING_S, address[0]))

    def _refuse(self, connection: socket.socket, address: str, error: OSError) -> None:
        connection.close()
        self._refusals.add((address,), str(error), f"a connection from {address} to this party's machines: {error}")


def tls_socket(context: ssl.SSLContext, connection: socket.socket, *, server_side: bool) -> ssl.SSLSocket:
    """Wraps a connection, without a word over it yet; it does not block.

    Raises:
        OSError: it broke.
    """
    connection.setblocking(False)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return context.wrap_socket(connection, server_side=server_side, do_handshake_on_connect=False)
