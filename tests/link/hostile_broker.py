"""A broker that does with messages what it likes; of NATS it knows as much as our client asks for."""

import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from tests.link.brokers import BROKERS, Kits
from tests.link.certificates import fresh_key
from veilgraph.link.identity import Identity
from veilgraph.link.nats_client import BrokerAddress, Brokers

Hand = Callable[[str, bytes], Iterable[bytes]]
"""Subject and payload of a message → the payloads that the receiver gets; ``Cut`` ends the sender's connection."""


class Cut(Exception):
    """Ends the connection."""


class HostileBroker:
    """Listens until it is closed.

    Args:
        kits: with its own certificate, and its clients'.
        hand: what it does with a message.
        greeting: said to everybody first.
        says: said to everybody who has subscribed.
    """

    def __init__(
        self,
        kits: Kits,
        hand: Hand = lambda _, payload: [payload],
        greeting: bytes = b'INFO {"server_id":"x"}\r\n',
        says: bytes = b"",
    ) -> None:
        self.kits, self.hand, self.greeting, self.says = kits, hand, greeting, says
        key = fresh_key()
        kits.put("hostile", Identity(BROKERS.certificate("localhost", key), key, ()))
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(kits.path / "hostile.crt", kits.path / "hostile.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress("localhost", self.listener.getsockname()[1])
        self.subscribed: dict[str, tuple[ssl.SSLSocket, threading.Lock]] = {}
        self.seen: list[bytes] = []
        self.answers = True
        threading.Thread(target=self._accept, daemon=True).start()

    def brokers(self, party: str) -> Brokers:
        return Brokers([self.address], self.kits.tls(party))

    def close(self) -> None:
        self.listener.close()
        for connected, _ in list(self.subscribed.values()):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def tell(self, subject: str, payload: bytes) -> None:
        """Hands a message to whoever has subscribed to its subject."""
        for pattern, (connected, lock) in list(self.subscribed.items()):
            if re.fullmatch(pattern.replace(".", r"\.").replace("*", "[^.]+"), subject):
                with lock, suppress(OSError):
                    connected.sendall(b"MSG %b 1 %d\r\n%b\r\n" % (subject.encode(), len(payload), payload))

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connected,), daemon=True).start()

    def _serve(self, raw: socket.socket) -> None:
        with suppress(OSError, Cut, ValueError), self.tls.wrap_socket(raw, server_side=True) as connected:
            lock = threading.Lock()
            connected.sendall(self.greeting)
            stream = connected.makefile("rb")
            while line := stream.readline():
                word, _, rest = line.strip().partition(b" ")
                if word == b"SUB":
                    self.subscribed[rest.split()[0].decode()] = (connected, lock)
                if word == b"PING" and self.answers:
                    with lock:
                        connected.sendall(b"PONG\r\n" + self.says)
                if word == b"PUB":
                    subject, size = rest.split()
                    payload = stream.read(int(size) + 2)[:-2]
                    self.seen.append(payload)
                    for each in self.hand(subject.decode(), payload):
                        self.tell(subject.decode(), each)
