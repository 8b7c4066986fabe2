"""A broker with the configuration that ships, and participants who try what their certificates do not allow.

Each attack has its positive control: what is allowed comes through, over the same connections.
"""

import re
import resource
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.errors import refused
from tests.link.brokers import BINARY, PROJECT, Broker, Kits, all_to_all, free_port, needs_broker, wait_until
from tests.link.certificates import DAY, NOW, Project, fresh_key
from veilgraph.core.errors import ConfigError, LinkError
from veilgraph.deploy.broker import MAX_CONNECTIONS_OF_ONE, Cluster, Participant, configuration
from veilgraph.link.identity import Identity
from veilgraph.link.nats import WINDOW_BYTES
from veilgraph.link.nats_client import IN_FLIGHT_BYTES, MAX_PAYLOAD_BYTES, BrokerAddress, Connection

pytestmark = needs_broker
NAMES = ("A", "B", "A.B", "broker.example.org", "ops@example.org")
"""``A`` attacks. A name with dots must not be several tokens, and one must not be the prefix of another."""
TOKENS = ("A", "B", "A~B", "broker~example~org", "ops@example~org", "Z", "A.B", "*", ">")


@pytest.fixture(scope="module")
def kits() -> Kits:
    return Kits(*NAMES)


@pytest.fixture(scope="module")
def broker(kits: Kits) -> Iterator[Broker]:
    with Broker(kits).running() as made:
        yield made


class Raw:
    """A connection that says whatever it likes."""

    def __init__(self, broker: Broker, file: str | None, options: bytes = b'{"verbose":false}') -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(broker.kits.path / "brokers.pem")
        if file is not None:
            context.load_cert_chain(broker.kits.path / f"{file}.crt", broker.kits.path / f"{file}.key")
        plain = socket.create_connection((broker.listen.host, broker.listen.port), 5.0)
        try:
            self.socket = context.wrap_socket(plain, server_hostname="localhost")
            self.socket.sendall(b"CONNECT " + options + b"\r\nPING\r\n")
            self.said = self.until(rb"PONG\r\n|-ERR[^\r]*\r\n")
        except BaseException:
            plain.close()
            raise

    def until(self, pattern: bytes) -> bytes:
        """What comes, up to what matches or to the end of the connection."""
        said = b""
        with suppress(OSError):
            while not re.search(pattern, said) and (data := self.socket.recv(65536)):
                said += data
        return said

    def ask(self, said: bytes) -> bytes:
        """What comes of it: up to the answer to a question that follows it."""
        with suppress(OSError):
            self.socket.sendall(said + b"PING\r\n")
        return self.until(rb"PONG\r\n|-ERR[^\r]*\r\n")

    def close(self) -> None:
        self.socket.close()


def listening(broker: Broker, stack: ExitStack) -> dict[str, Raw]:
    """All but ``A``, each subscribed to all that it may."""
    found = {}
    for name in NAMES[1:]:
        found[name] = stack.enter_context(closing(Raw(broker, name)))
        assert b"-ERR" not in found[name].ask(b"SUB vg.%b.*.* 1\r\n" % name.replace(".", "~").encode())
    return found


def heard(ends: dict[str, Raw]) -> set[bytes]:
    """Subjects of the messages that came since it was last asked."""
    time.sleep(0.05)
    return {subject for end in ends.values() for subject in re.findall(rb"MSG (\S+) ", end.ask(b""))}


def test_only_ones_own_subjects_can_be_published(broker: Broker) -> None:
    own = {b"vg.%b.A.job" % to.encode() for to in ("B", "A~B", "broker~example~org", "ops@example~org")}
    subjects = [f"vg.{to}.{of}.job" for to, of in product(TOKENS, TOKENS)]
    subjects += [
        "vg.B.A",
        "vg.B.A.job.more",
        "vg.B.A.*",
        "vg.B.A.>",
        "vg",
        "vg.>",
        ">",
        "B",
        "_INBOX.x",
        "$JS.API.INFO",
    ]
    subjects += ["$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.INFO", "$SYS.REQ.ACCOUNT.participant-B.CONNZ", "$JS.API.INFO"]
    with ExitStack() as stack:
        ends = listening(broker, stack)
        allowed = set()
        for subject in map(str.encode, subjects):
            with closing(Raw(broker, "A")) as a:
                if b"-ERR" not in a.ask(b"PUB %b 2\r\nhi\r\n" % subject):
                    allowed.add(subject)
        assert allowed == own
        assert heard(ends) == own | {b"vg.B.A.*", b"vg.B.A.>"}, "those are taken by the letter, as A's own"


