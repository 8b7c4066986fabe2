"""Tensors with JSON-able facts, in one safetensors file or under a name.

A keeper holds what outlives a session. The run decides where it lies: roles open no file.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.files import whole_path

Record = dict[str, Any]
_OS_ERROR: Final = re.compile(r"(?:os error|code:) (\d+)")  # as releases of the library word an error of the system


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Record) -> None:
    """Writes tensors and JSON-able facts to one safetensors file, whole or not at all; ``OSError``: it cannot."""
    with whole_path(path) as file:  # no copy of all tensors is made in memory
        try:
            save_file(_apart(tensors), file, {"facts": json.dumps(facts)})
        except SafetensorError as error:
            found = _OS_ERROR.search(str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Record]:
    """Read what ``save_tensors`` wrote; raises ``RunError`` if the file is missing or damaged."""
    with _open_with_facts(path) as (file, facts):
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


def load_facts(path: Path) -> Record:
    """Read the facts alone; raises ``RunError`` as ``load_tensors``."""
    with _open_with_facts(path) as (_, facts):
        return facts


@contextmanager
def _open_with_facts(path: Path) -> Iterator[tuple[Any, Record]]:
    """Open a safetensors file in the block, and read its facts; ``RunError``: it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file, from_json((file.metadata() or {})["facts"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path}: missing or damaged ({error}); delete it and resume, or train again") from error


class Kept(NamedTuple):
    """Tensors by name, and JSON-able facts about them."""

    tensors: Mapping[str, Tensor]
    facts: Record


OPENED: Final = "survivors"  # name of what a party keeps of sums that it helped to open: its run has begun


class Keeper(ABC):
    """Keeps tensors under names, for one party of one run."""

    @abstractmethod
    def get(self, name: str) -> Kept | None:
        """What was put there last; None where nothing was. Raises ``RunError`` if it is damaged."""

    @abstractmethod
    def put(self, name: str, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Store them in place of what was there, all or nothing: they are safe when this returns."""

    @abstractmethod
    def place(self, name: str) -> str:
        """Where they lie, in words for a person."""


class FolderKeeper(Keeper):
    """Keeps them as ``<name>.safetensors`` in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Path of the file of a name."""
        return self._folder / f"{name}.safetensors"

    def get(self, name: str) -> Kept | None:
        """Reads the file."""
        path = self.path(name)
        return Kept(*load_tensors(path)) if path.is_file() else None

    def put(self, name: str, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Writes the file whole; it is on the disk when this returns."""
        save_tensors(self.path(name), tensors, facts)

    def place(self, name: str) -> str:
        """Path of the file of a name, as text."""
        return str(self.path(name))


class MemoryKeeper(Keeper):
    """Keeps them for as long as the process lives."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}

    def get(self, name: str) -> Kept | None:
        """Return a copy of what is there, None where nothing is."""
        kept = self._kept.get(name)
        return None if kept is None else Kept(_copies(kept.tensors), dict(kept.facts))

    def put(self, name: str, tensors: Mapping[str, Tensor], facts: Record) -> None:
        """Copies them."""
        self._kept[name] = Kept(_copies(tensors), dict(facts))

    def place(self, name: str) -> str:
        """The name itself."""
        return name


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as they are where contiguous, each in memory of its own: copies of others."""
    found, places = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        part = tensor.detach().contiguous()
        found[name] = part.clone() if part.untyped_storage().data_ptr() in places else part
        places.add(part.untyped_storage().data_ptr())
    return found


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
