"""An HTTP proxy (``CONNECT``), by which participants' network is slow, cut or silent as a measurement asks."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from typing import Final

_PIECE_BYTES: Final = 64 << 10


class Proxy:
    """Listens at ``address``, in threads of its own.

    Args:
        mbit: megabits that a connection sends to the broker in a second; None: as fast as this machine.
        delay_s: that every byte takes on the way, in each direction.
    """

    def __init__(self, mbit: float | None = None, delay_s: float = 0.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._seconds_a_byte, self._delay_s = 0.0 if mbit is None else 8e-6 / mbit, delay_s
        self._open, self._passes = threading.Event(), threading.Event()
        self._open.set()
        self._passes.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections, and refuses further ones until ``heal``."""
        self._open.clear()
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Passes nothing on until ``heal``; connections stay."""
        self._passes.clear()

    def heal(self) -> None:
        """As before."""
        self._open.set()
        self._passes.set()

    def _accept(self) -> None:
        while True:
            caller, _ = self._listener.accept()
            threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        with caller, suppress(OSError, ValueError):
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                if not (byte := caller.recv(1)):
                    return
                head += byte
            self._passes.wait()
            if not self._open.is_set():
                return
            host, _, port = head.split(b" ")[1].decode("ascii").rpartition(":")
            with socket.create_connection((host, int(port)), 10.0) as broker:
                broker.settimeout(None)
                for each in (caller, broker):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets |= {caller, broker}
                caller.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=self._pass, args=(broker, caller, False), daemon=True)
                back.start()
                self._pass(caller, broker, True)
                back.join()
                with self._lock:
                    self._sockets -= {caller, broker}

    def _pass(self, source: socket.socket, to: socket.socket, bounded: bool) -> None:
        late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        carrier = threading.Thread(target=self._carry, args=(late, to), daemon=True)
        carrier.start()
        free = 0.0
        with suppress(OSError):
            while content := source.recv(_PIECE_BYTES):
                self._passes.wait()
                due = time.perf_counter()
                if bounded:
                    free = due = max(free, due) + len(content) * self._seconds_a_byte
                    time.sleep(max(0.0, due - time.perf_counter()))
                late.put((due + self._delay_s, content))
        late.put((0.0, b""))
        carrier.join()
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _carry(self, late: queue.SimpleQueue[tuple[float, bytes]], to: socket.socket) -> None:
        with suppress(OSError):
            while (message := late.get())[1]:
                time.sleep(max(0.0, message[0] - time.perf_counter()))
                to.sendall(message[1])
