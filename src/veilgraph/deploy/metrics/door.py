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
from veilgraph.deploy.https import Door, Page, Route
from veilgraph.link.nats_client import BrokerAddress

_SHAPE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/]+)):(?P<port>\d{1,5})")
_MOST: Final = 65535


@dataclass(frozen=True)
class Address(BrokerAddress):
    """An address of this machine, in numbers; port 0: any that is free."""

    family: socket.AddressFamily


def read_address(text: str, *, beyond: bool) -> Address:
    """What ``--metrics`` says: ``HOST:PORT``; an IPv6 address in brackets.

    Raises ``ConfigError``: it is no address, or others could reach it and ``beyond`` is not said.
    """
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
def serving(address: Address, pages: Mapping[str, Callable[[], Page]]) -> Iterator[Address]:
    """Answers while the block lasts, at the address that it yields, with the port that was free.

    ``pages`` are path → what makes its answer, called in the server's own thread, one at a time. Raises
    ``ConfigError``: the address cannot be listened at.
    """
    what = f"--metrics {address}: cannot be listened at"
    with os_errors_as(ConfigError, what, "choose another", key="--metrics"):
        listener = socket.create_server((address.host, address.port), family=address.family)
    door = Door({path: Route(lambda _body, make=make: make()) for path, make in pages.items()})  # type: ignore[misc]
    thread = threading.Thread(target=door.run, args=(listener,), name="metrics", daemon=True)
    thread.start()
    try:
        yield Address(address.host, int(listener.getsockname()[1]), address.family)
    finally:
        door.close()
        thread.join()
        listener.close()


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


def answer(ready: bool, words: str) -> Page:
    """A line: 200, or 503."""
    return Page(f"{words}\n".encode(), 200 if ready else 503, "text/plain; charset=utf-8")
