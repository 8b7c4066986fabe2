"""A blocking client of a NATS broker, of the few words that a party needs: subscribe, publish, ping.

TLS comes first: a stranger learns nothing, and the client reads nothing of a broker that its root did not certify.
Whatever else the broker says is untrusted. Lines and payloads are bounded before memory is set aside for them, a
subject for replies is ignored, and every other word ends the connection. ``INFO`` is not read.

    to the broker      CONNECT {...}, SUB <subject> 1, PUB <subject> <bytes>, PING, PONG
    from the broker    INFO {...}, MSG <subject> 1 [<reply>] <bytes>, PING, PONG, +OK, -ERR '...'

Source: https://docs.nats.io/reference/reference-protocols/nats-protocol
"""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veilgraph.core.errors import ConfigError, DataError, LinkError, VeilgraphError
from veilgraph.core.text import printable
from veilgraph.core.types import PartyId

MAX_PAYLOAD_BYTES: Final = (1 << 20) + (64 << 10)
"""Of one message: the broker's configuration says the same (``deploy.broker``)."""
IN_FLIGHT_BYTES: Final = 128 << 20
"""Most that all peers of a party may have on their way to it, unacknowledged: the broker can hold as much for it."""
SILENCE_S: Final = 15.0
"""Longest wait for a word of the broker, and for it to take what is sent."""

_MAX_LINE_BYTES: Final = 8 << 10
_MAX_PROXY_ANSWER_BYTES: Final = 8 << 10
_CHUNK_BYTES: Final = 256 << 10
_RETRY_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 2.0
_PINGS: Final = 3  # sent while the broker is silent, one each ``SILENCE_S / _PINGS``
_CONNECT: Final = (
    b'CONNECT {"verbose":false,"pedantic":false,"tls_required":true,"echo":false,"headers":false,"no_responders":false,'
    b'"protocol":0,"name":"","lang":"veilgraph","version":"1"}\r\n'
)
_MESSAGE: Final = re.compile(rb"MSG ([!-~]{1,1024}) 1 (?:[!-~]{1,1024} )?([0-9]{1,8})")
_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})")
_NAME: Final = re.compile(r"[A-Za-z0-9._%+@-]{1,253}")


@dataclass(frozen=True)
class BrokerAddress:
    """Where a broker, or an HTTP proxy, listens."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> BrokerAddress:
        """Reads ``host:port`` or ``[IPv6 address]:port``; raises ``ConfigError`` where it is neither."""
        found = _ADDRESS.fullmatch(text)
        if found is None or not 1 <= int(found[3]) <= 65535:
            raise ConfigError(f"address {text!r}: write host:port, or [IPv6 address]:port", key="address", value=text)
        return cls(found[1] or found[2], int(found[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def token(name: PartyId) -> str:
    """The name as one token of a subject. With its dots it would be several: ``A`` could publish as ``A.B``.

    Raises ``ConfigError``: no participant can have this name.
    """
    if not _NAME.fullmatch(name):
        words = f"name {name!r}: a participant's has letters, digits and . _ % + @ - alone; rename it"
        raise ConfigError(words, key="name", value=name)
    return name.replace(".", "~")


def client_tls(root: Path, certificate: Path, key: Path, passphrase: bytes | None = None) -> ssl.SSLContext:
    """TLS of a client that accepts brokers of one root alone, and shows its own certificate.

    Raises ``ConfigError``: a file cannot be read; ``DataError``: it holds something else, or the two are no pair.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(root)
        # An empty passphrase for a sealed key fails; None would ask at the terminal.
        context.load_cert_chain(certificate, key, passphrase or b"")
    except ssl.SSLError as error:
        words = f"{certificate}, {key} and {root} cannot be used for TLS ({error}); ask for a new start-up kit"
        raise DataError(words, code="tls") from error
    except OSError as error:
        words = f"{certificate}, {key} or {root} cannot be read ({error}); ask for a new start-up kit"
        raise ConfigError(words, key="certificate", value=str(certificate)) from error
    return context


