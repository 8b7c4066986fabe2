"""The file of a ledger for life, which several processes add to, and what an account has seen of such ledgers.

A folder has one, ``lifetime.jsonl``, and beside it who paid for each line, in ``cohorts``. The folder is held only
while a line is added, so that a party's jobs may run side by side.

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
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder, sync_folder, write_whole
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.chained_file import ChainedFile, Line, Payment
from veilgraph.privacy.lifetime_costs import Keys, keyed_hashes

FILE: Final = "lifetime.jsonl"
PEOPLE: Final = "people"  # a ledger's folder names its people here, where others have the same ids
_WAY_OUT: Final = "put back the newest copy of the folder"
_SECRET_BYTES: Final = 32
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
        """The mark of a ledger; None where this account has seen nothing of it. Raises ``RunError`` where it is
        damaged.
        """
        path = self.folder / f"{ledger}.json"
        if not path.is_file():
            return None
        try:
            return HighWaterMark(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: damaged ({error}); restore it, or delete it where the ledger is new") from error

    def put(self, ledger: str, mark: HighWaterMark) -> None:
        """Replace it: it is on the disk when this returns."""
        private_folder(self.folder)
        write_whole(self.folder / f"{ledger}.json", json.dumps(asdict(mark)).encode())

    def at(self, folder: Path) -> Path | None:
        """The mark of a ledger that was in that folder; None where none was."""
        for path in sorted(self.folder.glob("*.json")):
            mark = self.of(path.stem)
            if mark is not None and mark.folder == str(folder):
                return path
        return None

    def sketch(self, people: str, ids: Iterable[str]) -> Sketch:
        """Return the sketch of ids, however they are written in capitals, wide letters and spaces.

        Args:
            people: name of the people; others may have the same ids.
            ids: of them.

        Raises:
            RunError: this account's secret cannot be made or is damaged.
        """
        key = hmac.digest(self._secret(), people.encode(), "sha256")
        alike = (unicodedata.normalize("NFKC", text).strip().casefold() for text in ids)
        return np.unique(keyed_hashes(key, alike))[:MOST_HASHES]

    def add_people(self, ledger: str, sketch: Sketch) -> None:
        """Add people to those that a ledger is about."""
        both = np.union1d(self._people(ledger), sketch)[:MOST_HASHES]
        write_whole(self.folder / f"{ledger}.people", both.astype("<u8").tobytes())

    def same_people(self, ledger: str, sketch: Sketch) -> HighWaterMark | None:
        """Return the mark of another ledger, with releases in it, that is about these people; None where none is."""
        for path in sorted(self.folder.glob("*.people")):
            mark = None if path.stem == ledger else self.of(path.stem)
            if mark is not None and mark.lines > 1 and _overlap(self._people(path.stem), sketch):
                return mark
        return None

    def _people(self, ledger: str) -> Sketch:
        path = self.folder / f"{ledger}.people"
        content = path.read_bytes() if path.is_file() else b""
        try:
            return np.frombuffer(content, "<u8").astype(np.uint64)
        except ValueError as error:  # no whole number of hashes
            raise RunError(
                f"{path}: damaged; restore it, or delete it, and its people are not recognised elsewhere"
            ) from error

    def _secret(self) -> bytes:
        path = private_folder(self.folder) / "key"
        with locked(self.folder, f"{self.folder} is in use", wait_s=math.inf):
            if not path.is_file():
                write_whole(path, system_secrets(_SECRET_BYTES))
            secret = path.read_bytes()
        if len(secret) != _SECRET_BYTES:
            raise RunError(
                f"{path}: damaged; restore it, or delete it, and people of earlier ledgers are not recognised"
            )
        return secret


class Header(Line):
    """The first line.

    Attributes:
        lifetime: version of the format.
        id: of this ledger, drawn when it was begun.
        party: whose data it is about.
        salt: secret; nodes are known here by their ids' hashes under it.
    """

    lifetime: Literal[1]
    id: _Id
    party: Annotated[str, Field(min_length=1)]
    salt: _Hash


class Entry(Payment):
    """One line.

    Attributes:
        run: SHA-256 of the job's settings.
        job: its name.
        delta: δ of the job; None where every ε is pure.
        cohort: SHA-256 of the keys of the nodes that pay.
        nonce: drawn, so that no two lines are alike: two copies that go on by themselves differ at once.
    """

    run: str
    job: str
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    cohort: _Hash
    nonce: _Id = "0" * 32


class LifetimeFile(ChainedFile[Header, Entry]):
    """A ledger's file for life, in a folder made at need. Not safe for several threads at once.

    Raises:
        RunError: the file is damaged, older than it was, gone, of another party, or cannot be read or written.
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
        try:
            with locked(private_folder(self.folder), f"{self.folder} is in use", wait_s=math.inf):
                if not self.path.exists():
                    self._begin_anew()
                self.read()
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
        """Add a line while the ledger is held: it is on the disk, and marked, when this returns."""
        super().append(entry.model_copy(update={"nonce": system_secrets(16).hex()}))
        self._mark()

    def keep_cohort(self, keys: Keys) -> str:
        """Keep who pays (sorted keys), once for all entries that name the same nodes, and return their name."""
        name = cohort_name(keys)
        path = self._cohort(name)
        if not path.is_file():
            private_folder(path.parent)
            write_whole(path, keys.astype("<u8").tobytes())
            sync_folder(path.parent)
        return name

    def cohort(self, name: str) -> Keys:
        """Who pays, as ``keep_cohort`` kept it. Raises ``RunError`` where the file is missing or damaged."""
        path = self._cohort(name)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RunError(f"{path}: cannot be read ({error}); {_WAY_OUT}") from error
        if hashlib.sha256(content).hexdigest() != name:
            raise RunError(f"{path}: damaged; {_WAY_OUT}")
        return np.frombuffer(content, "<u8").astype(np.uint64)

    def _cohort(self, name: str) -> Path:
        return self.folder / "cohorts" / name

    def _begin_anew(self) -> None:
        if self.digests:
            raise RunError(f"{self.path}: it was there and is gone; {_WAY_OUT}")
        check_never_there(self.folder, self._marks)
        ident, salt = system_secrets(16).hex(), system_secrets(_SECRET_BYTES).hex()
        self.begin(Header(lifetime=1, id=ident, party=self._party, salt=salt))

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
        self._marks.put(self.header.id, HighWaterMark(str(self.folder), self.count, self.digests[-1]))


def cohort_name(keys: Keys) -> str:
    """What an entry names these nodes by: SHA-256 of their keys."""
    return hashlib.sha256(keys.astype("<u8").tobytes()).hexdigest()


def check_never_there(folder: Path, marks: Marks) -> None:
    """Raises ``RunError`` for a folder without a ledger in which this account has seen one."""
    folder = folder.resolve()
    if (mark := marks.at(folder)) is not None:
        raise RunError(
            f"{folder / FILE}: it is gone, and with it what was released of these data; {_WAY_OUT}. If other data are "
            f"there now, which nothing was ever released of: rm {mark}"
        )


def begun_by(folder: Path) -> str:
    """The party whose ledger is in a folder. Raises ``RunError`` where none is, or it is damaged."""
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
