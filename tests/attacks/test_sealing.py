"""The broker against the channels of a job: it sends anything in anybody's name, at any moment.

Beside each attack it is made where its protection is taken away, and succeeds.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from tests.attacks.relay import (
    FRAME,
    HELLO,
    HOST,
    IDENTITIES,
    RECEIPT,
    Network,
    Relayed,
    await_that,
    identity,
    network,
)
from tests.errors import refused
from tests.link.certificates import Project
from tests.paradigms.runs import assert_same_run, saved_job
from veilgraph.core.errors import LinkError, LinkTimeout, ProtocolError
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link import channel as channels
from veilgraph.link import identity as identities
from veilgraph.link import sealed as peer
from veilgraph.link.channel import (
    HEAD_BYTES,
    RECEIPT_BYTES,
    Buffer,
    Channel,
    ChannelContext,
    Disagreement,
    Frame,
    FrameKind,
)
from veilgraph.link.codec import encode
from veilgraph.link.identity import Identity
from veilgraph.link.mailbox import Mailbox
from veilgraph.link.nats import NatsLink
from veilgraph.link.refusals import MAX_KINDS
from veilgraph.link.sealed import PIECE_BYTES, Outgoing, Peer
from veilgraph.runtime.launch import jobs
from veilgraph.runtime.launch.jobs import train

SEED = Tag(Kind.SEED)
TRUE, FALSE = torch.arange(32, dtype=torch.uint8), torch.full((32,), 66, dtype=torch.uint8)
LARGE = torch.arange(2 * PIECE_BYTES // 8 + 7)
"""Three pieces."""
HOLDERS_AND_SERVER = ("A", "B", SERVER)


@pytest.fixture(scope="module")
def broker() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def net(broker: Network) -> Iterator[Network]:
    yield broker
    broker.close()


def believing_open(channel: Channel, frame: Buffer) -> Frame:
    """``Channel.open`` of somebody who believes what is written on a frame."""
    channels._agreed(channel._opening, "nobody")
    kind, number, index, total = channels._HEAD.unpack_from(frame)
    return Frame(FrameKind(kind), number, index, total, bytes(frame[HEAD_BYTES:-16]))


def head(kind: int, number: int, index: int = 0, total: int = 0) -> bytes:
    return channels._HEAD.pack(kind, number, index, total)


def false_piece(tag: Tag, tensor: Tensor) -> bytes:
    """The first piece of the first message, as somebody without keys makes it."""
    header, data = encode(tag, tensor)
    return head(FrameKind.PIECE, 1, 0, len(header) + data.nbytes) + header + bytes(data) + bytes(16)


def greeting(channel: Channel, frame: bytes = b"") -> bytes:
    return len(channel.hello).to_bytes(4, "little") + channel.hello + frame


def pair(session: ChannelContext, one: PartyId = "A", other: PartyId = "B") -> tuple[Channel, Channel]:
    """Two ends of a channel, after the handshake."""
    ends = Channel(IDENTITIES[one], one, other, session), Channel(IDENTITIES[other], other, one, session)
    ends[0].hear(ends[1].hello)
    ends[1].hear(ends[0].hello)
    for one_end, other_end in (ends, ends[::-1]):
        one_end.open(other_end.confirmation())
    return ends


# The server's name in the hands of a holder

FOREIGN = Project().identity(HOST)
THIEVES = {
    "a holder": IDENTITIES["C"],
    "who has the server's certificate, not its key": Identity(
        IDENTITIES[SERVER].certificate, IDENTITIES["C"].key, IDENTITIES["C"].roots
    ),
    "an administrator": identity("ops@example.org", role="project_admin"),
    "an administrator of the host's name": identity(SERVER, role="project_admin"),
    "another project's server": Identity(FOREIGN.certificate, FOREIGN.key, IDENTITIES["C"].roots),
}


def seed_after_a_false_one(net: Network, thief: Identity) -> Tensor:
    """What A takes for the server's seed when a thief, in the server's name, was there first with all it can make."""
    session = net.session("A", SERVER)
    link = net.link("A", session)
    false = Channel(thief, SERVER, "A", session)
    net.forge("A", FRAME, false_piece(SEED, FALSE), SERVER)
    net.forge("A", HELLO, greeting(false), SERVER)
    await_that(lambda: net.frames("A", SERVER, HELLO))  # whoever relays has read it
    greeted = net.frames("A", SERVER, HELLO)[0]
    false.hear(greeted[4 : 4 + int.from_bytes(greeted[:4], "little")])
    net.forge("A", HELLO, greeting(false, false.confirmation()), SERVER)
    net.forge("A", FRAME, bytes(Outgoing(false, *encode(SEED, FALSE)).piece(0)), SERVER)
    net.link(SERVER, session).send("A", SEED, TRUE)
    return link.receive(SERVER, SEED)


def at_once(end: Callable[[NatsLink], None], links: Sequence[NatsLink]) -> None:
    """End all links: each waits some time for peers that do not answer."""
    with ThreadPoolExecutor(len(links)) as pool:
        list(pool.map(end, links))


@pytest.mark.parametrize("thief", THIEVES.values(), ids=THIEVES.keys())
def test_a_forged_seed_is_not_the_servers(net: Network, caplog: pytest.LogCaptureFixture, thief: Identity) -> None:
    with caplog.at_level(logging.WARNING, "veilgraph"):
        assert torch.equal(seed_after_a_false_one(net, thief), TRUE)
    for kind in ("hello", "piece"):
        assert f"A refused a forged {kind} that claims to be of server" in caplog.text


def test_without_certificates_a_forged_seed_is_the_servers(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Identity, "verify_peer", lambda *_: None)
    assert torch.equal(seed_after_a_false_one(net, IDENTITIES["C"]), FALSE)
    at_once(lambda link: link.abort("the true server cannot deliver any more"), net.links)


@pytest.mark.parametrize(
    ("claimed", "signer"),
    [
        (SERVER, IDENTITIES["B"]),
        ("B", IDENTITIES[SERVER]),
        ("B", IDENTITIES["C"]),
        ("B", identity("B", role="project_admin")),
        (SERVER, identity(SERVER, role="lead")),
        (HOST, IDENTITIES[SERVER]),
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_no_certificate_passes_for_anothers(
    claimed: PartyId, signer: Identity, checked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ChannelContext("job", ("A", "B", "C", SERVER, HOST))
    ours, theirs = Channel(IDENTITIES["A"], "A", claimed, session), Channel(signer, claimed, "A", session)
    if checked:
        with pytest.raises(ProtocolError, match="certificate is"):
            ours.hear(theirs.hello)
    else:
        monkeypatch.setattr(identities, "fault_of_role", lambda *_, **__: None)
        ours.hear(theirs.hello)
    assert ours.agreed != checked


# Frames that nobody sealed

FORGED: Mapping[str, bytes] = {
    "first piece": false_piece(SEED, FALSE),
    "piece of 4 GiB": head(FrameKind.PIECE, 1, 0, 4 << 30) + bytes(80),
    "piece of a later message": head(FrameKind.PIECE, 7, 3, 100) + bytes(80),
    "confirmation": head(FrameKind.CONFIRMATION, 1) + bytes(16),
    "ping": head(FrameKind.PING, 1 << 60) + bytes(16),
    "stop notice": head(FrameKind.STOPPED, 1) + bytes(16),
    "frame of no kind": head(77, 1) + bytes(16),
    "short frame": head(FrameKind.PIECE, 1),
    "nothing": b"",
}


def exchange_under(net: Network, attack: Callable[[], None]) -> list[Tensor]:
    """What A gets of the server and of B, attacked before, in and after the handshake, and between messages."""
    session = net.session(*HOLDERS_AND_SERVER)
    links = {"A": net.link("A", session, 5.0)}
    attack()
    links |= {name: net.link(name, session, 5.0) for name in ("B", SERVER)}
    attack()
    got = []
    for step in range(2):
        for name in ("B", SERVER):
            links[name].send("A", Tag(Kind.SEED, step), TRUE if step else LARGE)
            attack()
            got.append(links["A"].receive(name, Tag(Kind.SEED, step)))
    attack()
    return got


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
def test_frames_that_nobody_sealed_change_nothing(net: Network, forged: bytes) -> None:
    def attack() -> None:
        for to in HOLDERS_AND_SERVER:
            for origin in (*HOLDERS_AND_SERVER, "C", "C.job", "", "nobody"):
                for topic in (FRAME, HELLO):
                    net.forge(to, topic, forged, origin)

    got = exchange_under(net, attack)
    assert all(torch.equal(one, other) for one, other in zip(got, (LARGE, LARGE, TRUE, TRUE), strict=True))


def pinged(net: Network, one: PartyId, other: PartyId) -> bool:
    return any(frame[0] == FrameKind.PING for frame in net.frames(one, other))


@pytest.mark.parametrize("name", ["first piece", "stop notice"])
def test_who_believes_what_is_written_on_a_frame_is_lost(
    net: Network, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One forged frame, between the handshake and the first message."""
    session = net.session("A", SERVER)
    link, server = net.link("A", session, 5.0), net.link(SERVER, session, 5.0)
    for one, other in (("A", SERVER), (SERVER, "A")):  # a ping follows the handshake
        await_that(partial(pinged, net, one, other))
    monkeypatch.setattr(Channel, "open", believing_open)
    net.forge("A", FRAME, FORGED[name], SERVER)
    if name == "first piece":
        assert torch.equal(link.receive(SERVER, SEED), FALSE)
    else:
        with pytest.raises(LinkError, match="closed its link"):
            link.receive(SERVER, SEED)
    at_once(lambda link: link.abort("the other believes anything"), [link, server])


