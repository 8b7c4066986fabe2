"""Files of ledgers: lines of JSON, each on the disk before the release that it pays for is made.

The first line says whose the file is. Every other one is a payment and carries the SHA-256 of the line before it, so
that whoever removes or changes a line breaks the chain. Lines cut off at the end leave a shorter, whole chain: others
who have heard how long it was notice those (``session.exchange``).

A line without its newline at the end was being written when the party was killed. The write had not returned, so the
release was not made: the part is dropped.

Why no database: every first part of such a file is a whole older ledger, so a copy that is made at any moment, or a
kill at any byte, leaves one that can be judged. SQLite keeps payments that are committed in a second file, which a copy
of the first alone lacks, or changes pages in place, of which a part is none; and its locks end when the same process
reads the file elsewhere.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import append, sync_folder, write_whole
from veilgraph.privacy.event import Event, from_json, not_a_release


class Line(BaseModel):
    """A line of a ledger's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def encoded(self) -> bytes:
        """As it is in the file."""
        said = self.model_dump(exclude_defaults=True)
        return json.dumps(said, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class Payment(Line):
    """Releases that were made after the line was written.

    Attributes:
        time: in UTC.
        channel: what is released to whom.
        event: what each of the releases does, as JSON.
        count: how many, at least 1.
        content: names the draw, where what came of it is kept and sent again for nothing; else empty.
        previous: SHA-256 of the line before.
    """

    time: str
    channel: Annotated[str, Field(min_length=1)]
    event: dict[str, Any]
    count: Annotated[int, Field(ge=1)]
    content: str = ""
    previous: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = "0" * 64

    @property
    def release(self) -> Event:
        """The event of each of the releases."""
        return from_json(self.event)


Head = TypeVar("Head", bound=Line)
Entry = TypeVar("Entry", bound=Payment)


class ChainedFile(Generic[Head, Entry]):
    """One such file. Whoever reads or writes it holds its folder, and has one thread.

    Args:
        path: of the file.
        head: what its first line is.
        entry: what the others are.
        way_out: what helps where it is damaged.

    Attributes:
        header: the first line, once it was read.
        entries: the others, as far as they were read.
        digests: SHA-256 of every line that was read.
    """

    header: Head

    def __init__(self, path: Path, head: type[Head], entry: type[Entry], way_out: str) -> None:
        self.path, self.way_out = path, way_out
        self._head, self._entry = head, entry
        self.entries: list[Entry] = []
        self.digests: list[str] = []
        self._read_bytes = 0

    def begin(self, header: Head) -> None:
        """Write the first line: it is on the disk when this returns. Raises ``OSError``."""
        write_whole(self.path, header.encoded())
        sync_folder(self.path.parent)

    def read(self) -> None:
        """Read the lines that were added since, by this process or another, and drop what a kill tore.

        Raises:
            RunError: a line is damaged, changed or missing.
            OSError: the file cannot be read.
        """
        size = self.path.stat().st_size
        if size < self._read_bytes:
            raise RunError(f"{self.path}: it has become shorter; {self.way_out}")
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read().splitlines(keepends=True)
        if not self.digests and not (new and new[0].endswith(b"\n")):
            raise RunError(f"{self.path}, line 1: not the first line of a ledger; {self.way_out}")
        if new and not new[-1].endswith(b"\n"):
            torn = new.pop()
            with self.path.open("r+b", buffering=0) as mended:
                mended.truncate(size - len(torn))
                os.fsync(mended.fileno())
        for line in new:
            self._take(line)

    def append(self, entry: Entry) -> None:
        """Add a line to those that were read: it is on the disk when this returns. Raises ``OSError``."""
        line = entry.model_copy(update={"previous": self.digests[-1]}).encoded()
        append(self.path, line, sync=True)
        self._take(line)

    def _take(self, line: bytes) -> None:
        where = f"{self.path}, line {len(self.digests) + 1}"
        try:
            if not self.digests:
                self.header = self._head.model_validate_json(line)
            else:
                entry = self._entry.model_validate_json(line)
                _ = entry.release
                if entry.previous != self.digests[-1]:
                    raise RunError(f"{where}: the line before it was removed or changed since; {self.way_out}")
                self.entries.append(entry)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise RunError(f"{where}: not a ledger's line ({field}: {problem['msg']}); {self.way_out}") from error
        except ConfigError as error:
            raise not_a_release(where, error, self.way_out) from error
        self.digests.append(digest(line))
        self._read_bytes += len(line)


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="seconds")
