"""What an account has seen of lifetime ledgers, apart from them: so that one that is put back is noticed.

A copy that was put back is a whole chain by itself. What tells is a mark elsewhere on the machine: how many lines the
ledger had, and the hash of the last. Marks and ledger put back together are noticed by the other parties, who are
elsewhere (``run.heard``).

A new folder would be a new budget for the same people. So beside each mark is a sketch of the ids that its ledger is
about: their hashes under a secret of this account, the smallest ones alone. All sketches keep the hashes below some
bound, so that below the lower of two bounds they tell how many ids two ledgers share, also of a part or a union.
"""

from __future__ import annotations

import hmac
import json
import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder, write_whole
from veilgraph.core.secrets import system_secrets

MOST_HASHES: Final = 1 << 16
"""Of a sketch: half a MiB."""
_SHARED: Final = 0.1
"""Of the smaller sketch: with so many ids in common two ledgers are about the same people."""
_KEY: Final = "key"
_KEY_BYTES: Final = 32
_HASH_BYTES: Final = 8

Sketch = NDArray[np.uint64]
"""Sorted hashes, each once."""


@dataclass(frozen=True)
class Mark:
    """What this account has seen of a ledger.

    Attributes:
        folder: where the ledger was.
        lines: how many lines it had.
        head: SHA-256 of the last of them.
    """

    folder: str
    lines: int
    head: str


class Marks:
    """The marks of this account, each a file named by the ledger's id.

    Args:
        folder: of the marks, made at need; apart from the ledgers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, ledger: str) -> Mark | None:
        """The mark of a ledger; None where this account has seen nothing of it.

        Raises:
            RunError: it is damaged.
        """
        path = self._path(ledger)
        if not path.is_file():
            return None
        try:
            return Mark(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise RunError(f"{path}: damaged ({error}); restore it, or delete it where the ledger is new") from error

    def put(self, ledger: str, mark: Mark) -> None:
        """Replaces it: it is on the disk when this returns."""
        private_folder(self.folder)
        write_whole(self._path(ledger), json.dumps(mark.__dict__).encode())

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
        hashed = b"".join(hmac.digest(key, text.encode(), "sha256")[:_HASH_BYTES] for text in alike)
        return np.unique(np.frombuffer(hashed, "<u8").astype(np.uint64))[:MOST_HASHES]

    def add_people(self, ledger: str, sketch: Sketch) -> None:
        """Add people to those that a ledger is about."""
        both = np.union1d(self._people(ledger), sketch)[:MOST_HASHES]
        write_whole(self._people_path(ledger), both.astype("<u8").tobytes())

    def same_people(self, ledger: str, sketch: Sketch) -> Mark | None:
        """Return the mark of another ledger, with releases in it, that is about these people; None where none is.

        Raises:
            RunError: a sketch or mark is damaged.
        """
        for path in sorted(self.folder.glob("*.people")):
            mark = self.of(path.stem)
            if (
                path.stem != ledger
                and mark is not None
                and mark.lines > 1
                and _overlap(self._people(path.stem), sketch)
            ):
                return mark
        return None

    def _people(self, ledger: str) -> Sketch:
        path = self._people_path(ledger)
        content = path.read_bytes() if path.is_file() else b""
        if len(content) % _HASH_BYTES:
            raise RunError(f"{path}: damaged; restore it, or delete it, and its people are not recognised elsewhere")
        return np.frombuffer(content, "<u8").astype(np.uint64)

    def _secret(self) -> bytes:
        path = private_folder(self.folder) / _KEY
        with locked(self.folder, f"{self.folder} is in use", wait_s=math.inf):
            if not path.is_file():
                write_whole(path, system_secrets(_KEY_BYTES))
            secret = path.read_bytes()
        if len(secret) != _KEY_BYTES:
            raise RunError(
                f"{path}: damaged; restore it, or delete it, and people of earlier ledgers are not recognised"
            )
        return secret

    def _people_path(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.people"

    def _path(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.json"


def _overlap(one: Sketch, other: Sketch) -> bool:
    """Whether two sketches are of the same people, below the bound that both are whole to."""
    bound = min((each[-1] for each in (one, other) if len(each) == MOST_HASHES), default=np.uint64(2**64 - 1))
    one, other = one[one <= bound], other[other <= bound]
    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared > 0 and shared >= _SHARED * min(len(one), len(other))
