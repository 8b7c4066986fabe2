"""What of a first job counts in a second one, or in a resumed session of the first: nothing.

The broker, whoever holds a party's kit and whoever recorded the line have all messages of the first session: hellos,
frames, receipts, the request and its answers. Sequence numbers, indices and subjects begin anew in the second, so that
its messages have the very heads of the first's. A resumed session is a job of its own: it has the id of its request.
"""

import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import refused
from tests.link.brokers import PROJECT, Kits, wait_until
from tests.link.certificates import NOW
from tests.link.hostile_broker import Hand, HostileBroker
from veilgraph.core.errors import LinkTimeout, ProtocolError
from veilgraph.core.types import Kind, Tag
from veilgraph.deploy.asking import AdministratorConnection
from veilgraph.deploy.request import Answer, Request, expiry
from veilgraph.deploy.supervisor import Site, Supervisor
from veilgraph.link.channel import HEAD_BYTES, Channel, ChannelContext, FrameKind
from veilgraph.link.identity import ADMINISTRATOR, Identity, Trust
from veilgraph.link.nats import NatsLink

PARTIES = ("A", "B", "server")
FIRST, SECOND = (ChannelContext(job * 32, PARTIES, "settings") for job in "12")
OPS = "ops@example.org"
HELLO, FRAME, RECEIPT = b"\x01", b"\x02", b"\x03"
Recorded = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def kits() -> Kits:
    made = Kits()
    for name in (*PARTIES, "C"):
        made.issue(name)
    made.identities[OPS] = made.put(OPS, PROJECT.identity(OPS, role=ADMINISTRATOR))
    return made


class Session:
    """``A`` and ``B`` of a job, over a broker that records."""

    def __init__(self, kits: Kits, session: ChannelContext, hand: Hand = lambda _, payload: [payload]) -> None:
        self.recorded: Recorded = []

        def recording(subject: str, payload: bytes) -> list[bytes]:
            self.recorded.append((subject, payload))
            return list(hand(subject, payload))

        self.broker = HostileBroker(kits, recording)
        self.links = {
            me: NatsLink(me, self.broker.brokers(me), {to: to}, kits.identities[me], session, 20.0)
            for me, to in (("A", "B"), ("B", "A"))
        }

    def exchange(self, value: int) -> None:
        """Three messages there, and one back."""
        for step in range(3):
            self.links["A"].send("B", Tag(Kind.SHARE, step), torch.full((100,), value + step))
        for step in range(3):
            assert self.links["B"].receive("A", Tag(Kind.SHARE, step)).tolist() == [value + step] * 100
        self.links["B"].send("A", Tag(Kind.SHARE), torch.tensor(value))
        assert self.links["A"].receive("B", Tag(Kind.SHARE)).item() == value

    def close(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(NatsLink.close, self.links.values()))
        self.broker.close()


@pytest.fixture(scope="module")
def first(kits: Kits) -> Recorded:
    session = Session(kits, FIRST)
    session.exchange(7)
    wait_until(lambda: bool(piece_receipts(session.recorded)))  # who closes at once gives none
    session.close()
    return session.recorded


def piece_receipts(recorded: Recorded) -> list[bytes]:
    """Of A's pieces, from B."""
    told = [payload for subject, payload in recorded if payload[:1] == RECEIPT and ".A.B." in subject]
    return [each for each in told if each[1] == FrameKind.PIECE]


def moved(recorded: Recorded) -> Recorded:
    """Under the subjects of the second job."""
    return [(subject.replace(FIRST.job, SECOND.job), payload) for subject, payload in recorded]


