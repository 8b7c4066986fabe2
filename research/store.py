"""Finished trainings on disk, one JSON line each, so that an interrupted experiment goes on where it stopped.

A file is only ever appended to. A line torn by a kill is passed over and its training done again: ``pandas.read_json``
would refuse the whole file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from veilgraph import __version__
from veilgraph.core.errors import RunError
from veilgraph.core.files import append, private_folder
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings

_SUFFIX: Final = ".jsonl"


@dataclass(frozen=True)
class Finished:
    """One finished training.

    Attributes:
        key: of ``training_key``; equal for trainings that must give the same result.
        table: experiment it was done for.
        dataset: data set by the name the settings use.
        row: where in the table.
        column: where in the table.
        kind: federated, isolated or pooled.
        engine: what computed it: the parties' roles, or plaintext autograd in one process.
        seed: of partition and weights.
        version: of the package.
        val_accuracy: in [0, 1], of the best epoch.
        test_accuracy: in [0, 1], of the epoch that the validation nodes chose.
        best_epoch: that epoch.
        seconds: wall time, reading the data included.
        sent_bytes: by party over the whole run; None where nothing was sent.
        settings: the job as ``identity`` gives it.
        test_f1: macro F1 in [0, 1] of that epoch; None in lines of an earlier shape, which did not keep it.
    """

    key: str
    table: str
    dataset: str
    row: str
    column: str
    kind: str
    engine: str
    seed: int
    version: str
    val_accuracy: float
    test_accuracy: float
    best_epoch: int
    seconds: float
    sent_bytes: dict[PartyId, int] | None
    settings: dict[str, Any]
    test_f1: float | None = None


class Store:
    """The finished trainings of one experiment.

    Other experiments' files in the same folder are read too: a training that two of them need is done once.

    Args:
        folder: made if absent.
        name: of the experiment; its file is ``<folder>/<name>.jsonl``.

    Raises:
        RunError: the folder cannot be made or a file in it cannot be read.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}{_SUFFIX}"
        try:
            private_folder(folder)
            self._finished = {entry.key: entry for path in _files(folder, self.path) for entry in _read(path)}
        except OSError as error:
            raise RunError(f"{folder}: cannot be used ({error}); choose another --out") from error

    def get(self, key: str) -> Finished | None:
        """The finished training of that key, None if it is still to be done."""
        return self._finished.get(key)

    def require(self, key: str) -> Finished:
        """The finished training of that key.

        Raises:
            RunError: it is not finished.
        """
        entry = self.get(key)
        if entry is None:
            raise RunError(f"{self.path}: a training is not finished (key {key[:12]}); run the experiment again")
        return entry

    def add(self, entry: Finished) -> None:
        """Appends a training and makes sure that it is on the disk.

        Raises:
            RunError: the file cannot be written.
        """
        line = json.dumps(asdict(entry)).encode() + b"\n"
        try:
            append(self.path, line if _ends_whole(self.path) else b"\n" + line, sync=True)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error}); choose another --out") from error
        self._finished[entry.key] = entry


def training_key(settings: JobSettings, kind: str, engine: str) -> str:
    """SHA-256 (hex) of all that decides a training's result: settings with the seed, kind, engine, package version."""
    content = [identity(settings), kind, engine, package_version()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def identity(settings: JobSettings) -> dict[str, Any]:
    """The job without what cannot change its result: its name, its timeout, checkpoints, where the data lie."""
    return settings.model_dump(
        mode="json",
        exclude={"name": True, "preset": True, "timeout_s": True, "data": {"root"}, "train": {"checkpoint_every"}},
    )


def package_version() -> str:
    """Version of the package."""
    return __version__


def _files(folder: Path, own: Path) -> list[Path]:
    """All files of finished trainings, the experiment's own last, so that it wins."""
    others = sorted(path for path in folder.glob(f"*{_SUFFIX}") if path != own)
    return [*others, own] if own.is_file() else others


def _read(path: Path) -> Iterator[Finished]:
    for line in path.read_bytes().splitlines():
        try:
            yield Finished(**json.loads(line))
        except (ValueError, TypeError):  # torn, or of another version's shape: to be done again
            continue


def _ends_whole(path: Path) -> bool:
    """Whether the file is missing, or empty, or ends with a complete line."""
    if not path.exists():
        return True
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
