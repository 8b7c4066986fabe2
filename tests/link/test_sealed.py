import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from veilgraph_testing import sealed_link as sealing
from veilgraph_testing.sealed_link import SEALING_BYTES, SealedLink

from tests.errors import check, refused
from tests.link.altered import Alter, AlteredLink, unaltered
from tests.link.certificates import DAY, NOW, Project, fresh_key
from tests.link.sealing import BANK, PARTIES, PROJECT, SHOP, outcomes, pair
from veilgraph.core.errors import ConfigError, LinkTimeout, PeerFailed, ProtocolError
from veilgraph.core.types import Kind, Link, Tag
from veilgraph.link import channel as channels
from veilgraph.link.channel import FRAME_BYTES, HEAD_BYTES, MAX_HELLO_BYTES, Channel, ChannelContext, FrameKind
from veilgraph.link.codec import HEADER_BYTES, encoded_size
from veilgraph.link.factory import MemoryHub
from veilgraph.link.identity import Identity
from veilgraph.link.view import RecordedLink

TAG = Tag(Kind.SHARE, 3, 1)
SECRET = torch.arange(4096, dtype=torch.int64)


def established(alter: Alter = unaltered) -> tuple[SealedLink, SealedLink, AlteredLink, AlteredLink]:
    made = pair(alter=alter)
    assert outcomes(made[:2]) == [None, None]
    return made


def test_what_crosses_is_ciphertext() -> None:
    bank, shop, below, _ = established()
    again = Tag(Kind.SHARE, 4, 1)
    bank.send("shop", TAG, SECRET)
    bank.send("shop", again, SECRET)
    frames = [below.sent[tag].numpy().tobytes() for tag in (TAG, again)]
    plain = SECRET.numpy().tobytes()
    for frame in frames:
        assert not any(plain[start : start + 8] in frame[HEAD_BYTES:] for start in range(64, len(plain), 64))
        assert b"VEIL" not in frame
        # Ciphertext looks uniform: each bit is set about half the time.
        ones = sum(byte.bit_count() for byte in frame[HEAD_BYTES:]) / (8 * len(frame))
        assert 0.49 < ones < 0.51
    same = sum(one == other for one, other in zip(frames[0][HEAD_BYTES:], frames[1][HEAD_BYTES:], strict=True))
    assert same < 0.01 * len(plain)
    assert len(frames[0]) + HEADER_BYTES <= encoded_size(SECRET) + SEALING_BYTES
    for tag in (TAG, again):
        assert torch.equal(shop.receive("bank", tag), SECRET)


def test_messages_with_who_is_no_peer_pass_unchanged() -> None:
    bank, _, below, _ = established()
    bank.send("server", TAG, SECRET)
    assert below.sent[TAG] is SECRET


def test_every_session_has_other_keys() -> None:
    frames = []
    for _ in range(2):
        bank, _, below, _ = established()
        bank.send("shop", TAG, SECRET)
        frames.append(below.sent[TAG])
    assert (frames[0] == frames[1]).float().mean() < 0.02


def test_both_directions_have_keys_of_their_own() -> None:
    bank, shop, bank_below, shop_below = established()
    bank.send("shop", TAG, SECRET)
    shop.send("bank", TAG, SECRET)
    one, other = bank_below.sent[TAG], shop_below.sent[TAG]
    assert torch.equal(one[:HEAD_BYTES], other[:HEAD_BYTES])  # the same place
    assert (one == other).float().mean() < 0.02


@pytest.mark.parametrize(
    ("shop", "rule"),
    [
        (Project().identity("shop"), "other-project"),
        (PROJECT.identity("shop", start=NOW - 3 * DAY, end=NOW - DAY), "expired"),
        (PROJECT.identity("shap"), "other-name"),
        (Identity(SHOP.certificate, fresh_key(), SHOP.roots), "signature"),
    ],
    ids=["other root", "expired", "other name", "other key"],
)
def test_who_is_not_the_peer_is_refused_and_told_why(shop: Identity, rule: str) -> None:
    *links, below, _ = pair(shop=Identity(shop.certificate, shop.key, PROJECT.identity("x").roots))
    bank_error, shop_error = outcomes(links)
    for error, code, party in ((bank_error, rule, "shop"), (shop_error, "refused", "bank")):
        assert isinstance(error, ProtocolError)
        check(error, code=code, party=party)
    assert str(bank_error)[:30] in str(shop_error)
    # Nothing of the job leaves the bank, then or later.
    for _ in range(2):
        with refused(ProtocolError, code=rule, party="shop"):
            links[0].send("shop", TAG, SECRET)
    assert TAG not in below.sent


