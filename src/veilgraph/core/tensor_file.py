"""Tensors and JSON-able facts in one safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_whole

Record = dict[str, Any]


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: Record) -> None:
    """Writes tensors and JSON-able facts to one safetensors file, whole or not at all."""
    copies = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    write_whole(path, save(copies, {"facts": json.dumps(facts)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Record]:
    """Reads what ``save_tensors`` wrote.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts: Record = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise _damaged(path, error) from error


def load_facts(path: Path) -> Record:
    """The facts alone.

    Raises:
        RunError: as ``load_tensors``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts: Record = json.loads((file.metadata() or {})["facts"])
            return facts
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> RunError:
    return RunError(f"{path}: missing or damaged ({error}); delete it and resume, or train again")
