"""What an account has seen of lifetime ledgers, apart from them: so that one that is put back is noticed.

A copy that was put back is a whole chain by itself. What tells is a mark elsewhere on the machine: how many lines the
ledger had, and the hash of the last. Marks and ledger put back together are noticed by the other parties, who are
elsewhere (``run.heard``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from veilgraph.core.errors import RunError
from veilgraph.core.files import private_folder, write_whole


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

    def _path(self, ledger: str) -> Path:
        return self.folder / f"{ledger}.json"
