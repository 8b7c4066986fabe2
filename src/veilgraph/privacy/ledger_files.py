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

A ledger for life is a file that several processes add to: ``lifetime.jsonl`` in a folder, and beside it who paid for
each line, in ``cohorts``. The folder is held only while a line is added, so that a party's jobs may run side by side.

A copy that was put back is a whole chain by itself. What tells is a *mark* elsewhere on the machine: how many lines the
ledger had, and the hash of the last. A file that is shorter than its mark, another, or gone from the folder where it
was is refused. Marks and ledger put back together are noticed by the other parties, who are elsewhere
(``session.exchange``).

A new folder would be a new budget for the same people. So beside each mark is a *sketch* of the ids that its ledger is
about: their hashes under a secret of this account, the smallest ones alone. All sketches keep the hashes below some
bound, so that below the lower of two bounds they tell how many ids two ledgers share, also of a part or a union.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from veilgraph.core.chain import digest, drop_torn
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import append, locked, os_errors_as, private_folder, read_json, sync_folder, write_whole
from veilgraph.core.secrets import SEED_BYTES, kept_secret, system_secrets
from veilgraph.core.validation import key_of, rule_of
from veilgraph.privacy.event import UNKNOWN, Event, from_json, to_json
from veilgraph.privacy.lifetime_costs import Keys, keyed_hashes


class Line(BaseModel):
    """A line of a ledger's file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def encoded(self) -> bytes:
        """Return the line as in the file: JSON, UTF-8, and a newline."""
        said = self.model_dump(exclude_defaults=True)
        return json.dumps(said, ensure_ascii=False, allow_nan=False).encode() + b"\n"


class Payment(Line):
    """Releases made after the line was written; ``content`` names a draw that is kept and sent again for nothing."""

    time: str
    channel: Annotated[str, Field(min_length=1)]
    event: Annotated[
        Event,
        PlainValidator(lambda event: event if isinstance(event, Event) else from_json(event)),
        PlainSerializer(to_json),
    ]
    count: Annotated[int, Field(ge=1)]
    content: str = ""
    previous: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] = "0" * 64


Head = TypeVar("Head", bound=Line)
Paid = TypeVar("Paid", bound=Payment)


class ChainedFile(Generic[Head, Paid]):
    """A ledger's file. Whoever reads or writes it holds its folder, and has one thread.

    ``way_out`` is what helps where it is damaged; ``digests`` are SHA-256 of every line read so far.
    """

    header: Head

    def __init__(self, path: Path, head: type[Head], entry: type[Paid], way_out: str) -> None:
        self.path, self.way_out = path, way_out
        self._head, self._entry = head, entry
        self.entries: list[Paid] = []
        self.digests: list[str] = []
        self._read_bytes = 0

    def begin(self, header: Head) -> None:
        """Write the first line: it is on the disk when this returns. Raises ``OSError``."""
        write_whole(self.path, header.encoded())
        sync_folder(self.path.parent)

    def read(self) -> None:
        """Read lines added since, drop a torn end; ``RunError``: one is damaged, changed or missing; ``OSError``."""
        if (size := self.path.stat().st_size) < self._read_bytes:
            raise RunError(f"{self.path}: has {size} bytes, and had {self._read_bytes}: lines are gone; {self.way_out}")
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            new = file.read().splitlines(keepends=True)
        if not self.digests and not (new and new[0].endswith(b"\n")):
            raise RunError(f"{self.path}, line 1: not the first line of a ledger; {self.way_out}")
        if new and not new[-1].endswith(b"\n"):
            new.pop()
            drop_torn(self.path)
        for line in new:
            self._take(line)

    def append(self, entry: Paid) -> None:
        """Add a line to those that were read: it is on the disk when this returns. Raises ``OSError``."""
        line = entry.model_copy(update={"previous": self.digests[-1]}).encoded()
        append(self.path, line, sync=True)
        self._take(line)

    def _take(self, line: bytes) -> None:
        """Check a line against the chain and add it, the first as header; ``RunError``: it is damaged or changed."""
        where = f"{self.path}, line {len(self.digests) + 1}"
        try:
            if not self.digests:
                self.header = self._head.model_validate_json(line)
            else:
                entry = self._entry.model_validate_json(line)
                if entry.previous != self.digests[-1]:
                    raise RunError(f"{where}: the line before it was removed or changed since; {self.way_out}")
                self.entries.append(entry)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            field = key_of(problem) or "the line"
            raise RunError(f"{where}: not a ledger's line ({field}: {rule_of(problem)}); {self.way_out}") from error
        except ConfigError as error:
            unknown, way_out = error.code == UNKNOWN, self.way_out
            if unknown:  # it is this program that lacks the event: no copy is of use
                way_out = "leave the file as it is, for another copy says the same"
            code = UNKNOWN if unknown else None
            raise RunError(f"{where}: not a release ({error}); {way_out}", code=code) from error
        self.digests.append(digest(line))
        self._read_bytes += len(line)


def now() -> str:
    """Return the time now, for an entry: UTC in whole seconds, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


