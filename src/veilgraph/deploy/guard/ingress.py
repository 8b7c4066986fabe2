"""The filter in front of FLARE's dispatchers: every message that reaches a process of a site, before it is decoded.

What a message says of itself (its origin, headers that ask for this or that) is compared with the connection on which
it came: at the server with the certificate that the other end showed, at a holder with the server or its own machine.
What is not on the list of ``policy`` goes nowhere, and into the log under the certified name. Nothing here reads what
a message carries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import NullConnection
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.private.defs import CellMessageHeaderKeys

from veilgraph.core.types import PartyId
from veilgraph.deploy.guard.policy import (
    DIRECT,
    MAX_FRAME_BYTES,
    NOTICE,
    OURS,
    RETURN_ONLY,
    RULES,
    STREAM,
    STREAM_DATA,
    STREAM_NOTICES,
    CellName,
    Rule,
    allowed,
    is_sent,
    streams_between,
)
from veilgraph.deploy.guard.refusals import Refusals, shown
from veilgraph.deploy.guard.sockets import LocalConnection
from veilgraph.link.channel import FROM_HEADER

log = logging.getLogger("veilgraph")

_NEVER: Final = (MessageHeaderKey.SECURE, MessageHeaderKey.CONN_URL, MessageHeaderKey.PASS_THROUGH)
"""Headers that have FLARE exchange certificates, connect where the sender says, or leave data encoded."""

_MAX_CONTROL_BYTES: Final = MAX_FRAME_BYTES
_ADMINISTRATOR_MARK: Final = "@"
_SERVER: Final = "server"


class Refused(Exception):
    """A message that goes nowhere, and why."""


class _Revoked(Refused):
    """A message over a connection whose certificate is not accepted any more."""


class _Late(Refused):
    """An answer after its question was given up: usual when a party leaves."""


@dataclass(frozen=True)
class Arrival:
    """The connection on which a message came.

    Attributes:
        cell: the cell at its other end.
        certified: common name of the certificate it showed; at a holder, ``server``: TLS checked who that is.
        local: on this machine, in this account.
    """

    cell: CellName
    certified: str
    local: bool


class Guard:
    """What one cell takes from outside.

    Args:
        cell: whose messages these are.
        revoked: says why a certificate (PEM) is not accepted any more, or None; at the server, asked for every message.
        rules: what is taken: ``RELAY_RULES`` in a project whose server only relays.
        heard: called with the site, or ``server``, of which a message from another machine was let in.
    """

    def __init__(
        self,
        cell: CoreCell,
        revoked: Callable[[bytes], str | None] | None = None,
        rules: frozenset[Rule] = RULES,
        heard: Callable[[PartyId], None] | None = None,
    ) -> None:
        name = CellName.read(cell.get_fqcn())
        if name is None:
            raise ValueError(f"a cell called {cell.get_fqcn()!r} has no rules")
        self._cell, self._me, self._revoked, self._rules = cell, name, revoked, rules
        self._heard = heard
        self._refusals = Refusals(cell, name)

    def admits(self, endpoint: Endpoint, connection: Connection | None, message: Message) -> bool:
        """Whether the message may go on into FLARE; if not, it has been dropped and noted."""
        if connection is None or isinstance(connection, NullConnection):
            return endpoint is not None and endpoint.name in CoreCell.ALL_CELLS  # from this very process
        certified = "nobody"
        try:
            certified = self._certified(endpoint, connection)
            arrival = self._arrival(endpoint, connection, certified)
            admitted = self._check(arrival, message)
            if self._heard is not None and not arrival.local and arrival.cell.who != "administrator":
                self._heard(arrival.cell.site)
            return admitted
        except _Late:
            log.debug("an answer that nobody waits for any more was dropped")
        except _Revoked as refused:  # apart: no flood of the same name hides it
            self._refusals.note(f"{certified} (certificate not accepted)", message, str(refused))
        except Refused as refused:
            self._refusals.note(certified, message, str(refused))
        except Exception as error:  # noqa: BLE001  (whatever a stranger's bytes do here, they do not get in)
            self._refusals.note(certified, message, f"it cannot be read ({type(error).__name__})")
        return False

    # Who is at the other end

    def _certified(self, endpoint: Endpoint, connection: Connection) -> str:
        """Who the other end is: of this account, as its certificate says, or the server, which TLS has checked."""
        if endpoint is None:
            raise Refused("it came before its connection had a name")
        if isinstance(connection, LocalConnection):
            return self._me.site
        if self._me.who == "server":
            return shown(connection.get_conn_properties().get("peer_cn") or "nobody")
        return _SERVER

    def _arrival(self, endpoint: Endpoint, connection: Connection, certified: str) -> Arrival:
        cell = CellName.read(endpoint.name)
        if cell is None:
            raise Refused(f"no cell is called {shown(endpoint.name)}")
        if isinstance(connection, LocalConnection):
            return Arrival(cell, certified, local=True)
        if self._me.who == "server":
            self._check_certificate(cell, certified, connection)
            return Arrival(cell, certified, local=False)
        if self._me.who == "server job":
            raise Refused("a job at the server is reached through the server alone")
        if cell.who != "server":
            raise Refused(f"it came over a connection with {cell.whole}, and a holder has one with the server alone")
        return Arrival(cell, certified, local=False)

    def _check_certificate(self, cell: CellName, certified: str, connection: Connection) -> None:
        if cell.who == "administrator":
            belongs = _ADMINISTRATOR_MARK in certified
        else:
            belongs = cell.who in ("holder", "holder job") and cell.site == certified
        if not belongs:
            raise Refused(f"{shown(certified)} is not {cell.whole}")
        if self._revoked is None:
            return
        certificate = connection.context.auth_context().get("x509_pem_cert", [b""])[0]
        if (fault := self._revoked(certificate)) is not None:
            connection.close()
            raise _Revoked(f"the certificate {fault}")

    # What it may say

    def _check(self, arrival: Arrival, message: Message) -> bool:
        headers = message.headers
        if not isinstance(headers, dict) or not all(isinstance(key, str) for key in headers):
            raise Refused("its headers are no headers")
        origin = CellName.read(headers.get(MessageHeaderKey.ORIGIN))
        destination = CellName.read(headers.get(MessageHeaderKey.DESTINATION))
        if origin is None or destination is None:
            raise Refused("no cell is called as its origin or destination")
        headers.pop(MessageHeaderKey.ROUTE, None)  # FLARE keeps a statistic for each cell that is named there
        for header in _NEVER:
            if headers.get(header):
                raise Refused(f"{header.removeprefix('cn__')} is used by nobody here")
        self._check_origin(arrival, origin)
        self._check_credentials(arrival, headers)
        self._stamp(headers, arrival)
        kind = headers.get(MessageHeaderKey.MSG_TYPE)
        if kind == MessageType.REQ:
            self._check_request(headers, message, origin, destination)
        elif kind in (MessageType.REPLY, MessageType.RETURN):
            self._check_reply(headers, kind, origin, destination)
        else:
            raise Refused(f"it is a {shown(kind)}")
        if (headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)) == (OURS, NOTICE):
            self._refusals.take(message)
            return False
        return True

    def _check_origin(self, arrival: Arrival, origin: CellName) -> None:
        """Whether what claims to be from ``origin`` can come this way."""
        through = arrival.cell
        if through == origin:
            return
        if self._me.who == "server":  # a site forwards for its own jobs
            fits = not arrival.local and through.who == "holder" and origin.site == through.site
        elif arrival.local:  # a parent forwards to its jobs what it has checked; a child forwards nothing
            fits = self._me.job != "" and through.whole == self._me.site
        else:
            fits = through.who == "server" and origin.who in ("server job", "holder job", "holder")
        if not fits or origin.site == self._me.site != through.site:
            raise Refused(f"it claims to be from {origin.whole}, and came from {through.whole}")

    def _check_credentials(self, arrival: Arrival, headers: Mapping[str, Any]) -> None:
        """FLARE believes a bearer's name; here it is the certificate's or nobody's."""
        if self._me.who == "server" and not arrival.local:
            named = headers.get(CellMessageHeaderKeys.CLIENT_NAME)
            if named is not None and named != arrival.certified:
                raise Refused(f"it shows credentials of {shown(named)}")

    def _stamp(self, headers: dict[str, Any], arrival: Arrival) -> None:
        """Notes whose certificate a message came with; the server's note is kept by who is connected with it alone."""
        if self._me.who == "server" or FROM_HEADER not in headers:
            headers[FROM_HEADER] = arrival.certified

    def _check_request(
        self, headers: Mapping[str, Any], message: Message, origin: CellName, destination: CellName
    ) -> None:
        channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
        if not isinstance(channel, str) or not isinstance(topic, str):
            raise Refused("it has no channel and topic")
        if destination != self._me:
            self._check_route(origin, destination)
            if channel in DIRECT:
                raise Refused(f"{channel} is never forwarded")
        if channel == STREAM:
            self._check_stream(headers, topic, origin, destination)
        elif not allowed(destination, channel, topic, origin, streamed=False, rules=self._rules):
            raise Refused(f"{destination.who} takes no such request of {origin.who}")
        if channel == OURS:
            if headers.get(MessageHeaderKey.PAYLOAD_ENCODING) not in (Encoding.BYTES, Encoding.NONE):
                raise Refused("it is not plain bytes")
        elif len(message.payload or b"") > _MAX_CONTROL_BYTES:
            raise Refused(f"it has {len(message.payload)} bytes, the limit is {_MAX_CONTROL_BYTES}")

    def _check_stream(self, headers: Mapping[str, Any], topic: str, origin: CellName, destination: CellName) -> None:
        broken_off = headers.get(StreamHeaderKey.DATA_TYPE) == StreamDataType.ERROR
        if topic in STREAM_NOTICES or (topic == STREAM_DATA and broken_off):
            fits = streams_between(origin, destination)
        elif topic == STREAM_DATA:
            inner, of = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
            if not isinstance(inner, str) or not isinstance(of, str):
                raise Refused("its stream has no channel and topic")
            size = headers.get(StreamHeaderKey.SIZE, 0)
            if not isinstance(size, int) or size > _MAX_CONTROL_BYTES:
                raise Refused(f"its stream has {shown(size)} bytes, the limit is {_MAX_CONTROL_BYTES}")
            if inner == RETURN_ONLY:  # what was asked may be answered
                asked, _, what = of.partition(":")
                fits = allowed(origin, asked, what, destination, streamed=True, rules=self._rules)
            else:
                fits = allowed(destination, inner, of, origin, streamed=True, rules=self._rules)
        else:
            fits = False
        if not fits:
            raise Refused(f"{destination.who} takes no such stream of {origin.who}")

    def _check_route(self, origin: CellName, destination: CellName) -> None:
        """The server forwards between sites, a holder's parent for its own jobs; both within one job."""
        own = self._me.site in (origin.site, destination.site)
        fits = self._me.who == "server" or (self._me.who == "holder" and own)
        if not fits or not destination.job or origin.job not in ("", destination.job):
            raise Refused(f"it is for {destination.whole}, and nothing from {origin.whole} is forwarded there")

    def _check_reply(self, headers: Mapping[str, Any], kind: str, origin: CellName, destination: CellName) -> None:
        if destination != self._me:
            self._check_route(origin, destination)
            self._check_forwarded(headers, kind, origin, destination)
            return
        identifiers = headers.get(MessageHeaderKey.REQ_ID)
        asked = origin.whole
        if kind == MessageType.RETURN:
            asked = str(headers.get(MessageHeaderKey.ORIGINAL_HEADERS, {}).get(MessageHeaderKey.DESTINATION))
            name = CellName.read(asked)
            if name is None or origin.site not in ("server", self._me.site, name.site):
                raise Refused(f"it returns what was sent to {shown(asked)}")
        if not isinstance(identifiers, str | list) or not identifiers:
            raise Refused("it does not say what it answers")
        for identifier in [identifiers] if isinstance(identifiers, str) else identifiers:
            waiter = self._cell.waiters.get(identifier)
            if waiter is not None and asked in waiter.targets:
                continue
            raise _Late("it answers nothing that was asked")

    def _check_forwarded(self, headers: Mapping[str, Any], kind: str, origin: CellName, destination: CellName) -> None:
        """Only what was asked within a job is answered, and only what is sent here returned: FLARE counts by topic."""
        if kind == MessageType.REPLY:
            topic = headers.get(MessageHeaderKey.TOPIC)
            asked = isinstance(topic, str) and allowed(
                origin, OURS, topic, destination, streamed=False, rules=self._rules
            )
            if headers.get(MessageHeaderKey.CHANNEL) != OURS or not origin.job or not asked:
                raise Refused("only answers to messages of a job are forwarded")
            return
        original = headers.get(MessageHeaderKey.ORIGINAL_HEADERS)
        channel, topic = (
            (original.get(MessageHeaderKey.CHANNEL), original.get(MessageHeaderKey.TOPIC))
            if isinstance(original, dict)
            else (None, None)
        )
        if not isinstance(channel, str) or not isinstance(topic, str) or not is_sent(channel, topic):
            raise Refused("it returns what nobody here sends")
