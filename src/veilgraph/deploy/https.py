"""What a service needs to be asked safely: a token that callers show, a certificate, and nothing but HTTPS.

Its connections are bounded in number, by address and in time: silent ones never keep a request out.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.files import new_file, private_folder
from veilgraph.core.text import Event
from veilgraph.core.threads import stopped_by_signals
from veilgraph.deploy.authority import issue

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{32,512}=*")  # RFC 6750's b64token
_HOW_TO_MAKE: Final = "make one: umask 077; openssl rand -hex 32 > FILE"
_TRIAL: Final = timedelta(days=30)
_GROUP_AND_OTHERS: Final = 0o077
_OTHERS: Final = 0o007
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}

Report = Callable[[str], None]
Counted = Callable[[str, int, float], None]
"""Told of an exchange: path, status, seconds."""


def check_token(token: str) -> None:
    """Refuses a token that is too short, or cannot travel in a header; the ``ConfigError`` never says it."""
    if _TOKEN.fullmatch(token) is None:
        raise ConfigError(
            f"the token ({len(token)} characters) must be 32 to 512 letters, digits or . _ ~ + / - (= at the end); "
            f"{_HOW_TO_MAKE}",
            key="token",
            value=len(token),
        )


def read_token(path: Path) -> str:
    """The token in a file, stripped; ``ConfigError`` where it cannot be read, or by others too, or is none."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of the very file that is read
            content = file.read(4096)
    except OSError as error:
        raise ConfigError(f"--token-file {path}: cannot be read ({error.strerror}); {_HOW_TO_MAKE}") from error
    if mode & _GROUP_AND_OTHERS:
        raise ConfigError(
            f"--token-file {path}: others than its owner may use it (mode {mode & 0o777:03o}); chmod 600 it"
        )
    token = content.decode("latin-1").strip()
    try:
        check_token(token)
    except ConfigError as error:
        raise ConfigError(f"--token-file {path}: {error}") from error
    return token


def make_token_file(path: Path) -> None:
    """Writes a fresh random token of 256 bits to a file that its owner alone may read.

    Raises ``RunError``: the file exists or cannot be written.
    """
    _write_new(path, secrets.token_urlsafe(32).encode() + b"\n")


def make_self_signed(host: str, folder: Path) -> tuple[Path, Path]:
    """A certificate that vouches for itself, for trying a service out: 30 days, ECDSA on P-256.

    Callers, who reach the service at ``host``, must be given it and told to trust it. Returns the paths of certificate
    and key in ``folder``. Raises ``ConfigError``: ``host`` is no address or ASCII name; ``RunError``: a file exists, or
    cannot be written.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now, name = datetime.now(UTC), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "veilgraph trial service")])
    extensions = [
        x509.SubjectAlternativeName([_alternative_name(host)]),
        x509.BasicConstraints(ca=False, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    ]
    certificate = issue(name, key.public_key(), name, key, extensions, now, now + _TRIAL)
    paths = folder / "certificate.pem", folder / "key.pem"
    try:
        private_folder(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot be made ({error.strerror}); choose another folder") from error
    _write_new(paths[1], key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write_new(paths[0], certificate.public_bytes(Encoding.PEM))
    return paths


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer at the side that is asked: PEM files, the service's certificate before its issuers', and its
    key.

    Raises ``ConfigError``: a file cannot be read, or everyone may read the key; ``DataError``: they hold no such pair.
    """
    for path, what in ((certificate, "certificate"), (key, "key")):
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise ConfigError(f"--{what} {path}: cannot be read ({error.strerror}); give a PEM file") from error
        if what == "key" and mode & _OTHERS:
            raise ConfigError(f"--key {path}: everyone may use it (mode {mode & 0o777:03o}); chmod 600 it")

    def no_passphrase() -> str:
        raise DataError(f"--key {key}: the private key has a passphrase; write it without one")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise DataError(
                f"--key {key} is not the key of --certificate {certificate}; give both of one pair"
            ) from error
        raise DataError(
            f"--certificate {certificate} and --key {key} do not hold a certificate and its key as PEM "
            f"({error.reason or error}); give such files"
        ) from error
    return context


def make_server(app: FastAPI, tls: ssl.SSLContext) -> uvicorn.Server:
    """What serves ``app`` over HTTPS on a socket given to ``run``; it speaks nothing but TLS."""
    config = uvicorn.Config(
        app,
        loop=f"{BoundedLoop.__module__}:{BoundedLoop.__name__}",
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=10,
    )
    config.load()
    config.ssl = tls
    return uvicorn.Server(config)


