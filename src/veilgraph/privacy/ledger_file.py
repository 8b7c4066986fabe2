"""The file of a privacy ledger: chained lines that are on the disk before what they tell of is done.

One JSON object per line. The first line names the job and δ, every other one is an entry for one or more releases, and
carries the SHA-256 of the line before it: whoever removes or changes a line breaks the chain. Lines cut off at the end
leave a shorter, whole chain: by itself the file protects against accidents and against deleted checkpoints. Those of
others who have heard how long it was notice the rest (``run.evidence``).

A part of a line at the end, without its newline, is an entry that was being written when the party was killed. The
write had not returned, so the release was not made: the part is dropped. Where only the newline is missing it counts.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime
from io import FileIO
from math import isfinite
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import appended_file, locked, write_whole
from veilgraph.privacy.event import Event, from_json, not_a_release, to_json

_WAY_OUT: Final = "restore a copy of the file that has every entry, or begin a new run"


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Header(_Line):
    ledger: Literal[1]
    job: str
    delta: float


class LedgerEntry(_Line):
    """One line: releases that are made after it is written.

    Attributes:
        time: in UTC.
        step: of the first of the releases.
        channel: what is released to whom.
        event: the mechanism, as JSON.
        count: number of releases, at least 1.
        total: ε of all releases about the same unit and neighbours up to and with these; None if it is infinite.
        previous: SHA-256 of the line before.
        content: names the draw, where what came of it is kept and sent again for nothing; else empty.
    """

    time: str
    step: int = Field(ge=0)
    channel: str = Field(min_length=1)
    event: dict[str, Any]
    count: int = Field(ge=1)
    total: float | None = Field(ge=0)
    previous: str
    content: str = ""

    @property
    def release(self) -> Event:
        """The event of each of the releases."""
        return from_json(self.event)


class LedgerFile:
    """A ledger's file, held by one process. Not safe for several threads at once.

    Attributes:
        path: of the file.
        delta: δ of the totals in it.
        entries: that were there when it was opened, in order.
    """

    def __init__(self, path: Path, delta: float, entries: list[LedgerEntry], head: str, held: ExitStack) -> None:
        self.path = path
        self.delta = delta
        self.entries = tuple(entries)
        self._head = head
        self._held = held
        self._file: FileIO | None = held.enter_context(appended_file(path))

    @classmethod
    def open(cls, path: Path, delta: float, *, job: str, expected: bool) -> Self:
        """Opens the file or begins it, mends its end after a kill, and locks its folder until closed.

        Args:
            path: of the file; its folder must be there.
            delta: δ of the totals.
            job: SHA-256 of the job's settings.
            expected: whether the file must be there.

        Raises:
            RunError: the file is missing though expected, damaged, changed, of another job or δ, in use, or cannot be
                read or written.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(path.parent, f"{path} is in use by another process; wait for it, or stop it"))
                if not path.exists():
                    _begin(path, _Header(ledger=1, job=job, delta=delta), expected=expected)
                lines = _mended(path)
                head, entries = _read(path, lines, job, delta)
                return cls(path, delta, entries, head, held.pop_all())
            except OSError as error:
                raise RunError(
                    f"{path}: cannot be read and written ({error}); nothing may be released without it. Make it "
                    "readable and writable"
                ) from error

    @staticmethod
    def delta_at(path: Path) -> float | None:
        """δ of a file that is there; None where none is, or what is there is no ledger, as ``open`` will say."""
        try:
            with path.open("rb") as file:
                return _parse(_Header, file.readline(), f"{path}, line 1").delta
        except (OSError, RunError):
            return None

    def append(self, step: int, channel: str, event: Event, count: int, total: float, content: str = "") -> None:
        """Writes an entry; when this returns, it is on the disk. The arguments are ``LedgerEntry``'s.

        Raises:
            RunError: it could not be written, now or before. The file is closed for good.
        """
        if self._file is None:
            raise RunError(f"{self.path}: closed, or a write failed; nothing is released without it: resume the run")
        entry = LedgerEntry(
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            step=step,
            channel=channel,
            event=to_json(event),
            count=count,
            total=total if isfinite(total) else None,
            previous=self._head,
            content=content,
        )
        line = _encoded(entry)
        try:
            write_durably(self._file, line)
        except OSError as error:
            self.close()
            raise RunError(
                f"{self.path}: cannot be written ({error}), so nothing was released; make room on the disk and resume"
            ) from error
        self._head = digest(line)

    def close(self) -> None:
        """Lets go of the file and its folder."""
        self._file = None
        self._held.close()


def _begin(path: Path, header: _Header, *, expected: bool) -> None:
    if expected:
        raise RunError(
            f"{path}: the ledger is gone while the run has checkpoints, so the budget that is left cannot be known; "
            + _WAY_OUT
        )
    write_whole(path, _encoded(header))
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _mended(path: Path) -> list[bytes]:
    """The file's lines, each with its newline; what a kill in mid-write left is dropped, or completed, in the file."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2 or lines[-1].endswith(b"\n"):
        return lines
    with path.open("r+b", buffering=0) as file:
        if _is_json(lines[-1]):
            file.seek(0, os.SEEK_END)
            lines[-1] += b"\n"
            write_durably(file, b"\n")
        else:
            torn = lines.pop()
            file.truncate(path.stat().st_size - len(torn))
            os.fsync(file.fileno())
    return lines


def _read(path: Path, lines: list[bytes], job: str, delta: float) -> tuple[str, list[LedgerEntry]]:
    """Checks every line. Returns the last one's digest and the entries."""
    if not lines or not lines[0].endswith(b"\n"):
        raise RunError(f"{path}, line 1: not the first line of a ledger; {_WAY_OUT}")
    header = _parse(_Header, lines[0], f"{path}, line 1")
    if header.job != job:
        raise RunError(
            f"{path}: the ledger is of job {header.job[:12]} and this is job {job[:12]}; every job has a ledger of its "
            "own: begin a new run"
        )
    if header.delta != delta:
        raise RunError(f"{path}: the ledger's δ is {header.delta:g} and the job's {delta:g}; begin a new run")
    head = digest(lines[0])
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        where = f"{path}, line {number}"
        entry = _parse(LedgerEntry, line, where)
        if entry.previous != head:
            raise RunError(f"{where}: the line before it was removed or changed since; {_WAY_OUT}")
        entries.append(entry)
        head = digest(line)
    return head, entries


_Schema = TypeVar("_Schema", bound=_Line)


def _parse(schema: type[_Schema], line: bytes, where: str) -> _Schema:
    try:
        parsed = schema.model_validate_json(line)
        if isinstance(parsed, LedgerEntry):
            _ = parsed.release
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in problem["loc"]) or "the line"
        raise RunError(f"{where}: not a ledger's line ({field}: {problem['msg']}); {_WAY_OUT}") from error
    except ConfigError as error:
        raise not_a_release(where, error, _WAY_OUT) from error
    return parsed


def _encoded(line: _Line) -> bytes:
    return json.dumps(line.model_dump(exclude_defaults=True), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def write_durably(file: FileIO, content: bytes) -> None:
    """Writes all of it, on the disk when this returns."""
    if file.write(content) != len(content):
        raise OSError("only a part was written")
    os.fsync(file.fileno())


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
