"""A session that opens kept predictions, and the socket at which the label holder's own programs ask for them.

The socket is in the label holder's part of the run, for this account alone. A connection has one question and one
answer, a line of JSON each, in rows of the common nodes of the prediction ``prepared``:

    {"prepared": name, "nodes": [row, …]}
    {"probabilities": [[p, …], …]}   or   {"problem": words, "code": code}
"""

from __future__ import annotations

import asyncio
import os
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import torch
from pydantic import Field, ValidationError
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError, VeilgraphError
from veilgraph.core.settings import Exact
from veilgraph.protocol.judge import Answers
from veilgraph.protocol.role import Role
from veilgraph.runtime.store.run_directory import PartyStore
from veilgraph.runtime.store.session_log import TrafficLog

ANSWER_S: Final = 5.0
"""Longest wait for all holders' answers, in seconds."""
_SOCKET: Final = "answers.socket"
_MOST_NODES: Final = 10_000
_MOST_BYTES: Final = 1 << 18
_QUESTION_S: Final = 5.0
_NOTE_S: Final = 10.0


class _Question(Exact):
    prepared: Annotated[str, Field(max_length=64)]
    nodes: Annotated[list[int], Field(min_length=1, max_length=_MOST_NODES)]


class _Answer(Exact):
    probabilities: list[list[float]] = Field(default_factory=list)
    problem: str = ""
    code: str = ""


def answer(role: Role, store: PartyStore, record: TrafficLog) -> None:
    """Open what is asked for with the other parties, until the session is stopped, or another party fails.

    ``record`` notes now and then what was sent. The dealer's part ends at once.
    """
    role.setup([])
    with closing(role), _asked_at(store.path, role):
        noted = time.monotonic()
        while role.trains:
            role.forward(0, None)
            if time.monotonic() > noted + _NOTE_S:
                record.note()
                noted = time.monotonic()


@contextmanager
def _asked_at(folder: Path, role: Role) -> Iterator[None]:
    """Answer at the socket in a folder while the block lasts, if the role opens predictions; its error ends all."""
    if not isinstance(role, Answers):
        yield
        return
    with _short_path(folder) as path, _Server(path, role) as server:
        threading.Thread(target=server.serve_forever, args=(0.1,), name="answers", daemon=True).start()
        try:
            yield
        except BaseException as error:
            role.fail(error)
            raise
        finally:
            server.shutdown()
            path.unlink(missing_ok=True)


@contextmanager
def _short_path(folder: Path) -> Iterator[Path]:
    """Yield a path of the socket that has room in an address, 108 bytes, however long the folder's own is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}") / _SOCKET
    finally:
        os.close(descriptor)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def __init__(self, path: Path, role: Answers) -> None:
        path.unlink(missing_ok=True)  # of a session that was killed: this one has the run's lock
        super().__init__(str(path), _Asked)
        path.chmod(0o600)
        self.role = role


class _Asked(socketserver.StreamRequestHandler):
    server: _Server
    timeout = _QUESTION_S

    @override
    def handle(self) -> None:
        with suppress(OSError):  # who asked has gone
            line = self.rfile.readline(_MOST_BYTES)
            self.wfile.write(self._answer(line).model_dump_json().encode() + b"\n")

    def _answer(self, line: bytes) -> _Answer:
        role = self.server.role
        try:
            asked = _Question.model_validate_json(line)
            found = role.ask(asked.prepared, asked.nodes, ANSWER_S)
        except ValidationError:
            return _Answer(problem="not a question of this release", code="question")
        except VeilgraphError as error:
            return _Answer(problem=str(error), code=error.code)
        return _Answer(probabilities=found.probabilities.tolist())


async def ask_session(folder: Path, prepared: str, nodes: Sequence[int]) -> Tensor:
    """Ask the session at a label holder's part of a run for rows of the prediction ``prepared``: float64 [k, C].

    Raises ``RunError`` of the code that ``Answers.ask`` has raised, or "no-session": none runs here.
    """
    parts = []
    for start in range(0, len(nodes), _MOST_NODES):
        some = _Question(prepared=prepared, nodes=list(nodes[start : start + _MOST_NODES]))
        parts.append(await _ask(folder, some))
    return torch.cat(parts)


async def _ask(folder: Path, question: _Question) -> Tensor:
    gone = "no session opens kept predictions here; have an administrator submit one: --work refresh"
    try:
        with _short_path(folder) as path:
            reader, writer = await asyncio.open_unix_connection(path)
        with closing(writer):
            writer.write(question.model_dump_json().encode() + b"\n")
            found = _Answer.model_validate_json(await reader.read())
    except (OSError, ValidationError) as error:
        raise RunError(gone, code="no-session") from error
    if found.problem:
        raise RunError(found.problem, code=found.code)
    return torch.tensor(found.probabilities, dtype=torch.float64)