FILE: Final = "lifetime.jsonl"
PEOPLE: Final = "people"  # a ledger's folder names its people here, where others have the same ids
_WAY_OUT: Final = "put back the newest copy of the folder"
_Id = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

MOST_HASHES: Final = 1 << 16  # of a sketch: half a MiB
_SHARED: Final = 0.1  # Of the smaller sketch: with so many ids in common two ledgers are about the same people.

Sketch = NDArray[np.uint64]  # sorted hashes, each once


@dataclass(frozen=True)
class HighWaterMark:
    """What this account has seen of a ledger: the folder where it was, how many lines, and SHA-256 of the last."""

    folder: str
    lines: int
    head: str


class Marks:
    """The marks of this account: files named by the ledgers' ids, in a folder apart from these, made at need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, ledger: str) -> HighWaterMark | None:
        """The mark of a ledger; None where this account has seen nothing of it. ``RunError`` where it is damaged."""
        path = self.folder / f"{ledger}.json"
        if not path.is_file():
            return None
        return read_json(path, HighWaterMark, "restore it, or delete it where the ledger is new")

    def put(self, ledger: str, mark: HighWaterMark) -> None:
        """Replace a ledger's mark: it is on the disk when this returns."""
        private_folder(self.folder)
        write_whole(self.folder / f"{ledger}.json", json.dumps(asdict(mark)).encode())

    def at(self, folder: Path) -> Path | None:
        """Return the mark's file of a ledger that was in that folder; None where none was."""
        for path in sorted(self.folder.glob("*.json")):
            mark = self.of(path.stem)
            if mark is not None and mark.folder == str(folder):
                return path
        return None

    def sketch(self, people: str, ids: Iterable[str]) -> Sketch:
        """Return the sketch of ids, however they are written in capitals, wide letters and spaces; or ``RunError``."""
        secret = kept_secret(self.folder / "key", "people of earlier ledgers are not recognised")
        key = hmac.digest(secret, people.encode(), "sha256")
        alike = (unicodedata.normalize("NFKC", text).strip().casefold() for text in ids)
        return np.unique(keyed_hashes(key, alike))[:MOST_HASHES]

    def add_people(self, ledger: str, sketch: Sketch) -> None:
        """Add a sketch to the saved one of the people whom a ledger is about."""
        both = np.union1d(self._read_people(ledger), sketch)[:MOST_HASHES]
        write_whole(self.folder / f"{ledger}.people", both.astype("<u8").tobytes())

    def same_people(self, ledger: str, sketch: Sketch) -> HighWaterMark | None:
        """Return the mark of another ledger, with releases in it, that is about these people; None where none is."""
        for path in sorted(self.folder.glob("*.people")):
            mark = None if path.stem == ledger else self.of(path.stem)
            if mark is not None and mark.lines > 1 and _overlap(self._read_people(path.stem), sketch):
                return mark
        return None

    def _read_people(self, ledger: str) -> Sketch:
        path = self.folder / f"{ledger}.people"
        content = path.read_bytes() if path.is_file() else b""
        try:
            return np.frombuffer(content, "<u8").astype(np.uint64)
        except ValueError as error:  # no whole number of hashes
            raise RunError(
                f"{path}: damaged; restore it, or delete it, and its people are not recognised elsewhere"
            ) from error


class Header(Line):
    """The first line: whose data it is about, an ``id``, and the secret ``salt`` of nodes' hashes here."""

    lifetime: Literal[1]
    id: _Id
    party: Annotated[str, Field(min_length=1)]
    salt: _Hash


class Entry(Payment):
    """One line, paid by a ``cohort`` (SHA-256 of its nodes' keys) at a job's δ, None where every ε is pure.

    ``nonce`` is drawn: two copies that go on by themselves differ at once.
    """

    run: str
    job: str
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    cohort: _Hash
    nonce: _Id = "0" * 32