def test_each_refuses_the_other_projects_party() -> None:
    *links, _, _ = pair(shop=Project().identity("shop"))
    for error in outcomes(links):
        assert isinstance(error, ProtocolError)
        assert "another project" in str(error) or "refused" in str(error)


def test_another_job_gives_other_keys() -> None:
    *links, _, _ = pair(jobs=("job", "another"))
    errors = outcomes(links)
    assert all(isinstance(error, ProtocolError) for error in errors)
    assert any("is of another job" in str(error) for error in errors)


def test_other_settings_or_parties_are_no_session() -> None:
    hub = MemoryHub(["bank", "shop"], 5.0)
    for other in (ChannelContext("job", PARTIES, "other settings"), ChannelContext("job", (*PARTIES, "third"))):
        links = [SealedLink(hub.link("bank"), BANK, ["shop"], ChannelContext("job", PARTIES))]
        links.append(SealedLink(hub.link("shop"), SHOP, ["bank"], other))
        assert "with other settings, or other parties" in str(outcomes(links)[0])
        hub = MemoryHub(["bank", "shop"], 5.0)


@pytest.mark.parametrize(
    ("hello", "rule"),
    [
        (torch.zeros(0, dtype=torch.uint8), "a hello of 0 bytes"),
        (torch.zeros(105, dtype=torch.uint8), "a hello of 105 bytes"),
        (torch.zeros(200, dtype=torch.uint8), "install one release at all parties"),
        (torch.zeros(MAX_HELLO_BYTES + 1, dtype=torch.uint8), "expected at most 65536 bytes"),
        (torch.zeros(200), "expected at most 65536 bytes"),
        (torch.zeros(2, 100, dtype=torch.uint8), "expected at most 65536 bytes"),
        (torch.tensor(list(b"VSEA\2" + bytes(100) + b"certificate")).to(torch.uint8), "is of another job"),
    ],
)
def test_a_hello_that_is_none(hello: Tensor, rule: str) -> None:
    *links, _, _ = pair(alter=lambda tag, frame: hello if tag == Tag(Kind.SEAL) else frame)
    bank_error, shop_error = outcomes(links)
    assert isinstance(shop_error, ProtocolError)
    assert rule in str(shop_error)
    assert isinstance(bank_error, ProtocolError)
    assert "shop refused bank's handshake" in str(bank_error)


def test_a_peer_that_does_not_seal_gets_nothing() -> None:
    hub = MemoryHub(["bank", "shop"], 0.2)
    bank = SealedLink(hub.link("bank"), BANK, ["shop"], ChannelContext("job", PARTIES))
    hub.link("shop").send("bank", TAG, SECRET)
    with refused(LinkTimeout, key="seal/step 0/round 0", value=0.2, party="shop"):
        bank.receive("shop", TAG)
    assert hub.link("shop").receive("bank", Tag(Kind.SEAL)).numel() > 0


def test_a_peer_that_left_before_the_handshake() -> None:
    bank, *_, below = pair()
    below.close()
    with refused(PeerFailed, code="closed", key="seal/step 0/round 0", party="shop"):
        bank.establish()


def test_another_sealed_frame_is_no_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Channel, "confirmation", lambda channel: channel.seal(FrameKind.PING))
    for error, peer in zip(outcomes(pair()[:2]), ("shop", "bank"), strict=True):
        assert isinstance(error, ProtocolError)
        assert str(error) == f"{peer} sent a sealed ping, expected its confirmation"


def replaying(round_: int, recorded: Tensor) -> Alter:
    return lambda tag, frame: recorded if tag == Tag(Kind.SEAL, 0, round_) else frame