@dataclass(frozen=True)
class Brokers:
    """The brokers of a project, tried in this order, perhaps by an HTTP ``proxy`` (``CONNECT``); each knows all."""

    addresses: Sequence[BrokerAddress]
    tls: ssl.SSLContext
    proxy: BrokerAddress | None = None

    def connect(self, subject: str, stopped: threading.Event) -> Connection:
        """Connects with the first broker that can be reached, and subscribes: to a subject of exact tokens, or ``*``.

        Raises ``LinkError``: none can be reached before it is ``stopped``; says why of each.
        """
        refusals = []
        for address in self.addresses:
            if stopped.is_set():
                break
            try:
                return Connection(address, self.tls, subject, self.proxy)
            except (OSError, LinkError) as error:
                refusals.append(f"{address}: {error}")
        raise LinkError(f"no broker can be reached ({'; '.join(refusals)})", code="no-broker")


class Connection:
    """One connection. Any number of threads may publish, one iterates over ``messages``.

    Raises ``OSError``: the broker cannot be reached, or TLS refuses it; ``LinkError``: it refuses this party, or is
    none.
    """

    def __init__(
        self, address: BrokerAddress, tls: ssl.SSLContext, subject: str, proxy: BrokerAddress | None = None
    ) -> None:
        first = proxy or address
        self._socket = socket.create_connection((first.host, first.port), SILENCE_S)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy is not None:
                _tunnel(self._socket, address)
            self._tls = _Tls(self._socket, tls, address.host)
            self._buffer = bytearray(_CHUNK_BYTES)
            self._start = self._end = 0
            if not self._line().startswith(b"INFO {"):
                raise LinkError("what answers is no NATS broker", code="no-broker")
            self._tls.write(b"".join((_CONNECT, b"SUB ", subject.encode("ascii"), b" 1\r\nPING\r\n")))
            while (line := self._line()) != b"PONG":
                self._take_word(line)
        except BaseException:
            self.drop()
            raise

    def publish(self, subject: str, head: bytes, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message of two parts; ``OSError``: the connection is lost, and perhaps the broker has the message."""
        line = f"PUB {subject} {len(head) + len(body)}\r\n".encode("ascii") + head
        if len(body) < _CHUNK_BYTES:
            self._tls.write(b"".join((line, body, b"\r\n")))
        else:
            self._tls.write(line, body, b"\r\n")

    def messages(self) -> Iterator[tuple[str, memoryview]]:
        """Subject and payload of each message that comes, until the connection is lost.

        Raises ``OSError``: it is lost, or the broker silent; ``LinkError``: the broker closed it, or said what it must
        not.
        """
        while True:
            line = self._line()
            found = _MESSAGE.fullmatch(line)
            if found is None:
                self._take_word(line)
                continue
            size = int(found[2])
            if size > MAX_PAYLOAD_BYTES:
                raise LinkError(f"the broker announced a message of {size} bytes", code="too-large", value=size)
            payload = bytearray(size + 2)
            self._fill(memoryview(payload))
            if payload[size:] != b"\r\n":
                raise LinkError("the broker sent a message without an end", code="broker")
            yield found[1].decode("ascii"), memoryview(payload)[:size]

    def drop(self) -> None:
        """Ends the connection and wakes the threads that use it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _take_word(self, line: bytes) -> None:
        """Answer a ping and ignore words of no interest; ``LinkError``: the broker refuses, or says another."""
        if line == b"PING":
            self._tls.write(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise LinkError(f"the broker refuses: {_quoted(line)}", code="broker-refuses")
        elif line not in (b"PONG", b"+OK") and not line.startswith(b"INFO {"):
            raise LinkError(f"the broker said {_quoted(line)}", code="broker")

    def _line(self) -> bytes:
        """Read the next line, without its end; ``LinkError``: it is too long."""
        while True:
            at = self._buffer.find(b"\r\n", self._start, min(self._end, self._start + _MAX_LINE_BYTES))
            if at >= 0:
                line = bytes(self._buffer[self._start : at])
                self._start = at + 2
                return line
            if self._end - self._start >= _MAX_LINE_BYTES:
                raise LinkError("the broker sent a line without an end", code="broker")
            rest = self._buffer[self._start : self._end]
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)
            self._end += self._tls.read_into(memoryview(self._buffer)[self._end :])

    def _fill(self, view: memoryview) -> None:
        have = min(len(view), self._end - self._start)
        view[:have] = memoryview(self._buffer)[self._start : self._start + have]
        self._start += have
        while have < len(view):
            have += self._tls.read_into(view[have:])


class Subscription:
    """Messages of a subject, over a connection that is made again whenever it is lost. Any thread may publish.

    ``take`` is given subject and payload of each; ``changed`` why there is no connection, and nothing once there is.
    """

    def __init__(
        self,
        brokers: Brokers,
        subject: str,
        take: Callable[[str, memoryview], None],
        changed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._brokers, self._subject, self._take, self._changed = brokers, subject, take, changed
        self.closed = threading.Event()
        self._connection: Connection | None = None

    def run(self) -> None:
        """Takes messages until ``close``, whatever becomes of the broker meanwhile."""
        pause_s = 0.0
        while not self.closed.wait(pause_s):
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2 or _RETRY_S)
            try:
                self._connection = connection = self._brokers.connect(self._subject, self.closed)
                if self.closed.is_set():
                    return
                pause_s = _RETRY_S
                self._changed("")
                for subject, payload in connection.messages():
                    self._take(subject, payload)
            except (OSError, VeilgraphError, ValueError) as error:
                if not self.closed.is_set():
                    self._changed(str(error))
            finally:
                self._drop()

    def publish(self, subject: str, head: bytes, body: bytes | bytearray | memoryview = b"") -> None:
        """Sends a message of two parts, which is lost where there is no connection."""
        connection = self._connection
        if connection is not None:
            try:
                connection.publish(subject, head, body)
            except (OSError, ValueError):  # ValueError: of a socket that another thread has closed
                connection.drop()

    def close(self) -> None:
        """Close the connection, and have ``run`` end within seconds."""
        self.closed.set()
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()


class _Tls:
    """TLS over memory: one thread reads while others write, which OpenSSL's own sockets do not allow."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = connected
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self._state, self._order = threading.Lock(), threading.Lock()
        deadline = time.monotonic() + SILENCE_S
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._socket.sendall(self._out.read())
                if time.monotonic() > deadline:
                    raise LinkError("the broker is slow to agree on keys", code="no-broker") from None
                self._feed(self._socket.recv(_CHUNK_BYTES))
            else:
                self._socket.sendall(self._out.read())
                return

    def write(self, *parts: bytes | bytearray | memoryview) -> None:
        with self._order:
            for part in parts:
                view = memoryview(part)
                for start in range(0, len(view), _CHUNK_BYTES):
                    with self._state:
                        self._tls.write(view[start : start + _CHUNK_BYTES])
                        sealed = self._out.read()
                    self._socket.sendall(sealed)

    def read_into(self, view: memoryview) -> int:
        """Read at least one byte into the view, and return how many; ``LinkError``: closed or silent."""
        while True:
            got = 0
            with self._state, suppress(ssl.SSLWantReadError):
                while got < len(view):
                    # With a buffer it returns a number; the stubs know bytes alone.
                    count: int = self._tls.read(len(view) - got, view[got:])  # type: ignore[assignment]
                    if not count:
                        raise LinkError("the broker closed the connection", code="closed")
                    got += count
            if got:
                return got
            self._feed(self._receive())

    def _receive(self) -> bytes:
        """Return the next bytes of the socket; a silent broker is pinged, and then ``LinkError``."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        for _ in range(_PINGS):
            if poll.poll(1000 * SILENCE_S / _PINGS):
                return self._socket.recv(_CHUNK_BYTES)
            self.write(b"PING\r\n")
        raise LinkError(f"the broker said nothing for {SILENCE_S:g} s", code="broker-silent")

    def _feed(self, sealed: bytes) -> None:
        if not sealed:
            raise LinkError("the broker closed the connection", code="closed")
        with self._state:
            self._in.write(sealed)


def _tunnel(connected: socket.socket, to: BrokerAddress) -> None:
    """Ask an HTTP proxy for a connection with a broker (RFC 9110, 9.3.6); ``LinkError``: it gives none in time."""
    connected.sendall(f"CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n".encode("ascii"))
    answer, deadline = b"", time.monotonic() + SILENCE_S  # a proxy that sends byte after byte would hold a party
    while not answer.endswith(b"\r\n\r\n"):
        byte = connected.recv(1)  # not one more: what follows is the broker's
        if not byte or len(answer) >= _MAX_PROXY_ANSWER_BYTES or time.monotonic() > deadline:
            raise LinkError("the proxy gave no complete answer", code="proxy")
        answer += byte
    if not re.match(rb"HTTP/1\.[01] 2[0-9][0-9] ", answer):
        raise LinkError(f"the proxy answered {_quoted(answer.split(bytes((13,)), 1)[0])}", code="proxy")


def _quoted(line: bytes) -> str:
    return printable(line[:200].decode("ascii", "replace"))
