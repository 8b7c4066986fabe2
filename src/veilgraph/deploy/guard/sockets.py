"""How the processes of one site reach each other: a Unix socket in a folder that only this account may enter.

FLARE would have them meet at a TCP port of the loopback, in the clear and open to every account of the machine. Here
there is no port, the folder has mode 700, and both ends ask the system whose process the other one is.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from grpc import StatusCode
from nvflare.fuel.f3 import communicator
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.driver import ConnectorInfo
from nvflare.fuel.f3.drivers.driver_params import DriverCap, DriverParams
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection

from veilgraph.deploy.guard.policy import FOLDER_VARIABLE, LOCAL_SCHEME

MAX_STREAMS: Final = 16
"""Of one certificate, or of one address where there is none."""
_CREDENTIALS: Final = struct.Struct("iII")  # pid, uid, gid


class LocalConnection(SocketConnection):  # type: ignore[misc]
    """A connection whose other end is a process of this account."""

    def __init__(self, connected: socket.socket, connector: ConnectorInfo) -> None:
        super().__init__(connected, connector, False)


class LocalDriver(BaseDriver):  # type: ignore[misc]
    """FLARE's transport over a Unix socket, in the folder that ``join`` made for the site."""

    def __init__(self) -> None:
        super().__init__()
        self._listener: socket.socket | None = None

    @staticmethod
    def supported_transports() -> list[str]:
        """Names of the scheme."""
        return [LOCAL_SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        """Signs of life are FLARE's; the transport is not encrypted, for nobody else can reach it."""
        return {DriverCap.SEND_HEARTBEAT.value: True, DriverCap.SUPPORT_SSL.value: False}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        """A fresh address: where to connect and where to listen are the same."""
        folder = os.environ[FOLDER_VARIABLE]
        url = f"{scheme}://local{folder}/{secrets.token_hex(8)}"
        return url, url

    def listen(self, connector: ConnectorInfo) -> None:
        """Serves the processes of this account until the driver is shut down."""
        self.connector = connector
        path = _path(connector)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            self._listener = listener
            try:
                listener.bind(str(path))
                listener.listen()
                while True:
                    connected, _ = listener.accept()
                    if is_own(connected):
                        threading.Thread(target=self._serve, args=(connected,), daemon=True).start()
                    else:
                        connected.close()
            except OSError:
                if not connector.stopped.is_set():
                    raise
            finally:
                path.unlink(missing_ok=True)

    def connect(self, connector: ConnectorInfo) -> None:
        """Connects with the process that listens there, if it is this account's."""
        self.connector = connector
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.connect(str(_path(connector)))
            if not is_own(connected):
                raise PermissionError(f"{_path(connector)} belongs to another account")
        except BaseException:
            connected.close()
            raise
        self._serve(connected)

    def shutdown(self) -> None:
        """Ends all connections and stops listening."""
        self.close_all()
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)

    def _serve(self, connected: socket.socket) -> None:
        connection = LocalConnection(connected, self.connector)
        self.add_connection(connection)
        connection.read_loop()
        self.close_connection(connection)


def is_own(connected: socket.socket) -> bool:
    """Whether the other end is of this account; where the system does not tell, the folder keeps others out."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.geteuid())


class StreamLimit:
    """Counts the streams of each certificate at the server's port, and refuses more than ``MAX_STREAMS``.

    A site has one. FLARE serves 100 in all, so that one kit could keep everybody out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()

    def around(self, stream: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """Return FLARE's handler of a stream within the limit."""

        def limited(servicer: object, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: ANN401 - gRPC's
            names = context.auth_context().get("x509_common_name")
            who = names[0].decode("utf-8", "replace") if names else str(context.peer()).rpartition(":")[0]
            with self._lock:
                fits = self._open[who] < MAX_STREAMS
                if fits:
                    self._open[who] += 1
            if not fits:
                context.abort(StatusCode.RESOURCE_EXHAUSTED, f"{who} has {MAX_STREAMS} connections already")
            try:
                yield from stream(servicer, requests, context)
            finally:
                with self._lock:
                    self._open[who] -= 1
                    if not self._open[who]:
                        del self._open[who]

        return limited


def register() -> None:
    """Makes this transport, gRPC and no other known to FLARE in this process.

    FLARE would load all that it has: a fifth of a second for the one over HTTP, which no site is reached by.
    """
    communicator.load_comm_drivers = _load


def _load() -> None:
    """Once FLARE has read its settings, which say how gRPC is done."""
    from nvflare.fuel.f3.drivers.aio_grpc_driver import AioGrpcDriver  # noqa: PLC0415 - asks for those settings
    from nvflare.fuel.f3.drivers.grpc_driver import GrpcDriver, Servicer  # noqa: PLC0415

    if communicator.driver_mgr.find_driver_class(LOCAL_SCHEME) is None:
        Servicer.Stream = StreamLimit().around(Servicer.Stream)
        for driver in (LocalDriver, GrpcDriver, AioGrpcDriver):
            communicator.driver_mgr.register(driver)


def _path(connector: ConnectorInfo) -> Path:
    return Path(urlsplit(connector.params[DriverParams.URL.value]).path)
