"""The server's port: idle connections end, and no certificate takes all streams."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="the extra veilgraph[deploy] is not installed")

import grpc

from veilgraph.deploy.guard.sockets import MAX_STREAMS, StreamLimit
from veilgraph.deploy.https import make_self_signed
from veilgraph.deploy.kit import _COMMUNICATION

LIMITS = ("grpc.server_handshake_timeout_ms", "grpc.max_connection_idle_ms")


@pytest.mark.parametrize("says", ["nothing", "TLS", "TLS and HTTP/2"])
def test_a_connection_without_a_stream_ends(tmp_path: Path, says: str) -> None:
    """The attack: thousands of idle connections are held without end. The kit's options, with less time, end them."""
    options = dict(_COMMUNICATION["grpc"]["options"])  # type: ignore[index]
    assert [options[name] for name in LIMITS] == [10_000, 30_000]
    certificate, key = make_self_signed("localhost", tmp_path / "tls")
    server = grpc.server(ThreadPoolExecutor(1), options=[*(options | dict.fromkeys(LIMITS, 200)).items()])
    pair = [(key.read_bytes(), certificate.read_bytes())]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    server.start()
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    try:
        if says != "nothing":
            context = ssl.create_default_context(cafile=str(certificate))
            context.set_alpn_protocols(["h2"])
            connection = context.wrap_socket(connection, server_hostname="localhost")
        if says == "TLS and HTTP/2":
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        while connection.recv(4096):  # until it is closed; a time-out fails
            pass
    finally:
        connection.close()
        server.stop(0)


class Context:
    """A stream's, as gRPC gives it."""

    def __init__(self, name: str | None, peer: str = "ipv4:10.0.0.1:5") -> None:
        self._name, self._peer = name, peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {} if self._name is None else {"x509_common_name": [self._name.encode()]}

    def peer(self) -> str:
        return self._peer

    def abort(self, code: object, words: str) -> None:
        raise PermissionError(code, words)


def test_one_certificate_takes_no_more_than_its_share_of_streams() -> None:
    limit = StreamLimit()

    def stream(servicer: object, requests: object, context: Context) -> Iterator[int]:
        yield from (1, 2)

    open_ = limit.around(stream)
    held = [open_(SimpleNamespace(), iter(()), Context("bank")) for _ in range(MAX_STREAMS)]
    assert [next(each) for each in held] == [1] * MAX_STREAMS
    with pytest.raises(PermissionError, match="bank has 16"):
        next(open_(SimpleNamespace(), iter(()), Context("bank")))
    assert next(open_(SimpleNamespace(), iter(()), Context("shop"))) == 1
    for number in range(MAX_STREAMS):
        held.append(open_(SimpleNamespace(), iter(()), Context(None, f"ipv4:10.0.0.9:{number}")))
        next(held[-1])
    with pytest.raises(PermissionError, match=r"10\.0\.0\.9"):
        next(open_(SimpleNamespace(), iter(()), Context(None, "ipv4:10.0.0.9:77")))
    assert list(held.pop(0)) == [2]  # one of the bank's ends
    assert next(open_(SimpleNamespace(), iter(()), Context("bank"))) == 1
    for each in held:
        each.close()  # type: ignore[attr-defined]
    assert len(limit._open) <= 2, "what has ended takes no room"
