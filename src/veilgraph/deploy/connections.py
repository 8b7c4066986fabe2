"""HTTPS connections, bounded in number, by address and in time: silent ones never keep a request out."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

WITHIN_S: Final = 10.0
"""Longest time of a handshake, and longest time until a whole request has come."""
MAX_CONNECTIONS: Final = 256
"""At once, each before and after its handshake. For one more the oldest that waits for its caller is closed."""
MAX_BY_ADDRESS: Final = 128
"""Of one address; beyond that its own oldest is closed."""


class BoundedLoop(asyncio.SelectorEventLoop):
    """An event loop that gives a handshake ``WITHIN_S``, and closes the oldest of too many."""

    def __init__(self) -> None:
        super().__init__()
        self.arriving: dict[object, asyncio.Transport] = {}

    @override
    async def create_server(self, *args: Any, **how: Any) -> asyncio.Server:
        if how.get("ssl") is not None:
            how.setdefault("ssl_handshake_timeout", WITHIN_S)
        return await super().create_server(*args, **how)

    def _make_ssl_transport(self, rawsock: Any, protocol: Any, *args: Any, **how: Any) -> Any:  # noqa: ANN401 - asyncio's
        if len(self.arriving) >= MAX_CONNECTIONS:
            oldest = self.arriving.pop(next(iter(self.arriving)))
            self.call_soon(oldest.abort)  # after its beginning, which may still be due
        made = super()._make_ssl_transport(rawsock, protocol, *args, **how)  # type: ignore[misc]
        self.arriving[protocol] = made
        return made


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which ends connections that do not ask."""

    since: float

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if isinstance(self.loop, BoundedLoop):
            self.loop.arriving.pop(self, None)
        self.since = self.loop.time()
        self.loop.call_later(WITHIN_S, self._expire)
        waiting = sorted((each for each in self._others() if each.waits), key=lambda each: each.since)
        mine = [each for each in waiting if each.address == self.address]
        too_many = sum(each.address == self.address for each in self._others()) >= MAX_BY_ADDRESS
        if too_many and mine:
            mine[0].drop()
        elif len(self.connections) > MAX_CONNECTIONS and waiting:
            waiting[0].drop()

    @override
    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    @property
    def address(self) -> str:
        """Of the caller."""
        return "" if self.client is None else self.client[0]

    @property
    def waits(self) -> bool:
        """Whether the next move is the caller's."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _others(self) -> list[BoundedProtocol]:
        return [each for each in self.connections if isinstance(each, BoundedProtocol) and each is not self]

    def _expire(self) -> None:
        if self.transport.is_closing():
            return
        left = WITHIN_S - (self.loop.time() - self.since)
        if self.waits and left <= 0:
            self.drop()
        else:
            self.loop.call_later(max(left, 1.0), self._expire)