def test_a_reply_subject_leads_nowhere(broker: Broker) -> None:
    with ExitStack() as stack:
        ends, a = listening(broker, stack), stack.enter_context(closing(Raw(broker, "A")))
        assert b"-ERR" not in a.ask(b"PUB vg.B.A.job vg.ops@example~org.B.job 2\r\nhi\r\n")
        assert heard(ends) == {b"vg.B.A.job"}
        # B answers it as a library would: it would be a message of B's own, were it not a subject of nobody's
        assert b"-ERR" not in ends["B"].ask(b"PUB vg.ops@example~org.B.job 2\r\nhi\r\n")
        assert heard(ends) == {b"vg.ops@example~org.B.job"}


def test_only_ones_own_subjects_can_be_subscribed(broker: Broker) -> None:
    subjects = [f"vg.{to}.{of}.job" for to, of in product(TOKENS, TOKENS)]
    subjects += [
        ">",
        "*",
        "*.>",
        "vg.>",
        "vg.*",
        "vg.A",
        "vg.A.B",
        "vg.A.*",
        "*.A.B.job",
        "vg.*.*.*",
        "_INBOX.>",
        "_R_.>",
    ]
    subjects += ["$SYS.>", "$SYS.ACCOUNT.participant-B.CONNECT", "$JS.>", "$JS.API.>", "$G.>", "$SRV.>", "vg.B.> queue"]
    allowed, came = set(), set()
    with ExitStack() as stack:
        b, other = (stack.enter_context(closing(Raw(broker, name))) for name in ("B", "ops@example.org"))
        for subject in map(str.encode, subjects):
            with closing(Raw(broker, "A")) as a:
                if b"-ERR" in a.ask(b"SUB %b 1\r\n" % subject):
                    continue
                allowed.add(subject)
                for end, of in ((b, b"B"), (other, b"ops@example~org")):
                    for to in (b"A", b"B", b"A~B", b"broker~example~org", b"ops@example~org"):
                        if to != of:
                            assert b"-ERR" not in end.ask(b"PUB vg.%b.%b.job 2\r\nhi\r\n" % (to, of))
                time.sleep(0.02)
                came |= set(re.findall(rb"MSG (\S+) ", a.ask(b"")))
    assert all(subject.startswith(b"vg.A.") for subject in allowed), allowed
    assert b"vg.A.*.job" in allowed, "what every job subscribes"
    assert came == {b"vg.A.B.job", b"vg.A.ops@example~org.job"}


@pytest.mark.parametrize(
    "said",
    [
        b"PUB vg.B.A.job %d\r\n" % (MAX_PAYLOAD_BYTES + 1),
        b"PUB vg.B.A.job 9223372036854775807\r\nhi\r\n",
        b"PUB vg.B.A.%b 2\r\nhi\r\n" % (b"j" * 70_000),
        b"".join(b"SUB vg.A.B.%d %d\r\n" % (number, number) for number in range(17)),
        b"XYZ abc\r\n",
        b"RS+ participant-B vg.B.A.job\r\n",
        b"HPUB vg.B.A.job 17 19\r\nNATS/1.0\r\nA: b\r\n\r\nhi\r\n",
    ],
    ids=["payload", "number", "line", "subscriptions", "word", "route", "headers"],
)
def test_what_is_too_much_or_not_for_clients_is_refused(broker: Broker, said: bytes) -> None:
    with ExitStack() as stack:
        ends, a = listening(broker, stack), stack.enter_context(closing(Raw(broker, "A")))
        assert b"PONG" in a.ask(b"PUB vg.B.A.job 2\r\nhi\r\n"), "the control"
        answer = a.ask(said)
        assert b"-ERR" in answer or b"PONG" not in answer
        assert heard(ends) == {b"vg.B.A.job"}