@pytest.mark.parametrize("replayed", ["the first job's", "its own"])
def test_messages_of_a_first_job_change_nothing_in_a_second(
    kits: Kits, first: Recorded, replayed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the second job's own hellos, and between all of its messages. Its own, repeated, are the control."""
    own = replayed == "its own"
    caplog.set_level(logging.WARNING, logger="veilgraph")
    before: Recorded = [] if own else moved(first)

    def replaying(subject: str, payload: bytes) -> list[bytes]:
        recorded = begun[0].recorded if begun else []  # the first messages come while the session begins
        if len(recorded) > 40:  # each is answered, and the answer repeated in turn
            return [payload]
        again = [each for at, each in (recorded[-3:] if own else before) if at == subject]
        return [payload, *again]

    begun: list[Session] = []
    session = Session(kits, SECOND, replaying)
    begun.append(session)
    for subject, payload in before:
        session.broker.tell(subject, payload)
    session.exchange(1000)
    session.close()
    said = [record.getMessage() for record in caplog.records if "refused a forged" in record.getMessage()]
    assert any("hello" in line for line in said) != own, said
    assert any("piece" in line or "confirmation" in line for line in said) != own, said


def test_receipts_of_a_first_job_acknowledge_nothing_in_a_second(kits: Kits, first: Recorded) -> None:
    """Both jobs' pieces have the same heads. What nobody has taken is sent again until it is."""
    receipts = piece_receipts(moved(first))
    heads = {payload[1 : 1 + HEAD_BYTES] for payload in receipts}
    lost = set[bytes]()

    def hand(subject: str, payload: bytes) -> list[bytes]:
        head = payload[1 : 1 + HEAD_BYTES]
        if payload[:1] == FRAME and payload[1] == FrameKind.PIECE and head in heads - lost:
            lost.add(head)
            for each in receipts:
                session.broker.tell(f"vg.A.B.{SECOND.job}", each)
            return []
        return [payload]

    session = Session(kits, SECOND, hand)
    session.exchange(1000)
    session.close()
    assert lost == heads, "the control: receipts for these heads were repeated"


def test_a_hello_is_for_one_session_and_one_receiver(kits: Kits) -> None:
    """Of a thief of the server's kit, to whom ``A`` said hello in both sessions; and of who heard ``A`` say it to B."""

    def channel(me: str, to: str, session: ChannelContext) -> Channel:
        return Channel(kits.identities[me], me, to, session)

    bank = channel("B", "A", SECOND)
    for said, code in (
        (channel("A", "B", FIRST).hello, "other-job"),
        (channel("A", "server", SECOND).hello, "signature"),
        (channel("server", "B", SECOND).hello, "other-name"),
    ):
        with refused(ProtocolError, code=code):
            bank.hear(said)
        assert not bank.agreed
    assert bank.hear(channel("A", "B", SECOND).hello), "the control"


def test_two_sessions_share_no_key_though_numbers_begin_anew(kits: Kits) -> None:
    """Even two of one id, as if a request had been taken twice: equal nonces and content, and no equal byte string."""
    sealed, receipts = set[bytes](), set[bytes]()
    for session in (FIRST, FIRST, SECOND):
        a, b = (Channel(kits.identities[me], me, to, session, extra=b"extra") for me, to in (("A", "B"), ("B", "A")))
        a.hear(b.hello)
        b.hear(a.hello)
        b.open(a.confirmation())
        piece = bytes(a.seal_piece(1, 0, 5, b"equal"))
        assert b.open(piece).content == b"equal", "the control"
        for old in sealed:
            with refused(ProtocolError, code="not-sealed"):
                b.open(old)
        receipt = b.receipt(b.open(piece))
        assert a.received(piece, receipt)
        assert not any(a.received(piece, old) for old in receipts)
        sealed |= {piece, a.confirmation()}
        receipts.add(receipt)
    assert len(sealed) == 6
    assert len({each[HEAD_BYTES : HEAD_BYTES + 5] for each in sealed}) == 6


def test_a_stranger_of_the_second_job_is_not_heard(kits: Kits, caplog: pytest.LogCaptureFixture) -> None:
    """``C`` took part in the first job; a broker that forgets its rules carries what it says."""
    caplog.set_level(logging.WARNING, logger="veilgraph")
    session = Session(kits, SECOND)
    thief = Channel(kits.identities["C"], "C", "B", ChannelContext(SECOND.job, ("A", "B", "C")))
    greeting = HELLO + len(thief.hello).to_bytes(4, "little") + thief.hello
    wait_until(lambda: len(session.broker.subscribed) == 2)
    for of in ("C", "A"):
        session.broker.tell(f"vg.B.{of}.{SECOND.job}", greeting)
    session.exchange(5)
    session.close()
    said = [record.getMessage() for record in caplog.records]
    assert any("under vg.B.C" in line for line in said)
    assert any("forged hello that claims to be of A" in line for line in said)


# The request


def request(identity: Identity, **changed) -> Request:
    fields = {"project": "cards", "sites": ["A"], "expires": expiry(datetime.now(UTC)), "ask": "run"}
    return Request.model_validate({**fields, "job": {"name": "x"}, "work": "train", **changed})


def site(kits: Kits, folder: Path) -> Supervisor:
    one = kits.identities["A"]
    command = [sys.executable, "-c", "pass"]
    return Supervisor(Site("A", "cards", folder, lambda: Trust(one.roots), lambda: one, lambda _: command), os.environ)


def test_a_request_of_a_first_job_starts_nothing_after_the_site_was_started_again(kits: Kits, tmp_path: Path) -> None:
    """Nor with a word of it changed, as from train to a resumed session. A request of its own resumes: the control."""
    ops, log = kits.identities[OPS], f"jobs/{'{}'}/log.txt"
    made = request(ops)
    message = made.signed(ops)
    running = site(kits, tmp_path / "jobs")
    assert running.answer(OPS, message, NOW) is not None
    wait_until(lambda: running.running() == 0)
    running.close()
    at = tmp_path / log.format(made.id)
    stamp = at.stat().st_mtime_ns
    again = site(kits, tmp_path / "jobs")
    assert again.answer(OPS, message, NOW) is not None, "its answer may have been lost"
    for old, new in ((b'"resume":false', b'"resume":true'), (made.id.encode(), b"f" * 32)):
        assert message.count(old) == 1
        changed = bytearray(message.replace(old, new))
        changed[4:8] = (int.from_bytes(message[4:8], "little") + len(new) - len(old)).to_bytes(4, "little")
        assert again.answer(OPS, bytes(changed), NOW) is None
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [made.id]
    assert again.running() == 0
    assert at.stat().st_mtime_ns == stamp
    resumed = request(ops, resume=True)
    assert again.answer(OPS, resumed.signed(ops), NOW) is not None
    assert {path.name for path in (tmp_path / "jobs").iterdir()} == {made.id, resumed.id}
    again.close()


def test_an_answer_to_a_first_request_is_none_to_a_second(kits: Kits) -> None:
    """A site's word that a job runs, repeated by the broker when it is asked about another."""
    site_identity, old = kits.identities["A"], list[bytes]()
    replays = False

    def hand(subject: str, payload: bytes) -> list[bytes]:
        if not subject.endswith(".requests"):
            return [payload]
        asked = payload[16:].split(b'"id":"', 1)[1][:32].decode()
        answer = Answer(request=asked, site="A", content={"jobs": []}).signed(site_identity)
        old.append(answer)
        there.tell(f"vg.{OPS.replace('.', '~')}.A.{asked}", old[0] if replays else answer)
        return []

    there = HostileBroker(kits, hand)
    with closing(AdministratorConnection(OPS, "cards", kits.identities[OPS], there.brokers(OPS))) as ops:
        assert set(ops.ask(["A"], 5.0, ask="status")) == {"A"}, "the control"
        replays = True
        assert ops.ask(["A"], 1.0, ask="status") == {}
    there.close()
    assert len(old) > 1


@pytest.mark.parametrize(
    "content",
    [
        {"jobs": []},
        {},
        {"jobs": 7},
        {"jobs": [{}]},
        {"jobs": [{"job": "x", "state": "done"}]},
        {"jobs": [{"job": "0" * 32, "state": "won"}]},
        {"jobs": [{"job": "0" * 32, "state": "done", "submitted": "soon"}]},
        {"jobs": [{"job": "0" * 32, "state": "done", "submitted": 1e300}]},
        {"jobs": [{"job": "0" * 32, "state": "failed", "failure": {"kind": 1}}]},
        {"jobs": [{"job": "0" * 32, "state": "failed", "failure": {"error": "x" * 9000}}]},
        {"jobs": [], "more": 1},
    ],
    ids=str,
)
def test_a_site_whose_word_is_of_another_form_has_not_answered(kits: Kits, content: dict[str, Any]) -> None:
    """It has a key and signs what it likes. The first is the control."""

    def hand(subject: str, payload: bytes) -> list[bytes]:
        asked = payload[16:].split(b'"id":"', 1)[1][:32].decode()
        answer = Answer(request=asked, site="A", content=content).signed(kits.identities["A"])
        there.tell(f"vg.{OPS.replace('.', '~')}.A.{asked}", answer)
        return []

    there = HostileBroker(kits, hand)
    with closing(AdministratorConnection(OPS, "cards", kits.identities[OPS], there.brokers(OPS))) as ops:
        assert ops.jobs(["A"], 5.0) == ({"A": []} if content == {"jobs": []} else {})
    there.close()


def test_nothing_of_a_first_job_is_a_sign_of_life_in_a_second(kits: Kits, first: Recorded) -> None:
    """A party that never comes is missed, whatever is repeated in its name."""
    there = HostileBroker(kits)
    link = NatsLink(
        "B", there.brokers("B"), {"A": "A"}, kits.identities["B"], SECOND, 10.0, connect_s=1.5, silence_s=1.5
    )
    wait_until(lambda: bool(there.subscribed))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(failure_of, link)
        while not waiting.done():
            for subject, payload in moved(first):
                there.tell(subject, payload)
            time.sleep(0.05)
        assert waiting.result() == "silent"
    link.abort("over")
    there.close()


def failure_of(link: NatsLink) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (its code is judged)
        link.receive("A", Tag(Kind.SHARE))
    assert not isinstance(caught.value, LinkTimeout)
    return str(getattr(caught.value, "code", ""))
