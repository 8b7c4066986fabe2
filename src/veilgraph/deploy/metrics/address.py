"""Where metrics are served: this machine alone may ask, unless it is said that others may."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from veilgraph.core.errors import ConfigError

_SHAPE: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/]+)):(?P<port>\d{1,5})")
_MOST: Final = 65535


@dataclass(frozen=True)
class Address:
    """An address of this machine.

    Attributes:
        host: in numbers.
        port: 0: any that is free.
        family: of the socket.
    """

    host: str
    port: int
    family: socket.AddressFamily

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(text: str, *, beyond: bool) -> Address:
    """What ``--metrics`` says.

    Args:
        text: ``HOST:PORT``; an IPv6 address in brackets.
        beyond: whether others than this machine may be served.

    Raises:
        ConfigError: it is no address, or others could reach it and ``beyond`` is not said.
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
