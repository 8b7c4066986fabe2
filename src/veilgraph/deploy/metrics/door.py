"""Where metrics are served, to this machine alone unless it is said that others may ask; in one thread, bounded.

An HTTP server that answers GET of a few paths and does nothing else. No body is read, no connection is kept, no header
is looked at. Whoever keeps connections open without asking is cut off after seconds, and sooner where another wants in.

No library's: of 96 connections that send a byte now and then, wsgiref lets nobody else in, uvicorn with a limit answers
503 to all others, http.server and prometheus_client make a thread for each; none of the last three ever cuts them off.
"""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.text import Event

_SHAPE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/]+)):(?P<port>\d{1,5})")
_MOST: Final = 65535


@dataclass(frozen=True)
class Address:
    """An address of this machine, in numbers; port 0: any that is free."""

    host: str
    port: int
    family: socket.AddressFamily

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str, *, beyond: bool) -> Address:
    """What ``--metrics`` says: ``HOST:PORT``; an IPv6 address in brackets.

    Raises ``ConfigError``: it is no address, or others could reach it and ``beyond`` is not said.
    """
    shape = _SHAPE.fullmatch(text)
    if shape is None or int(shape["port"]) > _MOST:
        raise ConfigError(
            f"--metrics {text}: give HOST:PORT, as in 127.0.0.1:9464 or [::1]:9464", key="--metrics", value=text
        )
    try:
        found = socket.getaddrinfo(shape["six"] or shape["name"], None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"--metrics {text}: no such address ({error}); give one of this machine's", key="--metrics", value=text
        ) from error
    if not beyond and not all(ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found):
        raise ConfigError(
            f"--metrics {text}: other machines could read the metrics there; give a loopback address, as "
            "127.0.0.1:9464, or say --metrics-open as well",
            key="--metrics",
            value=text,
        )
    family, *_, place = found[0]
    return Address(str(place[0]), int(shape["port"]), family)


MAX_HEAD_BYTES: Final = 8192
"""Longest request, its headers included; more is not read."""
MAX_CONNECTIONS: Final = 32
"""At once; for one more the oldest is closed."""
WITHIN_S: Final = 5.0
"""So long a connection has from its beginning to its end."""

_TEXT: Final = "text/plain; charset=utf-8"
_WORDS: Final = {200: "OK", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Page:
    """An answer."""

    content: bytes
    status: int = 200
    kind: str = _TEXT


NOTHING: Final = Page(b"not found\n", 404)
_FAILED: Final = Page(b"failed\n", 500)


@contextmanager
def serving(address: Address, pages: Mapping[str, Callable[[], Page]]) -> Iterator[Address]:
    """Answers while the block lasts, at the address that it yields, with the port that was free.

    ``pages`` are path → what makes its answer, called in the server's own thread, one at a time. Raises
    ``ConfigError``: the address cannot be listened at.
    """
    try:
        listener = socket.create_server((address.host, address.port), family=address.family)
    except OSError as error:
        raise ConfigError(
            f"--metrics {address}: cannot be listened at ({error.strerror}); choose another", key="--metrics"
        ) from error
    loop = asyncio.new_event_loop()
    door = _Door(pages)
    thread = threading.Thread(target=_run, args=(loop, door, listener), name="metrics", daemon=True)
    thread.start()
    try:
        yield Address(address.host, int(listener.getsockname()[1]), address.family)
    finally:
        loop.call_soon_threadsafe(door.close)
        thread.join()
        loop.close()


@contextmanager
def watched(
    address: Address | None, made: Callable[[], Mapping[str, Callable[[], Page]]], report: Callable[[Event], None]
) -> Iterator[None]:
    """As ``serving``, and says where; does nothing without an address. ``made`` needs an extra, and is called then."""
    if address is None:
        yield
        return
    with serving(address, made()) as at:
        report(Event("metrics", f"metrics at http://{at}/metrics", address=str(at)))
        yield


def _run(loop: asyncio.AbstractEventLoop, door: _Door, listener: socket.socket) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(door.run(listener))


class _Door:
    def __init__(self, pages: Mapping[str, Callable[[], Page]]) -> None:
        self._pages = pages
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._closed = asyncio.Event()

    async def run(self, listener: socket.socket) -> None:
        """Answers until ``close``."""
        server = await asyncio.start_server(self._answer, sock=listener, limit=MAX_HEAD_BYTES)
        async with server:
            await self._closed.wait()
            asyncio.get_running_loop().remove_reader(listener)
            while len(asyncio.all_tasks()) > 1:  # a server that is closed leaves whom it is letting in half-way
                for writer in list(self._open):
                    writer.transport.abort()
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Ends ``run``; to be called in its loop."""
        self._closed.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MAX_CONNECTIONS:
            oldest = next(iter(self._open))  # who has asked is answered long before this
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(WITHIN_S):
                page = self._page(await _head(reader))
                writer.write(_written(page))
                writer.write_eof()
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, EOFError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)

    def _page(self, head: bytes) -> Page:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET" or not words[2].startswith(b"HTTP/1."):
            return NOTHING
        make = self._pages.get(words[1].decode("latin-1"))
        try:
            return NOTHING if make is None else make()
        except Exception:  # noqa: BLE001 - whoever watches is told that it failed, and what is watched goes on
            return _FAILED


async def _head(reader: asyncio.StreamReader) -> bytes:
    """A request up to its body; nothing where it is too long."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return b""


def _written(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status} {_WORDS[page.status]}\r\nContent-Type: {page.kind}\r\n"
        f"Content-Length: {len(page.content)}\r\nConnection: close\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n\r\n"
    )
    return head.encode("ascii") + page.content


def answer(ready: bool, words: str) -> Page:
    """A line: 200, or 503."""
    return Page(f"{words}\n".encode(), 200 if ready else 503)