def admitted(broker: Broker, file: str | None, options: bytes = b"{}") -> bool:
    """Whether the broker takes a certificate."""
    try:
        with closing(Raw(broker, file, options)) as made:
            return b"PONG" in made.said
    except OSError:
        return False


COMMON, UNIT = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME


def named(*names: tuple[x509.ObjectIdentifier, str], alternative: x509.GeneralName | None = None) -> Identity:
    """Of a certificate with these names."""
    key = fresh_key()
    further = [] if alternative is None else [x509.SubjectAlternativeName([alternative])]
    name = x509.Name([x509.NameAttribute(*each) for each in names])
    return Identity(PROJECT.sign(name, key, NOW - DAY, NOW + DAY, *further), key, ())


def test_only_the_projects_valid_certificates_are_admitted(kits: Kits, broker: Broker) -> None:
    made = {
        "of another root": Identity(Project().plain("A", key := fresh_key()), key, ()),
        "of nobody": named((COMMON, "C")),
        "a second key of A": named((COMMON, "A")),
        "with the names of B": Identity(PROJECT.certificate("CN=B", key := fresh_key()), key, ()),
        "with a mail address": named((COMMON, "C"), alternative=x509.RFC822Name("CN=B")),
    }
    assert admitted(broker, "A")
    for file, identity in made.items():
        kits.put(file, identity)
        assert not admitted(broker, file), file
        assert not admitted(broker, file, b'{"user":"CN=B","pass":""}'), file
    assert not admitted(broker, None)
    assert not admitted(broker, None, b'{"user":"CN=B","pass":""}')
    assert not admitted(broker, "broker-1"), "the broker's own certificate is no participant's"
    with closing(Raw(broker, "A", b'{"user":"CN=B","pass":"","nkey":"x"}')) as a:
        assert b"-ERR" in a.said + a.ask(b"PUB vg.ops@example~org.B.job 2\r\nhi\r\n"), "a name does not make it B"
    with closing(Raw(broker, "A")) as a:
        assert b"PONG" in a.ask(b"PUB vg.B.A.job 2\r\nhi\r\n")


@pytest.mark.parametrize(
    ("start", "end"), [(-2 * DAY, -timedelta(hours=1)), (timedelta(hours=1), DAY)], ids=["expired", "not yet valid"]
)
def test_a_certificate_out_of_its_time_is_refused_though_it_is_pinned(start: timedelta, end: timedelta) -> None:
    kits = Kits("A", "B")
    kits.issue("A", start=NOW + start, end=NOW + end)
    with Broker(kits).running() as own:
        assert admitted(own, "B")
        assert not admitted(own, "A")


def test_a_reload_ends_what_was_revoked_and_disturbs_nobody_else() -> None:
    """The participant that leaves, and the stolen key of one that goes on with another."""
    kits = Kits("A", "B", "C")
    old, stolen = kits.certificates(), kits.identities["B"]
    kits.put("stolen", stolen)
    kits.issue("B")
    renewed = {**kits.certificates(), "B": [stolen.certificate, kits.identities["B"].certificate]}
    assert len(old) == 3
    with Broker(kits).running(all_to_all(renewed)) as own, ExitStack() as stack:
        a, b, c, thief = (stack.enter_context(closing(Raw(own, name))) for name in ("A", "B", "C", "stolen"))
        for end in (a, b, c, thief):
            assert b"PONG" in end.ask(b"")
        assert b"PONG" in c.ask(b"SUB vg.C.*.* 1\r\n")
        own.configure(all_to_all({"A": [], "B": renewed["B"][1:], "C": renewed["C"]}))
        assert b"PONG" not in a.ask(b"PUB vg.C.A.job 2\r\nhi\r\n")
        assert b"PONG" not in thief.ask(b"PUB vg.C.B.job 2\r\nhi\r\n")
        assert b"PONG" in b.ask(b"PUB vg.C.B.job 2\r\nhi\r\n")
        assert re.findall(rb"MSG (\S+) ", c.ask(b"")) == [b"vg.C.B.job"]
        assert [admitted(own, name) for name in ("A", "stolen", "B", "C")] == [False, False, True, True]


