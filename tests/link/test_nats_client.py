"""The client of a broker: what it believes of one, how it gets there, and what it never sets aside memory for."""

import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import monotonic, sleep

import pytest

from tests.errors import refused
from tests.link.brokers import BROKERS, PROJECT, Broker, Kits, free_port, needs_broker
from tests.link.certificates import fresh_key
from tests.link.hostile_broker import HostileBroker
from veilgraph.core.errors import ConfigError, DataError, LinkError
from veilgraph.link import nats_client
from veilgraph.link.identity import Identity
from veilgraph.link.nats_client import MAX_PAYLOAD_BYTES, BrokerAddress, Brokers, Connection, client_tls, token

SUBJECT = "vg.A.*.job"


@pytest.fixture(scope="module")
def kits() -> Kits:
    return Kits("A", "B")


@pytest.fixture(scope="module")
def broker(kits: Kits) -> Iterator[Broker]:
    with Broker(kits).running() as made:
        yield made


def first(connection: Connection) -> tuple[str, bytes]:
    subject, payload = next(connection.messages())
    return subject, bytes(payload)


def told(kits: Kits, says: bytes) -> LinkError:
    """What comes of a broker that says something once a party has subscribed."""
    there = HostileBroker(kits, says=says)
    connection = Connection(there.address, kits.tls("A"), SUBJECT)
    with pytest.raises(LinkError) as caught:
        for _ in connection.messages():
            pass
    connection.drop()
    there.close()
    return caught.value


