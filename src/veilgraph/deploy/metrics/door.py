"""Where metrics are served, to this machine alone unless it is said that others may ask."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.files import os_errors_as
from veilgraph.core.text import Event
from veilgraph.deploy.https import HttpServer, Page, Route
from veilgraph.link.nats_client import BrokerAddress

_SHAPE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/]+)):(?P<port>\d{1,5})")
_MOST: Final = 65535


@dataclass(frozen=True)
class Address(BrokerAddress):
    """A numeric IP address and port of this machine; port 0: any that is free."""

    family: socket.AddressFamily


def read_address(text: str, *, beyond: bool) -> Address:
    """Resolve ``--metrics`` HOST:PORT; ``ConfigError``: no address, or not a loopback one and not ``beyond``."""
    shape = _SHAPE.fullmatch(text)
    if shape is None or int(shape["port"]) > _MOST:
        raise ConfigError(
            f"--metrics {text}: give HOST:PORT, as in 127.0.0.1:9464 or [::1]:9464", key="--metrics", value=text
        )
    what, way_out = f"--metrics {text}: no such address", "give one of this machine's"
    with os_errors_as(ConfigError, what, way_out, UnicodeError, key="--metrics", value=text):
        found = socket.getaddrinfo(shape["six"] or shape["name"], None, type=socket.SOCK_STREAM)
    if not beyond and not all(ip_address(str(each[4][0]).partition("%")[0]).is_loopback for each in found):
        raise ConfigError(
            f"--metrics {text}: other machines could read the metrics there; give a loopback address, as "
            "127.0.0.1:9464, or say --metrics-open as well",
            key="--metrics",
            value=text,
        )
    family, *_, place = found[0]
    return Address(str(place[0]), int(shape["port"]), family)


@contextmanager
def serve_pages(address: Address, pages: Mapping[str, Callable[[], Page]]) -> Iterator[Address]:
    """Answer HTTP requests in a thread while the block lasts; yield the address, with the port that was free.

    ``pages`` are path → what makes its answer, called in the server's own thread, one at a time. Raises
    ``ConfigError``: the address cannot be listened at.
    """
    what = f"--metrics {address}: cannot be listened at"
    with os_errors_as(ConfigError, what, "choose another", key="--metrics"):
        listener = socket.create_server((address.host, address.port), family=address.family)
    door = HttpServer({path: Route(lambda _body, make=make: make()) for path, make in pages.items()})  # type: ignore[misc]
    thread = threading.Thread(target=door.run, args=(listener,), name="metrics", daemon=True)
    thread.start()
    try:
        yield Address(address.host, int(listener.getsockname()[1]), address.family)
    finally:
        door.close()
        thread.join()
        listener.close()


@contextmanager
def serve_metrics(
    address: Address | None, made: Callable[[], Mapping[str, Callable[[], Page]]], report: Callable[[Event], None]
) -> Iterator[None]:
    """Serve the pages of ``made()`` while the block lasts, and report the address; do nothing where that is None."""
    if address is None:
        yield
        return
    with serve_pages(address, made()) as at:
        report(Event("metrics", f"metrics at http://{at}/metrics", address=str(at)))
        yield


def answer(ready: bool, words: str) -> Page:
    """An HTTP answer of one line of text: status 200 if ``ready``, else 503."""
    return Page(f"{words}\n".encode(), 200 if ready else 503, "text/plain; charset=utf-8")
