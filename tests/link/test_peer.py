"""What a peer may send, who has the keys of its channel: greetings, pieces of messages, notices; and its silence."""

from types import SimpleNamespace

import pytest
import torch

from tests.errors import refused
from tests.link.channels import BANK, SESSION, SHOP
from veilgraph.core.errors import LinkError, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.link import sealed as peers
from veilgraph.link.channel import Channel, FrameKind
from veilgraph.link.codec import HEADER_BYTES, encode
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.sealed import LONGEST_REASON, PIECE_BYTES, OnExtra, Outgoing, Peer

TAG = Tag(Kind.SHARE)
SILENCE_S, CONNECT_S, LIMIT = 20.0, 120.0, 3 * PIECE_BYTES
LARGE = torch.arange(2 * PIECE_BYTES // 8 + 7)
"""Three pieces."""


class End:
    """The bank's knowledge of the shop, and the shop's own channel."""

    def __init__(self, on_extra: OnExtra | None = None, extra: bytes = b"", confirmed: bool = False) -> None:
        self.mailbox = Mailbox("bank", ["shop"])
        bank = Channel(BANK, "bank", "shop", SESSION)
        self.shop = Channel(SHOP, "shop", "bank", SESSION, extra=extra)
        self.peer = Peer(
            "shop",
            bank,
            self.mailbox,
            max_message_bytes=LIMIT,
            silence_s=SILENCE_S,
            connect_s=CONNECT_S,
            on_extra=on_extra,
        )
        self.shop.hear(bank.hello)
        if confirmed:
            self.peer.take(self.peer.hear(self.greeting(self.shop.confirmation())))

    def greeting(self, frame: bytes = b"") -> bytes:
        return len(self.shop.hello).to_bytes(4, "little") + self.shop.hello + frame

    def pieces(self, tensor: torch.Tensor = LARGE[:3], tag: Tag = TAG) -> list[bytes]:
        message = Outgoing(self.shop, *encode(tag, tensor))
        return [bytes(message.piece(index)) for index in range(message.count)]

    def failure(self) -> LinkError:
        with pytest.raises(LinkError) as caught:
            self.mailbox.take("shop", Tag(Kind.SHARE, 9), 0)
        return caught.value


@pytest.mark.parametrize("greeting", [b"", b"\1\0\0", b"\5\0\0\0abc", b"\xff\xff\xff\xff", bytes(200)])
def test_a_greeting_that_is_none(greeting: bytes) -> None:
    end = End()
    with refused(ProtocolError, code="hello-size"):
        end.peer.hear(greeting)
    assert not end.peer.channel.agreed
    assert end.peer.hear(end.greeting()) == b"", "the true one is heard after it"


def test_what_is_told_is_given_once_and_receipts_are_for_the_peer() -> None:
    told: list[tuple[str, bytes]] = []
    end = End(lambda *it: told.append(it), b"revoked: nobody")
    rest = end.peer.hear(end.greeting(end.shop.confirmation()))
    for frame in (rest, end.shop.confirmation()):
        receipt = end.peer.take(frame)
        assert end.shop.received(end.shop.confirmation(), receipt)
    assert told == [("shop", b"revoked: nobody")]
    assert end.peer.greeting(receipt).endswith(end.peer.channel.hello + receipt)


def test_who_is_refused_for_what_it_tells_sends_nothing_more() -> None:
    def refuse(name: str, extra: bytes) -> None:
        raise ProtocolError(f"{name}'s list is older than mine", code="revocation")

    end = End(refuse)
    end.peer.hear(end.greeting(end.shop.confirmation()))
    for frame in (end.shop.confirmation(), *end.pieces()):
        end.peer.take(frame)
        assert end.failure().code == "revocation"


def test_a_message_before_the_confirmation_is_refused() -> None:
    end = End()
    end.peer.hear(end.greeting())
    with refused(ProtocolError, code="no-keys", party="shop"):
        end.peer.take(end.pieces()[0])
    assert end.peer.failure is None
    end.peer.take(end.shop.confirmation())
    end.peer.take(end.pieces()[0])
    assert end.peer.failure is not None, "it was the second message: the control"
    assert end.peer.failure.code == "order"


def test_a_peer_that_stopped_before_it_confirmed_says_so() -> None:
    end = End()
    end.peer.take(end.peer.hear(end.greeting(end.shop.seal(FrameKind.STOPPED, b"no table"))))
    assert (end.failure().code, "no table" in str(end.failure())) == ("stopped", True)
    end.peer.take(end.pieces()[0])
    assert end.failure().code == "stopped"


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES // 8, PIECE_BYTES // 8 + 1, len(LARGE)])
def test_pieces_in_their_order_and_repeated_are_the_message(size: int) -> None:
    end, tensor = End(confirmed=True), LARGE[:size]
    for tag in (TAG, Tag(Kind.SEED)):
        pieces = end.pieces(tensor, tag)
        assert len(pieces) == max(1, -(-tensor.nbytes // PIECE_BYTES))
        for piece in pieces:
            end.peer.take(piece)
            end.peer.take(piece)
        assert torch.equal(end.mailbox.take("shop", tag, 0), tensor)
    assert end.peer.failure is None


def test_a_piece_before_its_turn_ends_the_session() -> None:
    for left_out in (0, 1):
        end = End(confirmed=True)
        pieces = end.pieces(LARGE)
        for piece in pieces[:left_out] + pieces[left_out + 1 :]:
            end.peer.take(piece)
        assert end.failure().code == "order", left_out
    end = End(confirmed=True)
    end.pieces()
    end.peer.take(end.pieces()[0])
    assert end.failure().code == "order", "the second message before the first"


@pytest.mark.parametrize(
    ("head", "content", "code"),
    [
        *(((1, 0, total), bytes(60), "too-large") for total in (0, HEADER_BYTES - 1, LIMIT + 1, (1 << 64) - 1)),
        ((1, 0, HEADER_BYTES + 24), bytes(HEADER_BYTES + 23), "piece-size"),
        ((1, 0, HEADER_BYTES + 24), bytes(HEADER_BYTES + 25), "piece-size"),
        ((1, 0, HEADER_BYTES + 24), bytes(HEADER_BYTES + 24), "not-a-message"),
        ((1, 0, HEADER_BYTES + 24), b"".join(map(bytes, encode(TAG, LARGE[:4])))[:-8], "data-size"),
        ((1, 3, LIMIT), b"", "order"),
    ],
)
def test_a_piece_that_does_not_fit(head: tuple[int, int, int], content: bytes, code: str) -> None:
    end = End(confirmed=True)
    end.peer.take(end.shop.seal_piece(*head, content))
    assert end.failure().code == code


def test_a_later_piece_of_another_total_does_not_fit() -> None:
    end = End(confirmed=True)
    first = end.pieces(LARGE)[0]
    total = HEADER_BYTES + LARGE.nbytes
    end.peer.take(first)
    end.peer.take(end.shop.seal_piece(1, 1, total + 8, bytes(PIECE_BYTES)))
    assert end.failure().code == "piece-size"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "shop closed its link"),
        (b"DataError", r"shop stopped (DataError); its own log says why"),
        (b"a\x1b[2Jb\xff" + b"x" * 1000, "shop stopped (a\\u001b[2Jb\ufffd" + "x" * (LONGEST_REASON - 8)),
    ],
)
def test_a_stop_notice_is_the_peers(content: bytes, said: str) -> None:
    end = End(confirmed=True)
    end.peer.take(end.shop.seal(FrameKind.STOPPED, content))
    assert isinstance(end.failure(), PeerFailed)
    assert said in str(end.failure())
    assert end.peer.silent()


def test_silence_counts_from_what_the_peer_itself_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    end = End()
    signs = [
        lambda: end.peer.hear(end.greeting()),
        lambda: end.peer.take(end.shop.confirmation()),
        lambda: end.peer.take(end.pieces()[0]),
        lambda: end.peer.take(end.shop.seal(FrameKind.PING)),
    ]
    limits = [CONNECT_S, *[SILENCE_S] * len(signs)]
    for limit, sign in zip(limits, [*signs, None], strict=True):
        now[0] += limit - 0.5
        assert not end.peer.silent()
        now[0] += 1
        assert end.peer.silent()
        if sign is not None:
            sign()
    end.peer.fail_silent()
    assert "shop gave no sign of life for 20 s" in str(end.failure())


def test_who_was_never_let_in_is_named_with_the_reason() -> None:
    end = End()
    longer = end.shop.hello + b"x"
    with pytest.raises(ProtocolError):
        end.peer.hear(len(longer).to_bytes(4, "little") + longer)
    end.peer.fail_silent()
    assert "shop gave no sign of life for 120 s; a hello in its name was refused: " in str(end.failure())