def test_one_certificate_cannot_take_all_connections(broker: Broker) -> None:
    with ExitStack() as stack:
        taken = 0
        for _ in range(MAX_CONNECTIONS_OF_ONE + 8):
            with suppress(OSError):
                made = stack.enter_context(closing(Raw(broker, "A")))
                taken += b"PONG" in made.said
        assert taken == MAX_CONNECTIONS_OF_ONE
        assert admitted(broker, "B")
    wait_until(lambda: admitted(broker, "A"))


def test_strangers_that_say_nothing_lock_nobody_out(broker: Broker) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8000)), hard))
    with ExitStack() as stack:
        for _ in range(3000):
            stack.enter_context(socket.create_connection((broker.listen.host, broker.listen.port), 5.0))
        start = time.monotonic()
        assert admitted(broker, "B")
        assert time.monotonic() - start < 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_flood_to_who_reads_nothing_costs_bounded_memory_and_hurts_nobody_else(broker: Broker) -> None:
    line = b"PUB vg.B.A.job 1048576\r\n" + bytes(1 << 20) + b"\r\n"
    with ExitStack() as stack:
        a, b = (stack.enter_context(closing(Raw(broker, name))) for name in ("A", "B"))
        assert b"PONG" in b.ask(b"SUB vg.B.*.* 1\r\n")
        start, most = time.monotonic(), 0
        while time.monotonic() - start < 3:
            a.socket.sendall(line)
            most = max(most, resident(broker))
            if int(10 * (time.monotonic() - start)) % 10 == 0:
                assert admitted(broker, "ops@example.org")
        assert most < 800 << 20
    wait_until(lambda: admitted(broker, "B"))


def resident(broker: Broker) -> int:
    assert broker.process is not None
    with open(f"/proc/{broker.process.pid}/statm", encoding="ascii") as pages:  # noqa: PTH123
        return int(pages.read().split()[1]) * resource.getpagesize()


def rogue(own: Broker, meet: BrokerAddress, file: str) -> tuple[subprocess.Popen[bytes], int]:
    """A broker of an attacker's that has no limits, and wants to join a cluster with some certificate."""
    assert BINARY is not None
    port, path = free_port(), own.kits.path
    (path / "rogue.conf").write_text(
        f"""listen: "127.0.0.1:{port}"
server_name: rogue
cluster {{
  name: veilgraph
  listen: "127.0.0.1:{free_port()}"
  tls {{ cert_file: "{path}/{file}.crt", key_file: "{path}/{file}.key", ca_file: "{path}/brokers.pem" }}
  routes: ["nats-route://{meet}"]
}}
accounts {{ "participant-A" {{ users: [ {{ user: u, password: p }} ] }} }}
""",
        encoding="utf-8",
    )
    with (path / "rogue.log").open("wb") as log:
        return subprocess.Popen([BINARY, "-c", str(path / "rogue.conf")], stdout=log, stderr=log), port


@pytest.mark.parametrize(("file", "joins"), [("A", False), ("broker-1", True)], ids=["a participant's", "a broker's"])
def test_no_participant_can_join_as_a_broker(kits: Kits, file: str, joins: bool) -> None:
    meet = BrokerAddress("localhost", free_port())
    own = Broker(kits, cluster=Cluster(BrokerAddress("127.0.0.1", meet.port), []))
    own.configure()
    own.start()
    process, port = rogue(own, meet, file)
    try:
        with closing(Raw(own, "B")) as b, socket.socket() as there:
            assert b"PONG" in b.ask(b"SUB vg.B.*.* 1\r\n")
            wait_until(lambda: there.connect_ex(("127.0.0.1", port)) in (0, 106))
            wait_until(lambda: re.search("Route connection created|TLS.*error", own.said()) is not None, own.said)
            there.settimeout(2.0)
            there.sendall(b'CONNECT {"user":"u","pass":"p"}\r\nSUB > 1\r\nPING\r\n')
            time.sleep(0.5)
            with suppress(OSError):
                there.recv(65536)
            assert ("Route connection created" in own.said()) == joins
            with closing(Raw(own, "A")) as a:
                assert b"PONG" in a.ask(b"PUB vg.B.A.job 2\r\nhi\r\n")
            assert heard({"B": b}) == {b"vg.B.A.job"}
            seen = b""
            with suppress(OSError):
                seen = there.recv(65536)
            assert (b"MSG vg.B.A.job" in seen) == joins
    finally:
        process.kill()
        process.wait()
        own.kill()