def run_https(app: FastAPI, tls: ssl.SSLContext, host: str, port: int, announce: Callable[[int], None]) -> None:
    """Serves ``app`` until SIGINT or SIGTERM; requests under way are then answered. Call it in the main thread.

    Raises ``ConfigError``: the address cannot be listened at, or this is not the main thread.
    """
    server = make_server(app, tls)
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError("serve must be called in the main thread, which signals reach; elsewhere use make_server")
    # uvicorn raises a signal once more when it has ended
    with _listen(host, port) as listener, stopped_by_signals(partial(setattr, server, "should_exit", True)):
        announce(listener.getsockname()[1])
        server.run(sockets=[listener])


class Envelope:
    """ASGI middleware around every exchange: headers, and one line that says nothing of what was asked or answered.

    ``report`` is called with the line; ``counted`` with as much of the exchange, but for who asked. Of ``paths`` alone
    is it said which: any other may hold anything.
    """

    def __init__(
        self, app: ASGIApp, report: Report, paths: Collection[str], counted: Counted = lambda *_: None
    ) -> None:
        self._app = app
        self._counted = counted
        self._report = report
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes one exchange on."""
        status, start = 500, time.monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            client = scope["client"][0] if scope.get("client") else "-"
            path = scope["path"] if scope["path"] in self._paths else "(other)"
            took_s = time.monotonic() - start
            self._counted(path, status, took_s)
            now, method = datetime.now(UTC).isoformat(timespec="seconds"), str(scope["method"])
            words = f"{now} {client} {method} {path} {status} {1000 * took_s:.0f} ms"
            ms = round(1000 * took_s)
            said = Event("request", words, client=client, method=method, path=path, status=status, ms=ms)
            self._report(said)


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError as error:
        if not host or not host.isascii():
            raise ConfigError(f"host={host!r}: a certificate is for an address or an ASCII name; give one") from error
        return x509.DNSName(host)


def _write_new(path: Path, content: bytes) -> None:
    try:
        with new_file(path) as file:
            file.write(content)
    except FileExistsError as error:
        raise RunError(f"{path} exists and is not overwritten; choose another path, or remove it") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror}); choose another path") from error


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: must be from 0 to 65535, 0 being any that is free; choose another")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((found[4][0], port), family=found[0])
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {host} --port {port}: cannot be listened at ({error}); choose another") from error


WITHIN_S: Final = 10.0
"""Longest time of a handshake, and longest time until a whole request has come."""
MAX_CONNECTIONS: Final = 256
"""At once, each before and after its handshake. For one more the oldest that waits for its caller is closed."""
MAX_BY_ADDRESS: Final = 128
"""Of one address; beyond that its own oldest is closed."""


class BoundedLoop(asyncio.SelectorEventLoop):
    """An event loop that gives a handshake ``WITHIN_S``, and closes the oldest of too many."""

    def __init__(self) -> None:
        super().__init__()
        self.arriving: dict[object, asyncio.Transport] = {}

    @override
    async def create_server(self, *args: Any, **how: Any) -> asyncio.Server:
        if how.get("ssl") is not None:
            how.setdefault("ssl_handshake_timeout", WITHIN_S)
        return await super().create_server(*args, **how)

    def _make_ssl_transport(self, rawsock: Any, protocol: Any, *args: Any, **how: Any) -> Any:  # noqa: ANN401 - asyncio's
        if len(self.arriving) >= MAX_CONNECTIONS:
            oldest = self.arriving.pop(next(iter(self.arriving)))
            self.call_soon(oldest.abort)  # after its beginning, which may still be due
        made = super()._make_ssl_transport(rawsock, protocol, *args, **how)  # type: ignore[misc]
        self.arriving[protocol] = made
        return made


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol, which ends connections that do not ask."""

    since: float

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if isinstance(self.loop, BoundedLoop):
            self.loop.arriving.pop(self, None)
        self.since = self.loop.time()
        self.loop.call_later(WITHIN_S, self._expire)
        waiting = sorted((each for each in self._others() if each.waits), key=lambda each: each.since)
        mine = [each for each in waiting if each.address == self.address]
        too_many = sum(each.address == self.address for each in self._others()) >= MAX_BY_ADDRESS
        if too_many and mine:
            mine[0].drop()
        elif len(self.connections) > MAX_CONNECTIONS and waiting:
            waiting[0].drop()

    @override
    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    @property
    def address(self) -> str:
        """Of the caller."""
        return "" if self.client is None else self.client[0]

    @property
    def waits(self) -> bool:
        """Whether the next move is the caller's."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def drop(self) -> None:
        """Close the connection at once."""
        self.connections.discard(self)
        self.transport.abort()

    def _others(self) -> list[BoundedProtocol]:
        return [each for each in self.connections if isinstance(each, BoundedProtocol) and each is not self]

    def _expire(self) -> None:
        if self.transport.is_closing():
            return
        left = WITHIN_S - (self.loop.time() - self.since)
        if self.waits and left <= 0:
            self.drop()
        else:
            self.loop.call_later(max(left, 1.0), self._expire)