@pytest.mark.parametrize("rounds", [(0,), (1,), (0, 1)])
def test_a_recorded_handshake_is_worth_nothing(rounds: tuple[int, ...]) -> None:
    _, _, below, _ = established()
    recorded = dict(below.sent)
    *links, _, _ = pair(alter=lambda tag, frame: recorded[tag] if tag.round in rounds else frame)
    errors = outcomes(links)
    assert isinstance(errors[1], ProtocolError)


def test_a_reflected_handshake_is_worth_nothing() -> None:
    shop_below: list[AlteredLink] = []
    bank, shop, _, below = pair(alter=lambda tag, frame: shop_below[0].sent[tag])
    shop_below.append(below)
    errors = outcomes([bank, shop])
    assert isinstance(errors[1], ProtocolError)
    assert "is for 'shop', not 'bank'" in str(errors[1])


class Relay:
    """The server, or a third holder, between bank and shop: what one sealed for it, it opens and seals for the other.

    It has none of their keys. Its hellos are theirs with an ephemeral key of its own, or of a certificate of its own.
    """

    def __init__(self, own: Identity | None = None) -> None:
        self.signs = own is not None
        self.read: list[bytes] = []
        bank, shop = (own or Identity(of.certificate, fresh_key(), of.roots) for of in (BANK, SHOP))
        session = ChannelContext("job", PARTIES)
        # In the name of each, towards the other.
        self.ends = {"bank": Channel(bank, "bank", "shop", session), "shop": Channel(shop, "shop", "bank", session)}

    def alter(self, sender: str) -> Alter:
        """What becomes of what ``sender`` sends: its hello, its confirmation, and its messages."""
        towards, at = self.ends["shop" if sender == "bank" else "bank"], self.ends[sender]

        def passed_on(tag: Tag, frame: Tensor) -> Tensor:
            content = frame.numpy().tobytes()
            if content.startswith(b"refused: "):
                return frame
            if tag == Tag(Kind.SEAL):
                towards.hear(content)
                hello = at.hello if self.signs else at._body + content[len(at._body) :]
                assert hello[:5] == content[:5]
                assert hello[5:37] != content[5:37], "the ephemeral key is another"
                return torch.frombuffer(bytearray(hello), dtype=torch.uint8)
            opened = towards.open(content)
            self.read.append(opened.content)
            if opened.kind is FrameKind.PIECE:
                sealed: bytes | bytearray = at.seal_piece(opened.number, opened.index, opened.total, opened.content)
            else:
                sealed = at.seal(opened.kind, opened.content)
            return torch.frombuffer(bytearray(sealed), dtype=torch.uint8)

        return passed_on


def relayed(relay: Relay) -> tuple[SealedLink, SealedLink]:
    """The links of bank and shop, with somebody in the middle in both directions."""
    bank, shop, bank_below, shop_below = pair()
    bank_below.alter, shop_below.alter = relay.alter("shop"), relay.alter("bank")
    return bank, shop


def test_one_in_the_middle_that_swaps_both_ephemeral_keys_is_refused() -> None:
    """All that both send is genuine but for the ephemeral keys, which their signatures are over."""
    relay = Relay()
    errors = outcomes(relayed(relay))
    assert all(isinstance(error, ProtocolError) for error in errors)
    assert "signature" in str(errors[0])
    assert "not by the key of bank's certificate" in str(errors[1])
    assert relay.read == []


