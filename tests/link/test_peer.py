from types import SimpleNamespace

import pytest
import torch

from tests.errors import refused
from tests.link.channels import BANK, SESSION, SHOP
from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link import sealed as peers
from veilgraph.link.channel import Channel, FrameKind
from veilgraph.link.codec import encode
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.sealed import LONGEST_REASON, OnExtra, Outgoing, Peer

TAG = Tag(Kind.SHARE)
SILENCE_S, CONNECT_S = 20.0, 120.0


class End:
    """The bank's knowledge of the shop, and the shop's own channel."""

    def __init__(self, on_extra: OnExtra | None = None, extra: bytes = b"") -> None:
        self.mailbox = Mailbox("bank", ["shop"])
        bank = Channel(BANK, "bank", "shop", SESSION)
        self.shop = Channel(SHOP, "shop", "bank", SESSION, extra=extra)
        self.peer = Peer(
            "shop",
            bank,
            self.mailbox,
            max_message_bytes=1000,
            silence_s=SILENCE_S,
            connect_s=CONNECT_S,
            on_extra=on_extra,
        )
        self.shop.hear(bank.hello)

    def greeting(self, frame: bytes = b"") -> bytes:
        return len(self.shop.hello).to_bytes(4, "little") + self.shop.hello + frame

    def piece(self) -> bytes:
        return bytes(Outgoing(self.shop, *encode(TAG, torch.arange(3))).piece(0))

    def failure(self) -> LinkError:
        with pytest.raises(LinkError) as caught:
            self.mailbox.take("shop", Tag(Kind.SHARE, 1), 0)
        return caught.value


def test_a_greeting_brings_a_hello_and_a_frame() -> None:
    end = End()
    rest = end.peer.hear(end.greeting(end.shop.confirmation()))
    receipt = end.peer.take(rest)
    assert end.shop.received(end.shop.confirmation(), receipt)
    assert end.peer.greeting(receipt).endswith(end.peer.channel.hello + receipt)
    end.peer.take(end.piece())
    assert torch.equal(end.mailbox.take("shop", TAG, 0), torch.arange(3))


@pytest.mark.parametrize("greeting", [b"", b"\1\0\0", b"\5\0\0\0abc", b"\xff\xff\xff\xff", bytes(200)])
def test_a_greeting_that_is_none(greeting: bytes) -> None:
    end = End()
    with refused(ProtocolError, code="hello-size"):
        end.peer.hear(greeting)
    assert not end.peer.channel.agreed
    assert end.peer.hear(end.greeting()) == b""


def test_what_is_told_is_given_once_and_before_all_messages() -> None:
    told: list[tuple[str, bytes]] = []
    end = End(lambda *it: told.append(it), b"revoked: nobody")
    end.peer.hear(end.greeting())
    for _ in range(3):
        end.peer.take(end.shop.confirmation())
    assert told == [("shop", b"revoked: nobody")]


def test_who_is_refused_for_what_it_tells_sends_nothing_more() -> None:
    def refuse(name: str, extra: bytes) -> None:
        raise ProtocolError(f"{name}'s list is older than mine")

    end = End(refuse)
    end.peer.hear(end.greeting())
    end.peer.take(end.shop.confirmation())
    assert "shop's list is older than mine" in str(end.failure())
    end.peer.take(end.piece())
    assert isinstance(end.failure(), ProtocolError)


def test_a_message_before_the_confirmation_is_refused() -> None:
    end = End()
    end.peer.hear(end.greeting())
    end.peer.take(end.piece())
    assert "a message before the confirmation of its keys" in str(end.failure())


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "shop closed its link"),
        (b"DataError", r"shop stopped (DataError); its own log says why"),
        (b"a\x1b[2Jb\xff" + b"x" * 1000, "shop stopped (a\\u001b[2Jb\ufffd" + "x" * (LONGEST_REASON - 8)),
    ],
)
def test_a_stop_notice_is_the_peers(content: bytes, said: str) -> None:
    end = End()
    end.peer.hear(end.greeting())
    end.peer.take(end.shop.seal(FrameKind.STOPPED, content))
    assert isinstance(end.failure(), PeerFailed)
    assert said in str(end.failure())
    assert end.peer.silent()


def test_silence_counts_from_what_the_peer_itself_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    end = End()

    def silent_after(seconds: float) -> tuple[bool, bool]:
        now[0] += seconds - 0.5
        before = end.peer.silent()
        now[0] += 1
        return before, end.peer.silent()

    assert silent_after(CONNECT_S) == (False, True)
    end.peer.hear(end.greeting())
    assert silent_after(SILENCE_S) == (False, True)
    for frame in (end.shop.confirmation(), end.piece(), end.shop.seal(FrameKind.PING)):
        end.peer.take(frame)
        assert silent_after(SILENCE_S) == (False, True)
    end.peer.is_alive()
    assert silent_after(SILENCE_S) == (False, True)
    end.peer.fail_silent()
    assert "shop gave no sign of life for 20 s" in str(end.failure())


def test_who_was_never_let_in_is_named_with_the_reason() -> None:
    end = End()
    longer = end.shop.hello + b"x"
    with pytest.raises(ProtocolError):
        end.peer.hear(len(longer).to_bytes(4, "little") + longer)
    end.peer.fail_silent()
    said = str(end.failure())
    assert "shop gave no sign of life for 120 s; a hello in its name was refused: " in said
