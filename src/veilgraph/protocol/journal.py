"""The journal of what a party took part in: one JSON object a line, only ever appended to, by one process at a time.

A line is on the disk before ``append`` returns. Where a crash tore the last line nobody knows what it said, so it is
counted as anything it may have been (``protocol.consent_settings.standing``).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from veilgraph.core.errors import RunError
from veilgraph.core.files import descriptor_of, private_folder, sync_folder
from veilgraph.protocol.consent_settings import Entry

_FILE: Final = "jobs.jsonl"


def utc_now() -> datetime:
    """What the system's clock says, UTC."""
    return datetime.now(UTC)


class Journal:
    """A journal in a folder that only this account can read.

    Args:
        folder: made at need, 0700; the journal in it is 0600.

    Raises:
        RunError: the folder or the file is open to others, or cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE
        try:
            private_folder(folder)
            for path in (folder, self.path):
                if path.exists() and path.stat().st_mode & 0o077:
                    raise RunError(f"{path} is open to other accounts; close it: chmod go= {path}")
        except OSError as error:
            raise RunError(f"{folder}: cannot be made ({error}); keep the kit where you may write") from error

    def size(self) -> int:
        """Bytes so far: nothing was added where they are as before."""
        return self.path.stat().st_size if self.path.exists() else 0

    def entries(self) -> list[Entry]:
        """All complete lines so far, without waiting for a process that adds one."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error
        return _parse(content[: content.rfind(b"\n") + 1])

    @contextmanager
    def held(self) -> Iterator[_Held]:
        """The journal for this process alone, until the end of the block; others wait.

        Raises:
            RunError: it cannot be read or written.
        """
        try:
            new = not self.path.exists()
            descriptor = descriptor_of(self.path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if new:
                sync_folder(self.path.parent)
            yield _Held(descriptor)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(descriptor)

    def _unusable(self, error: OSError) -> RunError:
        return RunError(f"{self.path}: cannot be used ({error}); no job is taken part in uncounted: mend that first")


class _Held:
    """What a process may do that holds the journal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        content = b""
        while part := os.pread(descriptor, 1 << 20, len(content)):
            content += part
        if content and not content.endswith(b"\n"):
            torn = Entry(time=utc_now(), what="torn")
            self._write(b"\n" + _line(torn))
            content += b"\n" + _line(torn)
        self.entries = _parse(content)

    def append(self, entry: Entry) -> None:
        """Adds a line; it is on the disk when this returns."""
        self._write(_line(entry))
        self.entries.append(entry)

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._descriptor, line) :]
        os.fsync(self._descriptor)


def _line(entry: Entry) -> bytes:
    return entry.model_dump_json(exclude_defaults=True).encode() + b"\n"


def _parse(content: bytes) -> list[Entry]:
    """One entry for each line; one that cannot be read is as new as the next that can."""
    entries: list[Entry] = []
    after = utc_now()
    for line in reversed(content.splitlines()):
        if not line.strip():
            continue
        try:
            entry = Entry.model_validate_json(line)
        except ValidationError:
            entry = Entry(time=after, what="unreadable")
        after = entry.time
        entries.append(entry)
    return entries[::-1]
