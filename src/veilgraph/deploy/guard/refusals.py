"""What a guard refused: noted in the log, in few lines however much it is, and told to the attacked site."""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from veilgraph.deploy.guard.policy import NOTICE, OURS, STREAM, STREAM_DATA, CellName

log = logging.getLogger("veilgraph")

_MAX_NOTICE_BYTES: Final = 4096
"""More than the longest notice has: one that was cut could not be read, and the attacked site would hear of nothing."""
_REMEMBERED: Final = 10_000
_SHOWN: Final = 120
_SERVER: Final = "server"


class Refusals:
    """Of one cell: counted by who it was first; told of at 1, 10, 100, ... so that logs stay small.

    Args:
        cell: that refuses.
        me: its name.
    """

    def __init__(self, cell: CoreCell, me: CellName) -> None:
        self._cell, self._me = cell, me
        self._counts: dict[tuple[str, ...], int] = {}
        self._lock = threading.Lock()

    def note(self, certified: str, message: Message, why: str) -> None:
        """Notes a refusal, with the name of the certificate; the server tells the attacked site."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        origin, to = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
        channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
        if channel == STREAM and topic == STREAM_DATA:
            channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        count = self._count((certified, shown(origin), shown(to), shown(channel), shown(topic)))
        if count is None:
            return
        what = f"{shown(channel)}/{shown(topic)} from {certified}, which claims to be {shown(origin)}"
        log.warning("refused %s, for %s: %s (%d so far)", what, shown(to), shown(why), count)
        attacked = CellName.read(to)
        if self._me.who == "server" and attacked is not None and attacked.who in ("holder", "holder job"):
            self._tell(attacked.site, f"{what}: {shown(why)} ({count} so far)")

    def _tell(self, site: str, what: str) -> None:
        """Lets the attacked site know; in the background, for this is a thread that FLARE receives with."""
        payload = json.dumps({"refused": what}, ensure_ascii=False).encode()

        def send() -> None:
            self._cell.fire_and_forget(OURS, NOTICE, site, Message({}, payload), optional=True)

        threading.Thread(target=send, name="notice", daemon=True).start()

    def take(self, message: Message) -> None:
        """Notes what the server tells of."""
        content = bytes(message.payload or b"")[:_MAX_NOTICE_BYTES]
        said = json.loads(content)["refused"]
        if self._count((_SERVER, shown(said, _MAX_NOTICE_BYTES))) is not None:
            log.warning("the server refused what was meant for here: %s", shown(said, _MAX_NOTICE_BYTES))

    def _count(self, attempt: tuple[str, ...]) -> int | None:
        """The number of such attempts, if it is one to be told of."""
        with self._lock:
            if attempt not in self._counts and len(self._counts) >= _REMEMBERED:
                attempt = attempt[:1]  # too many kinds: counted by who it was
            number = self._counts[attempt] = self._counts.get(attempt, 0) + 1
        return number if str(number).strip("0") == "1" else None


def shown(text: object, characters: int = _SHOWN) -> str:
    """A stranger's text for a log: one line, printable, short."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:characters])