@pytest.mark.parametrize(
    ("says", "code"),
    [
        (b"MSG vg.A.B.job 1 1000000000000\r\n", "broker"),
        (b"MSG vg.A.B.job 1 99999999\r\n", "too-large"),
        (b"MSG vg.A.B.job 1 %d\r\n" % (MAX_PAYLOAD_BYTES + 1), "too-large"),
        (b"MSG vg.A.B.job 1 -1\r\n", "broker"),
        (b"MSG vg.A.B.job 1 \xd9\xa3\r\n", "broker"),
        (b"MSG vg.A.B.job 2 2\r\nhi\r\n", "broker"),
        (b"MSG vg.A.B.job 1 2 2 2\r\nhi\r\n", "broker"),
        (b"MSG vg.A.B.job 1 2\r\nhi!!", "broker"),
        (b"HMSG vg.A.B.job 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n", "broker"),
        (b"+" * 100_000, "broker"),
        (b"\r\n", "broker"),
        (b"-ERR 'no'\r\n", "broker-refuses"),
        (b"PUB vg.A.B.job 2\r\nhi\r\n", "broker"),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else value,
)
def test_whatever_else_a_broker_says_ends_the_connection(kits: Kits, says: bytes, code: str) -> None:
    assert told(kits, says).code == code


def test_what_a_broker_may_say_is_taken_and_a_subject_for_replies_ignored(kits: Kits) -> None:
    there = HostileBroker(kits, says=b"+OK\r\nPING\r\nINFO {]\r\nMSG vg.A.B.job 1 vg.B.A.x 2\r\nhi\r\n")
    connection = Connection(there.address, kits.tls("A"), SUBJECT)
    assert first(connection) == ("vg.A.B.job", b"hi")
    connection.drop()
    there.close()


def test_nothing_is_set_aside_for_what_is_announced(kits: Kits) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told(kits, b"MSG vg.A.B.job 1 1000000000000\r\n" + b"z" * (8 << 20))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_what_is_no_broker_is_noticed(kits: Kits) -> None:
    there = HostileBroker(kits, greeting=b"HTTP/1.1 400 Bad Request\r\n")
    with refused(LinkError, code="no-broker"):
        Connection(there.address, kits.tls("A"), SUBJECT)
    there.close()


def test_a_broker_of_another_root_or_name_is_refused(kits: Kits) -> None:
    there = HostileBroker(kits)
    kits.put("imposter", Identity(PROJECT.certificate("localhost", key := fresh_key()), key, ()))
    there.tls.load_cert_chain(kits.path / "imposter.crt", kits.path / "imposter.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        Connection(there.address, kits.tls("A"), SUBJECT)
    kits.put("elsewhere", Identity(BROKERS.certificate("elsewhere", key := fresh_key()), key, ()))
    there.tls.load_cert_chain(kits.path / "elsewhere.crt", kits.path / "elsewhere.key")
    with pytest.raises(ssl.SSLCertVerificationError):
        Connection(there.address, kits.tls("A"), SUBJECT)
    kits.put("right", Identity(BROKERS.certificate("localhost", key := fresh_key()), key, ()))
    there.tls.load_cert_chain(kits.path / "right.crt", kits.path / "right.key")
    Connection(there.address, kits.tls("A"), SUBJECT).drop()
    there.close()


def test_a_silent_broker_is_given_up_and_one_that_answers_is_not(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "SILENCE_S", 0.6)
    there = HostileBroker(kits)
    connection = Connection(there.address, kits.tls("A"), SUBJECT)
    timer = threading.Timer(1.5, lambda: there.tell("vg.A.B.job", b"hi"))
    timer.start()
    assert first(connection) == ("vg.A.B.job", b"hi"), "the control"
    there.answers = False
    with refused(LinkError, code="broker-silent"):
        first(connection)
    connection.drop()
    there.close()


@pytest.mark.parametrize("drips", [False, True])
def test_what_accepts_and_does_not_agree_on_keys_is_given_up(
    kits: Kits, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    """Silent, or a byte of a long TLS record now and then."""
    monkeypatch.setattr(nats_client, "SILENCE_S", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connected, _ = listener.accept()
            with suppress(OSError), connected:
                connected.sendall(b"\x16\x03\x03\x40\x00" if drips else b"")
                while not over.wait(0.1):
                    connected.sendall(b"\x02" if drips else b"")

        serving = threading.Thread(target=serve)
        serving.start()
        with pytest.raises((OSError, LinkError)):
            Connection(BrokerAddress("localhost", listener.getsockname()[1]), kits.tls("A"), SUBJECT)
        over.set()
        serving.join(5)


def test_a_broker_with_an_older_tls_is_refused(kits: Kits) -> None:
    there = HostileBroker(kits)
    there.tls.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        Connection(there.address, kits.tls("A"), SUBJECT)
    there.tls.maximum_version = ssl.TLSVersion.TLSv1_3
    Connection(there.address, kits.tls("A"), SUBJECT).drop()
    there.close()


def test_the_next_broker_is_tried_and_all_are_named(kits: Kits) -> None:
    there, gone = HostileBroker(kits), BrokerAddress("localhost", free_port())
    Brokers([gone, there.address], kits.tls("A")).connect(SUBJECT, threading.Event()).drop()
    with refused(LinkError, code="no-broker") as caught:
        Brokers([gone, BrokerAddress("127.0.0.1", gone.port)], kits.tls("A")).connect(SUBJECT, threading.Event())
    assert str(gone) in str(caught.value)
    assert f"127.0.0.1:{gone.port}" in str(caught.value)
    there.close()


def proxy_answering(answer: bytes, to: BrokerAddress, pause_s: float = 0.0) -> tuple[BrokerAddress, list[bytes]]:
    """An HTTP proxy for one connection, which pauses before each byte of its answer, and what it was asked."""
    listener, asked = socket.create_server(("::1", 0), family=socket.AF_INET6), list[bytes]()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)

    def serve() -> None:
        client, _ = listener.accept()
        with listener, client, socket.create_connection(("127.0.0.1", to.port)) as there:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += client.recv(1)
            asked.append(request)
            with suppress(OSError):  # it was given up meanwhile
                for byte in answer:
                    sleep(pause_s)
                    client.sendall(bytes([byte]))
            back = threading.Thread(target=pump, args=(there, client), daemon=True)
            back.start()
            pump(client, there)
            there.shutdown(socket.SHUT_RDWR)
            back.join()

    threading.Thread(target=serve, daemon=True).start()
    return BrokerAddress("::1", listener.getsockname()[1]), asked


@needs_broker
def test_through_a_proxy_on_ipv6(kits: Kits, broker: Broker) -> None:
    proxy, asked = proxy_answering(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n", broker.address)
    a = Connection(broker.address, kits.tls("A"), SUBJECT, proxy)
    b = Connection(broker.address, kits.tls("B"), "vg.B.*.job")
    b.publish("vg.A.B.job", b"he", b"llo" * 100_000)
    assert first(a) == ("vg.A.B.job", b"he" + b"llo" * 100_000)
    at = f"localhost:{broker.address.port}".encode()
    assert asked == [b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (at, at)]
    a.drop()
    b.drop()


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", b"SSH-2.0\r\n\r\n", b"x" * 9000], ids=len
)
def test_a_proxy_that_refuses(kits: Kits, answer: bytes) -> None:
    there = HostileBroker(kits)
    proxy, _ = proxy_answering(answer, there.address)
    with refused(LinkError, code="proxy"):
        Connection(there.address, kits.tls("A"), SUBJECT, proxy)
    there.close()


def test_a_proxy_that_answers_too_slowly_is_given_up(kits: Kits, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two bytes is long, but the answer as a whole would take hours."""
    monkeypatch.setattr(nats_client, "SILENCE_S", 0.5)
    there = HostileBroker(kits)
    proxy, _ = proxy_answering(b"x" * 50, there.address, pause_s=0.1)
    begun = monotonic()
    with refused(LinkError, code="proxy"):
        Connection(there.address, kits.tls("A"), SUBJECT, proxy)
    assert monotonic() - begun < 3, "it waited for the whole answer"
    there.close()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("broker.example.org:443", "broker.example.org", 443), ("[2001:db8::1]:4222", "2001:db8::1", 4222)],
)
def test_an_address(text: str, host: str, port: int) -> None:
    address = BrokerAddress.read(text)
    assert (address.host, address.port, str(address)) == (host, port, text)


@pytest.mark.parametrize("text", ["", "host", "host:0", "host:65536", "2001:db8::1:443", "a b:1", "h\n:1", "[x]:1"])
def test_no_address(text: str) -> None:
    with refused(ConfigError, key="address", value=text):
        BrokerAddress.read(text)


def test_a_name_is_one_token() -> None:
    assert token("broker.example.org") == "broker~example~org"
    for name in ("", "A B", "A*", "A>", "A~B", "é", "A\n", "A\t"):
        with refused(ConfigError, key="name", value=name):
            token(name)


def test_key_and_certificate_of_two_parties(kits: Kits) -> None:
    with refused(DataError, code="tls"):
        client_tls(kits.path / "brokers.pem", kits.path / "A.crt", kits.path / "B.key")
    with refused(ConfigError, key="certificate"):
        client_tls(kits.path / "brokers.pem", kits.path / "nowhere.crt", kits.path / "B.key")