class LifetimeFile(ChainedFile[Header, Entry]):
    """A ledger's file for life, in a folder made at need. Not safe for several threads at once.

    Raises ``RunError``: the file is damaged, older than it was, gone, of another party, or cannot be read or written.
    """

    def __init__(self, folder: Path, party: str, marks: Marks) -> None:
        self.folder, self._party, self._marks = folder.resolve(), party, marks
        super().__init__(self.folder / FILE, Header, Entry, _WAY_OUT)
        with self.held():
            if self.header.party != party:
                raise RunError(
                    f"{self.path}: of party {self.header.party!r}, and this is {party!r}; call it by that name where "
                    "the data are the same, or give every party a ledger of its own"
                )

    @property
    def count(self) -> int:
        """How many lines there are, the first among them."""
        return len(self.digests)

    def head(self, lines: int) -> str | None:
        """SHA-256 of the last of so many first lines, and with it of all before; None where there are fewer."""
        return self.digests[lines - 1] if 0 < lines <= self.count else None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the ledger, with all lines read that other processes have added. Errors as the constructor."""
        way_out = (
            "nothing may be released without it. Make it readable and writable, or say in the party file where else "
            "the ledger is to be (of a graph: ledgers= of veilgraph.fit)"
        )
        with (
            os_errors_as(RunError, f"{self.path}: cannot be read and written", way_out),
            locked(private_folder(self.folder), f"{self.folder} is in use", wait_s=math.inf),
        ):
            if not self.path.exists():
                self._begin_anew()
            self.read()
            self._check_mark()
            yield

    def check_people(self, ids: Iterable[str]) -> None:
        """Raise ``RunError`` where another ledger known here is about the same people; else record these ids."""
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
        """Add a line while the ledger is held: it is on the disk, and marked, when this returns."""
        super().append(entry.model_copy(update={"nonce": system_secrets(16).hex()}))
        self._put_mark()

    def keep_cohort(self, keys: Keys) -> str:
        """Save who pays (sorted keys), once for all entries of the same nodes, and return the cohort's name."""
        name = cohort_name(keys)
        path = self._cohort_path(name)
        if not path.is_file():
            private_folder(path.parent)
            write_whole(path, keys.astype("<u8").tobytes())
            sync_folder(path.parent)
        return name

    def cohort(self, name: str) -> Keys:
        """Return who pays, as ``keep_cohort`` saved it; ``RunError``: the file is missing or damaged."""
        path = self._cohort_path(name)
        with os_errors_as(RunError, f"{path}: cannot be read", _WAY_OUT):
            content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != name:
            raise RunError(f"{path}: damaged; {_WAY_OUT}")
        return np.frombuffer(content, "<u8").astype(np.uint64)

    def _cohort_path(self, name: str) -> Path:
        return self.folder / "cohorts" / name

    def _begin_anew(self) -> None:
        if self.digests:
            raise RunError(f"{self.path}: it was there and is gone; {_WAY_OUT}")
        check_never_there(self.folder, self._marks)
        ident, salt = system_secrets(16).hex(), system_secrets(SEED_BYTES).hex()
        self.begin(Header(lifetime=1, id=ident, party=self._party, salt=salt))

    def _check_mark(self) -> None:
        """Raise ``RunError`` where the file is older than its mark, or another; else renew the mark."""
        mark = self._marks.of(self.header.id)
        if mark is None:
            self._put_mark()
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
            self._put_mark()

    def _put_mark(self) -> None:
        self._marks.put(self.header.id, HighWaterMark(str(self.folder), self.count, self.digests[-1]))


def cohort_name(keys: Keys) -> str:
    """Return the name of these nodes in entries: SHA-256 of their sorted keys."""
    return hashlib.sha256(keys.astype("<u8").tobytes()).hexdigest()


def check_never_there(folder: Path, marks: Marks) -> None:
    """Raise ``RunError`` where this account has seen a ledger in ``folder``, for folders without one now."""
    folder = folder.resolve()
    if (mark := marks.at(folder)) is not None:
        raise RunError(
            f"{folder / FILE}: it is gone, and with it what was released of these data; {_WAY_OUT}. If other data are "
            f"there now, which nothing was ever released of: rm {mark}"
        )


def ledger_party(folder: Path) -> str:
    """Return the party whose ledger is in a folder; ``RunError``: none is there, or it is damaged."""
    path = folder / FILE
    try:
        return Header.model_validate_json(path.read_bytes().partition(b"\n")[0]).party
    except (OSError, ValidationError) as error:
        raise RunError(f"{path}, line 1: not the first line of a ledger; {_WAY_OUT}") from error


def _overlap(one: Sketch, other: Sketch) -> bool:
    """Whether two sketches are of the same people, below the bound that both are whole to."""
    bound = min((each[-1] for each in (one, other) if len(each) == MOST_HASHES), default=np.uint64(2**64 - 1))
    one, other = one[one <= bound], other[other <= bound]
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared > 0 and shared >= _SHARED * min(len(one), len(other))
