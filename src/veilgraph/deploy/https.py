"""The door at which this machine answers HTTP, and what a service needs besides: a token that callers show, and TLS.

Connections are bounded in number, by address and in time: silent ones never keep a request out. Whoever has asked is
answered. h11 reads what they send and writes what they get; no library opens or reads a socket.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final

import h11

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import new_file, os_errors_as
from veilgraph.core.threads import stopped_by_signals

log = logging.getLogger("veilgraph")

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{32,512}=*")  # RFC 6750's b64token
_HOW_TO_MAKE: Final = "make one: umask 077; openssl rand -hex 32 > FILE"
_GROUP_AND_OTHERS: Final = 0o077
_OTHERS: Final = 0o007


def check_token(token: str) -> None:
    """Refuses a token that is too short, or cannot travel in a header; the ``ConfigError`` never says it."""
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(
            f"the token ({len(token)} characters) must be 32 to 512 letters, digits or . _ ~ + / - (= at the end); "
            f"{_HOW_TO_MAKE}",
            key="token",
            value=len(token),
        )


def read_token(path: Path) -> str:
    """The token in a file, stripped; ``ConfigError`` where it cannot be read, or by others too, or is none."""
    with os_errors_as(ConfigError, f"--token-file {path}: cannot be read", _HOW_TO_MAKE), path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode  # of the very file that is read
        content = file.read(4096)
    if mode & _GROUP_AND_OTHERS:
        raise ConfigError(
            f"--token-file {path}: others than its owner may use it (mode {mode & 0o777:03o}); chmod 600 it"
        )
    token = content.decode("latin-1").strip()
    try:
        check_token(token)
    except ConfigError as error:
        raise ConfigError(f"--token-file {path}: {error}") from error
    return token


def make_token_file(path: Path) -> None:
    """Write a random token of 256 bits to a new file for its owner alone; ``RunError``: it exists, or is unwritable."""
    way_out = "choose another path, or remove what is there"
    with os_errors_as(RunError, f"{path}: cannot be written", way_out), new_file(path) as file:
        file.write(secrets.token_urlsafe(32).encode() + b"\n")


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """A server's context of TLS 1.2 or newer, of PEM files: its certificate, then its issuers', and its key.

    Raises ``ConfigError``: a file cannot be read, or everyone may read the key; ``DataError``: they hold no such pair.
    """
    for path, what in ((certificate, "certificate"), (key, "key")):
        with os_errors_as(ConfigError, f"--{what} {path}: cannot be read", "give a PEM file"), path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
        if what == "key" and mode & _OTHERS:
            raise ConfigError(f"--key {path}: everyone may use it (mode {mode & 0o777:03o}); chmod 600 it")

    def no_passphrase() -> str:
        raise DataError(f"--key {key}: the private key has a passphrase; write it without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise DataError(
                f"--key {key} is not the key of --certificate {certificate}; give both of one pair"
            ) from error
        raise DataError(
            f"--certificate {certificate} and --key {key} do not hold a certificate and its key as PEM "
            f"({error.reason or error}); give such files"
        ) from error
    return context


def listen(host: str, port: int) -> socket.socket:
    """Listens at an address; port 0: any that is free. Raises ``ConfigError``: it cannot be listened at."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: must be from 0 to 65535, 0 being any that is free; choose another")
    what = f"--host {host} --port {port}: cannot be listened at"
    with os_errors_as(ConfigError, what, "choose another", UnicodeError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((found[4][0], port), family=found[0])


WITHIN_S: Final = 10.0
"""Longest time of a handshake, until a whole request has come, and until its answer was taken."""
MAX_CONNECTIONS: Final = 256
"""At once, each before and after its handshake. For one more the oldest that waits for its caller is closed."""
MAX_BY_ADDRESS: Final = 128
"""Of one address; beyond that its own oldest is closed."""
MAX_HEAD_BYTES: Final = 8192
"""Longest request without its body; more is not read."""
_PIECE_BYTES: Final = 64 << 10
_LINGER_S, _LINGER_BYTES = 2.0, 8 << 20
_PAUSE_S: Final = 0.1  # where no connection can be taken, as with too many open files
_HEADERS: Final = (
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
)

Exchanged = Callable[[str, str, str, int, float], None]
"""Told of an exchange: address, method, path, status, seconds. A path that is not offered is ``(other)``."""


@dataclass(frozen=True)
class Page:
    """An HTTP answer: body, status, content type and further headers."""

    content: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def json_page(content: object, status: int = 200, **headers: str) -> Page:
    """An HTTP answer with ``content`` as JSON."""
    return Page(json.dumps(content).encode(), status, headers=headers)


def problem(status: int, detail: str = "") -> Page:
    """An HTTP answer that refuses a request: ``detail`` as JSON, by default the status's own phrase."""
    return json_page({"detail": detail or HTTPStatus(status).phrase}, status)


@dataclass(frozen=True)
class Route:
    """What is offered at a path.

    Attributes:
        make: a request's body → the answer, or what it is awaited from; called in the door's own thread, one at a time.
        method: the only one.
        refuses: the request's ``Authorization`` → the answer instead, before its body is read; None: go on.
        max_body_bytes: of a body; a longer one is refused.
    """

    make: Callable[[bytes], Page | Awaitable[Page]]
    method: str = "GET"
    refuses: Callable[[str], Page | None] = lambda _: None
    max_body_bytes: int = 0


class HttpServer:
    """An HTTP server of ``routes``, over TLS if given, in the thread of ``run``; it calls ``exchanged`` for each."""

    def __init__(
        self, routes: Mapping[str, Route], tls: ssl.SSLContext | None = None, exchanged: Exchanged = lambda *_: None
    ) -> None:
        self.routes, self.tls, self.exchanged = routes, tls, exchanged
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends, self._closed = False, asyncio.Event()
        self._open: dict[_Caller, asyncio.Task[None]] = {}

    def run(self, listener: socket.socket) -> None:
        """Answers until ``close``; requests under way are then answered, and all others cut off."""
        listener.setblocking(False)
        with closing(asyncio.new_event_loop()) as self._loop:
            if not self._ends:
                self._loop.run_until_complete(self._serve_until_closed(self._loop, listener))

    def close(self) -> None:
        """Ends ``run``; for any thread, and for a signal's handler."""
        self._ends = True
        with suppress(RuntimeError):  # it has ended already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._closed.set)

    async def _serve_until_closed(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        """Accept connections until ``close``; then give open requests ``WITHIN_S``, and cancel what is left."""
        self._accept_connection(loop, listener)
        await self._closed.wait()
        loop.remove_reader(listener)
        await asyncio.sleep(0)  # who was just let in begins, and so closes what it has
        for caller, task in self._open.items():
            if caller.waits:
                task.cancel()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=WITHIN_S)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    def _accept_connection(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        """Accept a connection; beyond the limits close the oldest that waits for its caller."""
        if self._closed.is_set():
            return
        loop.add_reader(listener, self._accept_connection, loop, listener)
        try:
            accepted, address = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            loop.remove_reader(listener)
            loop.call_later(_PAUSE_S, self._accept_connection, loop, listener)
            return
        accepted.setblocking(False)
        caller = _Caller(self, str(address[0]))
        self._open[caller] = task = loop.create_task(caller.attend(accepted))
        task.add_done_callback(lambda _: self._open.pop(caller, None))
        waiting = sorted((each for each in self._open if each.waits), key=lambda each: each.since)
        mine = [each for each in waiting if each.address == caller.address]
        if sum(each.address == caller.address for each in self._open) > MAX_BY_ADDRESS and mine:
            self._open.pop(mine[0]).cancel()
        elif len(self._open) > MAX_CONNECTIONS and waiting:
            self._open.pop(waiting[0]).cancel()


class _Caller:
    """One connection.

    Attributes:
        waits: whether the next move is the caller's.
        since: since when, on the loop's clock.
    """

    def __init__(self, door: HttpServer, address: str) -> None:
        self.address, self.waits, self.since = address, False, 0.0
        self._door = door
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def attend(self, accepted: socket.socket) -> None:
        """Make the TLS handshake and answer one request after the other, until either side ends or time is out."""
        loop = asyncio.get_running_loop()
        self.waits, self.since = True, loop.time()
        self._reader = asyncio.StreamReader(limit=_PIECE_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        transport: asyncio.BaseTransport | None = None
        try:
            async with asyncio.timeout(WITHIN_S):
                transport, _ = await loop.connect_accepted_socket(lambda: protocol, accepted, ssl=self._door.tls)
            self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
            while await self._answer_request():
                self.waits, self.since = True, loop.time()
            async with asyncio.timeout(WITHIN_S):
                self._writer.close()
                await self._writer.wait_closed()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass
        finally:
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                accepted.close()

    async def _answer_request(self) -> bool:
        """Answer one request; return whether another may follow on the connection."""
        began, path, method, page = time.monotonic(), "(other)", "-", problem(400)
        try:
            async with asyncio.timeout(WITHIN_S):
                try:
                    request = await self._next_event()
                    if not isinstance(request, h11.Request):
                        return False
                    began, method = time.monotonic(), request.method.decode("ascii")
                    place = request.target.decode("ascii").partition("?")[0]
                    path = place if place in self._door.routes else "(other)"
                    page = await self._make_page(request, self._door.routes.get(place))
                except h11.RemoteProtocolError as error:
                    page = problem(error.error_status_hint)
                    if self._reader.at_eof():
                        return False
            self.waits = False
            async with asyncio.timeout(WITHIN_S):
                await self._send(page, bare=method == "HEAD")
        finally:
            if method != "-":
                self._door.exchanged(self.address, method, path, page.status, time.monotonic() - began)
        if self._http.their_state is h11.SEND_BODY:
            await self._linger()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def _linger(self) -> None:
        """Reads on for a moment: who is still sending would not see the answer if the connection ended now."""
        self.waits, self.since, left = True, asyncio.get_running_loop().time(), _LINGER_BYTES
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (piece := await self._reader.read(_PIECE_BYTES)):
                    left -= len(piece)

    async def _make_page(self, request: h11.Request, route: Route | None) -> Page:
        """Read a request's body and call its route; else the route's refusal, or 404, 405, 413 or 500."""
        if route is None or request.method != route.method.encode():
            return problem(404 if route is None else 405)
        shown = dict(request.headers).get(b"authorization", b"").decode("latin-1")
        if (refusal := route.refuses(shown)) is not None:
            return refusal
        if self._http.they_are_waiting_for_100_continue:
            self._writer.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > route.max_body_bytes:
                return problem(413, f"a request has at most {route.max_body_bytes:,} bytes; ask in several requests")
        try:
            made = route.make(bytes(body))
            return made if isinstance(made, Page) else await made
        except Exception as error:  # noqa: BLE001 - the caller is told that it failed, and what is asked goes on
            log.error("an answer failed: %s", type(error).__name__)
            return problem(500, "failed")

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_PIECE_BYTES))
        return event

    async def _send(self, page: Page, *, bare: bool) -> None:
        """Write an answer, ``bare`` without its body; it announces the end if the request was not read whole."""
        headers = [("Content-Type", page.kind), ("Content-Length", str(len(page.content))), *_HEADERS]
        headers += page.headers.items()
        if self._http.their_state is not h11.DONE:  # the rest of the request is not read
            headers.append(("Connection", "close"))
        head = h11.Response(status_code=page.status, headers=headers, reason=HTTPStatus(page.status).phrase)
        events = (head, *(() if bare else (h11.Data(data=page.content),)), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()


def run_https(door: HttpServer, host: str, port: int, announce: Callable[[int], None]) -> None:
    """Answer at an address until SIGINT or SIGTERM; ``ConfigError``: bad address, or this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("serve must be called in the main thread, which signals reach; elsewhere run a Door")
    with listen(host, port) as listener, stopped_by_signals(door.close):
        announce(listener.getsockname()[1])
        door.run(listener)