def test_no_other_port_is_open(broker: Broker) -> None:
    assert broker.process is not None
    found = (
        subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=False) if shutil.which("ss") else None
    )
    if found is None:
        pytest.skip("ss is not installed")
    ports = [line.split()[3] for line in found.stdout.splitlines() if f"pid={broker.process.pid}," in line]
    assert ports == [f"127.0.0.1:{broker.listen.port}"]


def test_a_holder_may_not_use_the_subject_of_requests(kits: Kits) -> None:
    everybody = all_to_all({name: each for name, each in kits.certificates().items() if name in ("A", "B")})
    with (
        Broker(kits).running({**everybody, "A": replace(everybody["A"], asks=False)}) as own,
        closing(Raw(own, "A")) as a,
        closing(Raw(own, "B")) as b,
    ):
        assert b"-ERR" not in a.ask(b"PUB vg.B.A.job 2\r\nhi\r\n")
        assert b"-ERR" in a.ask(b"PUB vg.B.A.requests 2\r\nhi\r\n")
        assert b"-ERR" not in b.ask(b"PUB vg.A.B.requests 2\r\nhi\r\n"), "the control: it is an administrator"


def test_a_broker_holds_more_for_one_than_all_peers_may_send_it(kits: Kits) -> None:
    """Else it would cut a slow receiver whose peers do nothing wrong."""
    own = Broker(kits)
    text = configuration(
        "broker", own.listen, own.address, own.own, own.kits.path / "project.pem", all_to_all(kits.certificates())
    )
    (pending,) = re.findall(r"^max_pending: ([0-9]+)$", text, re.MULTILINE)
    assert int(pending) > IN_FLIGHT_BYTES >= WINDOW_BYTES


# What the generator refuses


def made(participants: dict[str, Participant], name: str = "broker") -> str:
    kits = Kits()
    own = Broker(kits)
    return configuration(name, own.listen, own.address, own.own, own.kits.path / "project.pem", participants)


@pytest.mark.parametrize(
    ("certificate", "code"),
    [
        (PROJECT.plain("B", fresh_key()), "other-name"),
        (PROJECT.certificate("B", fresh_key()), "other-name"),
        (PROJECT.certificate(None, fresh_key()), "other-name"),
        (named((COMMON, "A"), (COMMON, "B")).certificate, "other-name"),
        (named((COMMON, "A"), alternative=x509.DNSName("CN=B")).certificate, "names"),
        (named((COMMON, "A"), (UNIT, "x,CN=B")).certificate, "names"),
    ],
)
def test_a_certificate_that_would_be_another_ones_is_refused(certificate: x509.Certificate, code: str) -> None:
    with refused(ConfigError, key="certificates", code=code):
        made({"A": Participant([certificate], [])})
    made({"A": Participant([PROJECT.plain("A", fresh_key())], [])})


def test_a_configuration_that_would_let_everybody_in_is_not_made() -> None:
    with refused(ConfigError, code="no-pins"):
        made({"A": Participant([], [])})
    good = {name: [PROJECT.plain(name, fresh_key())] for name in "AB"}
    with refused(ConfigError, key="peers", value="B"):
        made({"A": Participant(good["A"], ["B"]), "B": Participant(good["B"], [])})
    with refused(ConfigError, key="broker"):
        made(all_to_all(good), name="$HOME")
    with refused(ConfigError, key="broker"):
        made(all_to_all(good), name="x\nhttp_port: 8222")


def test_a_client_that_is_refused_says_why(broker: Broker) -> None:
    with refused(LinkError, code="broker-refuses"):
        Connection(broker.address, broker.kits.tls("A"), ">")
