"""What a guard refused, in the log and in notices to the attacked site."""

from __future__ import annotations

import atexit
import json
import logging
import threading
from typing import Final

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from veilgraph.core.text import printable
from veilgraph.deploy.guard.policy import NOTICE, OURS, STREAM, STREAM_DATA, CellName
from veilgraph.link.refusals import RefusalLog, Source

log = logging.getLogger("veilgraph")

_MAX_NOTICE_BYTES: Final = 4096
"""More than the longest notice has: one that was cut could not be read, and the attacked site would hear of nothing."""
_LONGEST_NOTICE: Final = 1000
_NOTICE: Final = "the server refused what was meant for here: %s"
_SHOWN: Final = 120
_SERVER: Final = "server"


class Refusals:
    """Refusals of one cell: logged, and sent to the attacked site as notices.

    Args:
        cell: that refuses.
        me: its name.
    """

    def __init__(self, cell: CoreCell, me: CellName) -> None:
        self._cell, self._me = cell, me
        self._log = RefusalLog(self._say)
        self._notices = RefusalLog(lambda _, words: log.warning(_NOTICE, words))
        atexit.register(self._log.close)
        atexit.register(self._notices.close)

    def note(self, certified: str, message: Message, why: str) -> None:
        """Count a refusal under the name of the certificate; the server sends the attacked site a notice."""
        headers = message.headers if isinstance(message.headers, dict) else {}
        origin, to = headers.get(MessageHeaderKey.ORIGIN), headers.get(MessageHeaderKey.DESTINATION)
        channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
        if channel == STREAM and topic == STREAM_DATA:
            channel, topic = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        words = (
            f"{shown(channel)}/{shown(topic)} from {certified}, which claims to be {shown(origin)}, for {shown(to)}: "
            f"{shown(why)}"
        )
        attacked = CellName.read(to)
        holds = attacked is not None and attacked.who in ("holder", "holder job")
        site = attacked.site if attacked is not None and holds and attacked.site in self._cell.agents else ""
        kind = (shown(origin), shown(to), shown(channel), shown(topic), shown(why))
        self._log.add((certified, site) if site else (certified,), kind, words)

    def take(self, message: Message) -> None:
        """Log a notice of the server."""
        content = bytes(message.payload or b"")[:_MAX_NOTICE_BYTES]
        said = printable(json.loads(content)["refused"], _LONGEST_NOTICE)
        self._notices.add((_SERVER,), said, said)

    def _say(self, source: Source, words: str) -> None:
        log.warning("refused %s", words)
        if self._me.who == _SERVER and len(source) == 2:
            self._notify(source[1], words[:_LONGEST_NOTICE])

    def _notify(self, site: str, what: str) -> None:
        """Sends a notice, in the background: this is a thread that FLARE receives with."""
        payload = json.dumps({"refused": what}, ensure_ascii=False).encode()

        def send() -> None:
            self._cell.fire_and_forget(OURS, NOTICE, site, Message({}, payload), optional=True)

        threading.Thread(target=send, name="notice", daemon=True).start()


def shown(text: object) -> str:
    """Return a stranger's text for a log."""
    return printable(text, _SHOWN)
