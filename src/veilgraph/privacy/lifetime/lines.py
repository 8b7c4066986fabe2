"""The file of a lifetime ledger: chained lines that several processes add to, each on the disk before it counts.

A folder has one, ``lifetime.jsonl``, and beside it who paid for each line, in ``cohorts``. The folder is held only
while a line is added, so that a party's jobs may run side by side. What a kill tore in mid-write is dropped: it was not
paid for, and not released.

A file that is shorter than its mark, another, or gone from the folder where it was is refused (``marks``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import appended_file, locked, private_folder, sync_folder, write_whole
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.event import Event, from_json, not_a_release
from veilgraph.privacy.lifetime.costs import Keys
from veilgraph.privacy.lifetime.marks import Mark, Marks

FILE: Final = "lifetime.jsonl"
PEOPLE: Final = "people"
"""A ledger's folder names its people here, where others have the same ids."""
_COHORTS: Final = "cohorts"
_ID_BYTES: Final = 16
_SALT_BYTES: Final = 32
_WAY_OUT: Final = "put back the newest copy of the folder"
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Header(_Line):
    """The first line.

    Attributes:
        lifetime: of the format.
        id: of this ledger, drawn when it was begun.
        party: whose data it is about.
        salt: secret; nodes are known here by their ids' hashes under it.
    """

    lifetime: Literal[1]
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    party: Annotated[str, Field(min_length=1)]
    salt: _Hash


class Entry(_Line):
    """One line: releases that were made after it was written.

    Attributes:
        time: in UTC.
        run: SHA-256 of the job's settings.
        job: its name.
        channel: what is released to whom.
        event: what each of the releases does, as JSON.
        count: how many, at least 1.
        delta: δ of the job; None where every ε is pure.
        cohort: SHA-256 of the keys of the nodes that pay.
        content: names the draw, where what came of it is kept and sent again for nothing; else empty.
        nonce: drawn, so that no two lines are alike: two copies that go on by themselves differ at once.
        previous: SHA-256 of the line before.
    """

    time: str
    run: str
    job: str
    channel: Annotated[str, Field(min_length=1)]
    event: dict[str, Any]
    count: Annotated[int, Field(ge=1)]
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    cohort: _Hash
    content: str = ""
    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] = "0" * 32
    previous: _Hash = "0" * 64

    @property
    def release(self) -> Event:
        """The event of each of the releases."""
        return from_json(self.event)


def check_never_there(folder: Path, marks: Marks) -> None:
    """Of a folder without a ledger.

    Raises:
        RunError: this account has seen one there.
    """
    folder = folder.resolve()
    if (mark := marks.at(folder)) is not None:
        raise RunError(
            f"{folder / FILE}: it is gone, and with it what was released of these data; {_WAY_OUT}. If other data are "
            f"there now, which nothing was ever released of: rm {mark}"
        )