def test_the_one_in_the_middle_would_read_all_if_signatures_left_the_keys_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above tests the signatures, and not a relay that does not work."""
    signed = channels.signed_bytes
    monkeypatch.setattr(
        channels, "signed_bytes", lambda one, other, session, body: signed(one, other, session, body[:5] + body[37:])
    )
    relay = Relay()
    bank, shop = relayed(relay)
    assert outcomes([bank, shop]) == [None, None]
    bank.send("shop", TAG, SECRET)
    assert torch.equal(shop.receive("bank", TAG), SECRET)
    assert any(SECRET.numpy().tobytes() in content for content in relay.read)


def test_one_in_the_middle_with_a_certificate_of_its_own_is_refused() -> None:
    """It signs its own keys, with a certificate of the project that is of no name of theirs."""
    relay = Relay(PROJECT.identity("middle"))
    errors = outcomes(relayed(relay))
    assert "is for 'middle', not 'shop'" in str(errors[0])
    assert "is for 'middle', not 'bank'" in str(errors[1])
    assert relay.read == []


def stripped(_: Tag, frame: Tensor) -> Tensor:
    return SECRET


def emptied(_: Tag, frame: Tensor) -> Tensor:
    return frame[:0]


def garbled(position: int) -> Alter:
    def alter(_: Tag, frame: Tensor) -> Tensor:
        changed = frame.clone()
        changed[position] ^= 1
        return changed

    return alter


@pytest.mark.parametrize(
    "alter",
    [
        stripped,
        emptied,
        lambda _, frame: frame[:-1],
        lambda _, frame: frame[:FRAME_BYTES],
        lambda _, frame: torch.cat([frame, frame[:1]]),
        lambda _, frame: frame.view(1, -1),
        lambda _, frame: frame.view(torch.int8),
        *(garbled(position) for position in (0, 1, 8, 12, 15, 20, 21, 50, 84, 4000, -1)),
    ],
)
def test_what_is_not_as_sealed_is_refused(alter: Alter) -> None:
    bank, shop, _, _ = established(alter=lambda tag, frame: frame if tag.kind == Kind.SEAL else alter(tag, frame))
    bank.send("shop", TAG, SECRET)
    with refused(ProtocolError, party="bank") as caught:
        shop.receive("bank", TAG)
    assert caught.value.code in {"unsealed", "not-sealed", "short-frame"}


def test_messages_cannot_change_places() -> None:
    bank, shop, bank_below, shop_below = established()
    tags = [Tag(Kind.SHARE, 1), Tag(Kind.SHARE, 2)]
    for tag in tags:
        bank.send("shop", tag, SECRET)
        shop.send("bank", tag, SECRET)
    swapped = {tags[0]: bank_below.sent[tags[1]], tags[1]: shop_below.sent[tags[1]]}
    shop_below.alter = lambda tag, frame: swapped[tag]
    for tag, code in zip(tags, ("other-tag", "not-sealed"), strict=True):
        with refused(ProtocolError, code=code, party="bank"):
            shop.receive("bank", tag)


def test_a_message_is_opened_once() -> None:
    bank, shop, below, shop_below = established()
    tags = [Tag(Kind.SHARE, number) for number in range(4)]
    for number, tag in enumerate(tags):
        bank.send("shop", tag, torch.tensor(number))
    for number in (2, 0, 3, 1):
        assert shop.receive("bank", tags[number]).item() == number
        again = Post(below.sent[tags[number]])
        shop_below.link, kept = again, shop_below.link
        with refused(ProtocolError, code="replay", value=number + 1, party="bank"):
            shop.receive("bank", tags[number])
        shop_below.link = kept


class Post:
    """A link on which one frame arrives, whatever is asked for."""

    party = "shop"

    def __init__(self, frame: Tensor) -> None:
        self.frame = frame

    def receive(self, sender: str, tag: Tag) -> Tensor:
        return self.frame

    def comes(self, sender: str, tag: Tag, timeout_s: float) -> bool:
        return True

    def send(self, to: str, tag: Tag, tensor: Tensor) -> None: ...

    def expect(self, unread_bytes: int) -> None: ...

    def close(self) -> None: ...


def test_a_forged_number_is_not_remembered() -> None:
    bank, shop, below, shop_below = established()
    bank.send("shop", TAG, SECRET[:3])
    forged = below.sent[TAG].clone()
    forged[-1] ^= 1
    shop_below.link = Post(forged)
    with pytest.raises(ProtocolError):
        shop.receive("bank", TAG)
    shop_below.link = Post(below.sent[TAG])
    assert torch.equal(shop.receive("bank", TAG), SECRET[:3])


def test_the_limit_is_of_the_message_before_sealing() -> None:
    hub = MemoryHub(["bank", "shop"], 5.0)
    session = ChannelContext("job", PARTIES)
    bank = SealedLink(hub.link("bank"), BANK, ["shop"], session, max_message_bytes=1060)
    shop = SealedLink(hub.link("shop"), SHOP, ["bank"], session, max_message_bytes=1059)
    assert outcomes([bank, shop]) == [None, None]
    with refused(ProtocolError, code="too-large", value=1061):
        bank.send("shop", TAG, torch.zeros(1001, dtype=torch.uint8))
    bank.send("shop", TAG, torch.zeros(1000, dtype=torch.uint8))
    with refused(ProtocolError, code="too-large", value=1060, party="bank"):
        shop.receive("bank", TAG)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64])
def test_data_beyond_a_segment(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(sealing, "SEGMENT_BYTES", 8)
    bank, shop, below, shop_below = established()
    tensor = torch.arange(size).to(torch.uint8)
    bank.send("shop", TAG, tensor)
    frame = below.sent[TAG]
    assert frame.numel() == HEADER_BYTES + size + FRAME_BYTES * max(1, -(-size // 8))
    if size > 24:  # segments of one message cannot change places, or be left out
        first, each = HEADER_BYTES + 8 + FRAME_BYTES, 8 + FRAME_BYTES
        swapped = [frame[:first], frame[first + each : first + 2 * each], frame[first : first + each]]
        for forged in (
            torch.cat([*swapped, frame[first + 2 * each :]]),
            frame[:-each],
            torch.cat([frame, frame[:first]]),
        ):
            shop_below.link, kept = Post(forged), shop_below.link
            with pytest.raises(ProtocolError):
                shop.receive("bank", TAG)
            shop_below.link = kept
    assert torch.equal(shop.receive("bank", TAG), tensor)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_numbers_are_a_set_of_runs(numbers: list[int]) -> None:
    kept, reference = sealing._Numbers(), set[int]()
    for number in numbers:
        assert kept.add(number) == (number not in reference)
        reference.add(number)
        runs = sum(one - 1 not in reference for one in reference)
        assert len(kept._bounds) == 2 * runs


def test_three_holders_and_first_use_by_many_threads() -> None:
    names = ["bank", "shop", "clinic", "server"]
    hub = MemoryHub(names, 5.0)
    holders = names[:3]
    session = ChannelContext("job", tuple(names))
    links: dict[str, Link] = {"server": hub.link("server")}
    for name in holders:
        peers = [other for other in holders if other != name]
        links[name] = RecordedLink(SealedLink(hub.link(name), PROJECT.identity(name), peers, session))

    def play(name: str) -> int:
        """Every holder hears the server first, the server answers the holders: no handshake may wait for that."""
        others = [other for other in names if other != name]
        if name == "server":
            total = sum(int(links[name].receive(other, TAG)) for other in others)
            for other in others:
                links[name].send(other, TAG, torch.tensor(total))
            return total
        links[name].send("server", TAG, torch.tensor(1))
        total = int(links[name].receive("server", TAG))
        threads = [threading.Thread(target=links[name].send, args=(o, TAG, torch.tensor(2))) for o in others[:2]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return total + sum(int(links[name].receive(other, TAG)) for other in others[:2])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(play, names, timeout=30)) == [7, 7, 7, 3]


def test_a_handshake_is_made_once() -> None:
    bank, shop, below, _ = established()
    sent = dict(below.sent)
    assert outcomes([bank, shop]) == [None, None]
    assert below.sent == sent


@pytest.mark.parametrize("peers", [["bank"], ["shop", "shop"]])
def test_peers_are_others_once(peers: list[str]) -> None:
    with refused(ConfigError, key="peers"):
        SealedLink(MemoryHub(["bank", "shop"], 1.0).link("bank"), BANK, peers, ChannelContext("job", PARTIES))


def test_a_refusal_is_quoted_and_short() -> None:
    hostile = torch.tensor(list(b"refused: \x1b[2J\n" + b"x" * 60_000)).to(torch.uint8)
    *links, _, _ = pair(alter=replaying(1, hostile))
    error = str(outcomes(links)[1])
    assert "bank refused shop's handshake" in error
    assert error.isprintable()
    assert len(error) < 500
