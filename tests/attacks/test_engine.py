"""Attacks over running sites with real kits: holder C does with its certificate whatever a broker lets it do.

``test_broker`` tries every subject at a broker and ``test_supervisor`` every signer at a site, in ``make test``. Here
sites listen, and a job runs meanwhile. Each attack has its control: the same by an administrator is done.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests import nightly
from tests.deploy.consortium import HOLDERS, Consortium, job, job_processes, started
from tests.deploy.same_here import assert_same_here
from tests.link.brokers import needs_broker
from veilgraph.core.errors import LinkError
from veilgraph.deploy.control import status
from veilgraph.deploy.kit import Kit
from veilgraph.deploy.request import Request, expiry
from veilgraph.link.identity import Identity
from veilgraph.link.nats_client import Connection, token

pytestmark = [needs_broker, nightly]
HELLO, FRAME, RECEIPT = b"\x01", b"\x02", b"\x03"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consortium]:
    with started(tmp_path_factory.mktemp("attacked")) as found:
        yield found


class Thief:
    """Whoever has C's kit; its connection is made anew where the broker has ended it."""

    def __init__(self, consortium: Consortium) -> None:
        self.kit = Kit.open(consortium.network.kits["C"])
        self._connection: Connection | None = None

    def says(self, subject: str, message: bytes) -> None:
        """Publishes; what the broker refuses it says on the connection."""
        for _ in range(2):
            if self._connection is None:
                self._connection = self.kit.brokers().connect("vg.C.*.loot", threading.Event())
            with suppress(OSError):
                self._connection.publish(subject, message)
                return
            self.drop()

    def hears(self, subject: str, within_s: float = 1.0) -> list[bytes]:
        """Subscribes to a subject of its choice; what comes."""
        came: list[bytes] = []
        try:
            connection = self.kit.brokers().connect(subject, threading.Event())
        except LinkError:
            return came
        timer = threading.Timer(within_s, connection.drop)
        timer.start()
        with suppress(LinkError, OSError, ValueError):
            came.extend(bytes(message) for _, message in connection.messages())
        timer.cancel()
        return came

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.drop()
        self._connection = None


@pytest.fixture
def thief(attacked: Consortium) -> Iterator[Thief]:
    found = Thief(attacked)
    yield found
    found.drop()


def jobs_of(consortium: Consortium, party: str) -> set[str]:
    folder = Kit.open(consortium.network.kits[party]).jobs
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def said_at(consortium: Consortium, party: str) -> str:
    return (consortium.network.kits[party] / "join.log").read_text(encoding="utf-8", errors="replace")


def requested(signer: Identity, sites: Sequence[str], name: str) -> bytes:
    return Request(
        project="consortium",
        sites=list(sites),
        expires=expiry(datetime.now(UTC)),
        ask="run",
        job=job(name).model_dump(mode="json"),
        work="train",
    ).signed(signer)


@pytest.mark.parametrize("subject", ["vg.A.C.requests", "vg.A.ops@example~org.requests", "vg.A.B.requests"])
def test_a_holder_starts_nothing_at_another_under_any_subject(attacked: Consortium, thief: Thief, subject: str) -> None:
    """The broker takes requests of administrators alone; what else stands in their way is in ``test_supervisor``."""
    before, read = jobs_of(attacked, "A"), len(said_at(attacked, "A"))
    thief.says(subject, requested(thief.kit.identity(), ("A",), "stolen"))
    time.sleep(1.0)
    assert jobs_of(attacked, "A") == before
    assert "through the connection of C" not in said_at(attacked, "A")[read:]
    assert status(attacked.network.administrator).connected == (*HOLDERS, token("localhost"))


def jobs_path(consortium: Consortium, party: str) -> Path:
    return Kit.open(consortium.network.kits[party]).jobs


def test_nobody_elses_messages_are_heard(attacked: Consortium, thief: Thief) -> None:
    """While an administrator asks and sites answer, which a listener with an administrator's kit hears."""
    heard: dict[str, list[bytes]] = {}
    subjects = (">", "vg.>", "vg.A.*.*", "vg.*.A.*", "vg.ops@example~org.*.*", "$SYS.>", "_INBOX.>")

    def listen(subject: str) -> None:
        heard[subject] = thief.hears(subject, 3.0)

    listening = [threading.Thread(target=listen, args=(each,)) for each in subjects]
    for each in listening:
        each.start()
    time.sleep(0.5)
    assert status(attacked.network.administrator).connected == (*HOLDERS, "localhost")
    for each in listening:
        each.join()
    assert heard == {subject: [] for subject in subjects}


def test_a_job_under_attack_ends_as_in_one_process(attacked: Consortium, thief: Thief, tmp_path: Path) -> None:
    """C, which takes part, floods the others' subjects of this job and of requests with rubbish."""
    settings = job("attacked", train={"epochs": 12, "checkpoint_every": 4, "patience": None})
    failure: list[BaseException] = []

    def submit() -> None:
        try:
            attacked.submit(settings)
        except BaseException as error:  # noqa: BLE001  (the test's to judge)
            failure.append(error)

    submitting = threading.Thread(target=submit)
    submitting.start()
    draw, turns = random.Random(3), 0
    while submitting.is_alive():
        for job_id in jobs_of(attacked, "C"):
            for to in ("A", "B", "localhost"):
                rubbish = draw.randbytes(draw.randrange(400))
                for kind in (HELLO, FRAME, RECEIPT, b"\x09", b""):
                    thief.says(f"vg.{token(to)}.C.{job_id}", kind + rubbish)
                thief.says(f"vg.{token(to)}.B.{job_id}", FRAME + rubbish)  # which ends its connection
                thief.says(f"vg.{token(to)}.C.requests", b"VREQ" + rubbish)
        turns += 1
        submitting.join(0.02)
    assert not failure
    assert turns > 20
    assert_same_here(attacked.network, settings, HOLDERS, tmp_path)


def test_a_request_that_was_seen_starts_nothing_a_second_time(attacked: Consortium, thief: Thief) -> None:
    """That of the job under attack."""
    folders = [jobs_path(attacked, "A") / each for each in jobs_of(attacked, "A")]
    (folder,) = (each for each in folders if '"attacked"' in (each / "meta.json").read_text(encoding="utf-8"))
    request = (folder / "request").read_bytes()
    before = {party: jobs_of(attacked, party) for party in ("A", "B")}
    for party in before:
        thief.says(f"vg.{party}.C.requests", request)
    time.sleep(1.0)
    assert {party: jobs_of(attacked, party) for party in before} == before
    assert not job_processes(attacked, "A")
    assert not job_processes(attacked, "B")