class Lines:
    """A lifetime ledger's file. Not safe for several threads at once.

    Args:
        folder: of the ledger, made at need.
        party: whose it is.
        marks: of this account.

    Attributes:
        header: its first line.
        entries: of the other lines, as far as they were read.

    Raises:
        RunError: the file is damaged, older than it was, gone, of another party, or cannot be read or written.
    """

    header: Header

    def __init__(self, folder: Path, party: str, marks: Marks) -> None:
        self.folder, self._party, self._marks = folder.resolve(), party, marks
        self.path = self.folder / FILE
        self.entries: list[Entry] = []
        self._digests: list[str] = []
        self._read_bytes = 0
        with self.held():
            if self.header.party != party:
                raise RunError(
                    f"{self.path}: of party {self.header.party!r}, and this is {party!r}; call it by that name where "
                    "the data are the same, or give every party a ledger of its own"
                )

    @property
    def count(self) -> int:
        """How many lines there are, the first among them."""
        return len(self._digests)

    def head(self, lines: int) -> str | None:
        """SHA-256 of the last of so many first lines, and with it of all before; None where there are fewer."""
        return self._digests[lines - 1] if 0 < lines <= self.count else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the ledger, with all lines read that other processes have added.

        Raises:
            RunError: as the constructor.
        """
        try:
            with locked(private_folder(self.folder), f"{self.folder} is in use", wait_s=math.inf):
                if not self.path.exists():
                    self._begin()
                self._read_new()
                self._check_mark()
                yield
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be read and written ({error}); nothing may be released without it. Make it "
                "readable and writable, or say in the party file where else the ledger is to be (of a graph: ledgers= "
                "of veilgraph.fit)"
            ) from error

    def check_people(self, ids: Iterable[str]) -> None:
        """Refuse to begin another budget for people whose releases this account knows of in another ledger.

        Args:
            ids: of all nodes that the data have.

        Raises:
            RunError: names that ledger.
        """
        with self.held():
            named = self.folder / PEOPLE
            name = named.read_text(encoding="utf-8").strip() if named.is_file() else ""
            sketch = self._marks.sketch(f"{self._party}/{name}", ids)
            if (other := self._marks.same_people(self.header.id, sketch)) is not None:
                raise RunError(
                    f"{self.path}: ids of these data are in the ledger of {self._party} in {other.folder}, which has "
                    "its own total of what was released of them. If they are the same people, go on with that ledger: "
                    f"`ledger: {other.folder}` in the party file (of a graph: --ledger, or ledgers= in Python). If "
                    f"other people have these ids, name them: echo merchants > {named}",
                    code="same-people",
                    key=str(other.folder),
                )
            self._marks.add_people(self.header.id, sketch)

    def append(self, entry: Entry) -> None:
        """Adds a line while the ledger is held: it is on the disk, and marked, when this returns."""
        drawn = {"nonce": system_secrets(_ID_BYTES).hex(), "previous": self._digests[-1]}
        line = _encoded(entry.model_copy(update=drawn))
        with appended_file(self.path) as file:
            if file.write(line) != len(line):
                raise OSError("only a part was written")
            os.fsync(file.fileno())
        self._read_new()
        self._mark()

    def keep_cohort(self, keys: Keys) -> str:
        """Keeps who pays, once for all entries that name the same nodes.

        Args:
            keys: of the nodes, sorted.

        Returns:
            What an entry names them by.
        """
        content = keys.astype("<u8").tobytes()
        name = hashlib.sha256(content).hexdigest()
        path = self._cohort(name)
        if not path.is_file():
            private_folder(path.parent)
            write_whole(path, content)
            sync_folder(path.parent)
        return name

    def cohort(self, name: str) -> Keys:
        """Who pays, as ``keep_cohort`` kept it.

        Raises:
            RunError: the file is missing or damaged.
        """
        path = self._cohort(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error}); {_WAY_OUT}") from error
        if hashlib.sha256(content).hexdigest() != name:
            raise RunError(f"{path}: damaged; {_WAY_OUT}")
        return np.frombuffer(content, "<u8").astype(np.uint64)

    def _cohort(self, name: str) -> Path:
        return self.folder / _COHORTS / name

    def _begin(self) -> None:
        """The first line, unless there was a ledger here before."""
        if self._digests:
            raise RunError(f"{self.path}: it was there and is gone; {_WAY_OUT}")
        check_never_there(self.folder, self._marks)
        ident, salt = system_secrets(_ID_BYTES).hex(), system_secrets(_SALT_BYTES).hex()
        write_whole(self.path, _encoded(Header(lifetime=1, id=ident, party=self._party, salt=salt)))
        sync_folder(self.folder)

    def _read_new(self) -> None:
        """The lines that were added since the last look, by this process or another."""
        size = self.path.stat().st_size
        if size < self._read_bytes:
            raise RunError(f"{self.path}: it has become shorter; {_WAY_OUT}")
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read().splitlines(keepends=True)
        if new and not new[-1].endswith(b"\n"):
            if not self._digests and len(new) == 1:
                raise RunError(f"{self.path}, line 1: not the first line of a ledger; {_WAY_OUT}")
            torn = new.pop()
            with self.path.open("r+b", buffering=0) as mended:
                mended.truncate(size - len(torn))
                os.fsync(mended.fileno())
        for line in new:
            self._take(line)
        if not self._digests:
            raise RunError(f"{self.path}: empty; {_WAY_OUT}")

    def _take(self, line: bytes) -> None:
        where = f"{self.path}, line {self.count + 1}"
        try:
            if not self._digests:
                self.header = Header.model_validate_json(line)
            else:
                entry = Entry.model_validate_json(line)
                _ = entry.release
                if entry.previous != self._digests[-1]:
                    raise RunError(f"{where}: the line before it was removed or changed since; {_WAY_OUT}")
                self.entries.append(entry)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in problem["loc"]) or "the line"
            raise RunError(f"{where}: not a ledger's line ({field}: {problem['msg']}); {_WAY_OUT}") from error
        except ConfigError as error:
            raise not_a_release(where, error, _WAY_OUT) from error
        self._digests.append(digest(line))
        self._read_bytes += len(line)

    def _check_mark(self) -> None:
        mark = self._marks.of(self.header.id)
        if mark is None:
            self._mark()
        elif mark.lines > self.count:
            raise RunError(
                f"{self.path}: it has {self.count} lines, and had {mark.lines} in {mark.folder}: it is an older copy; "
                f"{_WAY_OUT}"
            )
        elif self.head(mark.lines) != mark.head:
            raise RunError(
                f"{self.path}: line {mark.lines} is not the one that was in {mark.folder}: it is another copy, which "
                f"went on by itself; {_WAY_OUT}"
            )
        elif (mark.lines, mark.folder) != (self.count, str(self.folder)):
            self._mark()

    def _mark(self) -> None:
        self._marks.put(self.header.id, Mark(str(self.folder), self.count, self._digests[-1]))


def begun_by(folder: Path) -> str:
    """The party whose ledger is in a folder.

    Raises:
        RunError: none is, or it is damaged.
    """
    path = folder / FILE
    try:
        return Header.model_validate_json(path.read_bytes().partition(b"\n")[0]).party
    except (OSError, ValidationError) as error:
        raise RunError(f"{path}, line 1: not the first line of a ledger; {_WAY_OUT}") from error


def now() -> str:
    """The time of an entry."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _encoded(line: _Line) -> bytes:
    return json.dumps(line.model_dump(exclude_defaults=True), ensure_ascii=False, allow_nan=False).encode() + b"\n"