@pytest.mark.parametrize("field", ["kind", "number", "index", "total", "content", "tag"])
@pytest.mark.parametrize("believed", [False, True])
def test_a_changed_frame_is_not_opened(field: str, believed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reordering is another number or index, truncation another total."""
    ours, theirs = pair(ChannelContext("job", ("A", "B")))
    frame = theirs.seal_piece(1, 2, 300, b"content")
    at = {"kind": 0, "number": 1, "index": 9, "total": 13, "content": HEAD_BYTES, "tag": -1}[field]
    frame[at] ^= 1
    if believed and field != "tag":
        monkeypatch.setattr(Channel, "open", believing_open)
        ours.open(frame)
    else:
        with refused(ProtocolError, code="not-sealed", party="B"):
            ours.open(frame)


@pytest.mark.parametrize("cut", [1, 16, 17, 30])
def test_a_frame_that_was_cut_is_not_opened(cut: int) -> None:
    ours, theirs = pair(ChannelContext("job", ("A", "B")))
    with pytest.raises(ProtocolError):
        ours.open(theirs.seal_piece(1, 0, 20, bytes(20))[:-cut])


# Frames that somebody sealed, for another place, or before


def test_all_that_was_ever_sent_sent_again_changes_nothing(net: Network) -> None:
    """To the same party, back to its sender, to third parties, in every name; and in the next job."""
    old: list[tuple[bytes, bytes]] = []

    def attack() -> None:
        new = [(message.topic, message.payload) for message in list(net.came)]
        for topic, payload in (*old, *new[-12:]):
            if len(payload) < 10_000:
                for to in HOLDERS_AND_SERVER:
                    for origin in HOLDERS_AND_SERVER:
                        net.forge(to, topic, payload, origin)

    for _ in range(2):
        got = exchange_under(net, attack)
        assert all(torch.equal(one, other) for one, other in zip(got, (LARGE, LARGE, TRUE, TRUE), strict=True))
        old.extend((message.topic, message.payload) for message in net.came[:8])
        net.close()


@pytest.mark.parametrize("bound", [True, False])
def test_a_hello_of_another_job_is_none_of_this(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not bound:
        monkeypatch.setattr(channels, "job_digest", lambda session: bytes(32))
        monkeypatch.setattr(
            channels, "signed_bytes", lambda *parts: channels.length_prefixed(parts[0].encode(), parts[3])
        )
    old = Channel(IDENTITIES["B"], "B", "A", ChannelContext("old", ("A", "B")))
    ours, theirs = (
        Channel(IDENTITIES[one], one, other, ChannelContext("new", ("A", "B")))
        for one, other in (("A", "B"), ("B", "A"))
    )
    if bound:
        with refused(ProtocolError, code="other-job", party="B"):
            ours.hear(old.hello)
        assert ours.hear(theirs.hello)
    else:
        assert ours.hear(old.hello)
        with refused(ProtocolError, code="hello-again", party="B"):
            ours.hear(theirs.hello)


@pytest.mark.parametrize("bound", [True, False])
def test_a_hello_that_the_server_made_for_c_is_none_for_a(bound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """C passes on what it was sent itself: A would have keys with nobody, and refuse the true hello afterwards."""
    if not bound:
        monkeypatch.setattr(
            channels, "signed_bytes", lambda *parts: channels.length_prefixed(parts[0].encode(), parts[3])
        )
    session = ChannelContext("job", ("A", "C", SERVER))
    ours = Channel(IDENTITIES["A"], "A", SERVER, session)
    to_c, to_us = (Channel(IDENTITIES[SERVER], SERVER, receiver, session) for receiver in ("C", "A"))
    if bound:
        with refused(ProtocolError, code="signature", party="server"):
            ours.hear(to_c.hello)
        assert ours.hear(to_us.hello)
    else:
        assert ours.hear(to_c.hello)
        with refused(ProtocolError, code="hello-again", party="server"):
            ours.hear(to_us.hello)


def test_frames_of_another_job_are_none_of_this() -> None:
    _, old = pair(ChannelContext("old", ("A", "B")))
    ours, _ = pair(ChannelContext("new", ("A", "B")))
    for frame in (old.confirmation(), old.seal(FrameKind.PING), old.seal_piece(1, 0, 60, bytes(60))):
        with pytest.raises(ProtocolError):
            ours.open(frame)


class _OneKey(channels.Direction):
    """As if both directions had one key."""

    def __init__(self, secret: bytes, transcript: bytes, ciphertext: bytes, session: ChannelContext, *names: PartyId):
        super().__init__(bytes(len(secret)), bytes(len(transcript)), ciphertext, session, *sorted(names))


@pytest.mark.parametrize("directed", [True, False])
def test_a_frame_is_not_opened_by_who_sealed_it(directed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not directed:
        monkeypatch.setattr(channels, "Direction", _OneKey)
    ours, _ = pair(ChannelContext("job", ("A", "B")))
    frame = ours.seal_piece(1, 0, 60, bytes(60))
    if directed:
        with pytest.raises(ProtocolError):
            ours.open(frame)
    else:
        assert ours.open(frame).content == bytes(60)


@pytest.mark.parametrize("remembered", [True, False])
def test_repeated_frames_do_not_keep_a_dead_peer_alive(remembered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(peer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    if not remembered:
        monkeypatch.setattr(Channel, "renews", lambda *_: True)
    session = ChannelContext("job", ("A", "B"))
    mailbox = Mailbox("A", ["B"])
    ours = Channel(IDENTITIES["A"], "A", "B", session)
    theirs = Channel(IDENTITIES["B"], "B", "A", session)
    known = Peer("B", ours, mailbox, max_message_bytes=1000, silence_s=20, connect_s=120, on_extra=None)
    known.hear(greeting(theirs))
    theirs.hear(ours.hello)
    sent = [theirs.confirmation(), *(theirs.seal(FrameKind.PING) for _ in range(3))]
    sent += [bytes(Outgoing(theirs, *encode(SEED, TRUE)).piece(0))]
    for frame in sent:
        known.take(frame)
    for _ in range(30):
        now[0] += 1
        known.hear(greeting(theirs))
        for frame in sent:
            known.take(frame)
        with pytest.raises(ProtocolError):
            known.take(head(FrameKind.PING, 1 << 60) + bytes(16))
    assert known.silent() == remembered
    assert torch.equal(mailbox.take("B", SEED, 0), TRUE)


# What the broker says of deliveries


def lost_with_a_forged_receipt(net: Network) -> Callable[[Relayed], bool]:
    """Loses the first pieces to A, one for each of ``LARGE``, and tells the sender that A has them."""
    left = [3]

    def drop(message: Relayed) -> bool:
        if message.topic != FRAME or message.payload[0] != FrameKind.PIECE or not left[0]:
            return False
        left[0] -= 1
        net.forge(message.origin, RECEIPT, message.payload[:HEAD_BYTES] + bytes(RECEIPT_BYTES), message.to)
        return True

    return drop


@pytest.mark.parametrize("checked", [True, False])
def test_a_receipt_that_the_receiver_did_not_give_is_none(
    net: Network, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(Channel, "received", lambda *_: True)
    session = net.session("A", SERVER)
    link, server = net.link("A", session, 20.0 if checked else 2.0), net.link(SERVER, session)
    net.drop = lost_with_a_forged_receipt(net)
    server.send("A", SEED, LARGE)
    if checked:
        assert torch.equal(link.receive(SERVER, SEED), LARGE)
    else:
        with pytest.raises(LinkTimeout):
            link.receive(SERVER, SEED)


# Whole jobs


def test_other_settings_or_parties_end_the_session_at_once(net: Network) -> None:
    """Said by the peer itself, under its signature: so it is believed, and nobody waits."""
    session = net.session("A", SERVER)
    for other in (
        ChannelContext(session.job, ("A", SERVER), "others"),
        ChannelContext(session.job, ("A", "C", SERVER)),
    ):
        with refused(Disagreement, code="other-settings", party="server"):
            Channel(IDENTITIES["A"], "A", SERVER, session).hear(Channel(IDENTITIES[SERVER], SERVER, "A", other).hello)
    links = [net.link("A", session), net.link(SERVER, ChannelContext(session.job, ("A", SERVER), "others"))]

    def take_part(link: NatsLink) -> None:
        other_name = SERVER if link.party == "A" else "A"
        with refused(ProtocolError, code="other-settings", party=other_name):
            link.receive(other_name, SEED)
        link.stop("ProtocolError")  # as a party's part of a job does, with its own hello

    at_once(take_part, links)


def over_broker(net: Network, attack: Callable[[], None]) -> Callable[..., None]:
    """Stands in for ``run_threads``: over the broker, attacked as long as the job runs."""

    def run(programs: Mapping[PartyId, Callable[[Link], None]], timeout_s: float, tick: object, wire: object) -> None:
        session = net.session(*programs)
        over = threading.Event()

        def keep_attacking() -> None:
            while not over.is_set():
                attack()

        attacking = threading.Thread(target=keep_attacking)
        attacking.start()

        def play(party: PartyId) -> None:
            with closing(net.link(party, session, timeout_s)) as link:
                programs[party](link)

        try:
            with ThreadPoolExecutor(len(programs)) as pool:
                for ended in [pool.submit(play, party) for party in programs]:
                    ended.result()
        finally:
            over.set()
            attacking.join()

    return run


def test_a_job_under_attack_is_the_job_in_memory(
    net: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = saved_job(tmp_path / "data", {"train": {"epochs": 3}})
    alone = train(settings, tmp_path / "alone")
    turns = [0]

    def attack() -> None:
        """Forged frames, a replay and a reflection, one of each at a time."""
        turns[0] += 1
        names = list(HOLDERS_AND_SERVER)
        to, origin = names[turns[0] % 3], names[(turns[0] // 3) % 3]
        forged = list(FORGED.values())[turns[0] % len(FORGED)]
        net.forge(to, FRAME, forged, origin)
        session = ChannelContext(f"job {turns[0]}", tuple(names))
        if turns[0] % 20 == 0 and to != origin:
            net.forge(to, HELLO, greeting(Channel(IDENTITIES["C"], origin, to, session)), origin)
        if net.came:
            seen = net.came[turns[0] % len(net.came)]
            net.forge(seen.to, seen.topic, seen.payload, origin)
            net.forge(seen.origin, seen.topic, seen.payload, origin)

    monkeypatch.setattr(jobs, "run_threads", over_broker(net, attack))
    with caplog.at_level(logging.WARNING, "veilgraph"):
        attacked = train(settings, tmp_path / "attacked")
    assert_same_run(alone, attacked)
    assert alone.summary["sent_bytes"] == attacked.summary["sent_bytes"]
    assert turns[0] > 100
    lines = [record.getMessage() for record in caplog.records if "forged" in record.getMessage()]
    for kind in ("piece", "ping", "stop notice", "hello", "confirmation"):
        assert any(f"forged {kind}" in line for line in lines), kind
    assert len(lines) < 3 * MAX_KINDS + 10, "first ones of each source and kind, and counts at the end"
    assert any(" more of " in line for line in lines)
