"""The newest single release in a party's part of a run, so that it need not be repeated.

``privacy.schedule: once`` releases embeddings, paradigm local perturbed features and labels, and the vertical method
``perturbed`` such features. Who learns from a release keeps it; who releases keeps what tells whether its data have
changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.paradigms.run_directory import PartyStore, load_tensors, save_tensors

RELEASE: Final = "release.safetensors"


class KeptRelease:
    """What one holder keeps.

    Args:
        store: of the party.
        identity: of the alignment.
        nodes: C.
        data: of the holder, all that its part of a release depends on.

    Attributes:
        number: of the newest release; negative where what it depends on has changed since; 0 for none.
        tensors: by name, what the party was given, where the release holds.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, store: PartyStore, identity: str, nodes: int, data: Sequence[Tensor | None]) -> None:
        self._path = store.path / RELEASE
        self._depends_on = _digest(identity, nodes, data)
        self.number = 0
        self.tensors: Mapping[str, Tensor] = {}
        if not self._path.is_file():
            return
        tensors, facts = load_tensors(self._path)
        try:
            same, number = facts["depends_on"] == self._depends_on, int(facts["number"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._path}: damaged ({error}); delete it, and the holders release anew") from error
        self.number = number if same else -number
        self.tensors = tensors if same else {}

    def replace(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Keeps a new release: its number, and what the party was given of it."""
        save_tensors(self._path, tensors, {"number": number, "depends_on": self._depends_on})


def _digest(identity: str, nodes: int, data: Sequence[Tensor | None]) -> str:
    digest = hashlib.sha256(f"{identity}/{nodes}".encode())
    for tensor in (part for given in data for part in _parts(given)):
        digest.update(b"none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor is not None:
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _parts(tensor: Tensor | None) -> tuple[Tensor | None, ...]:
    if tensor is None or tensor.layout != torch.sparse_csr:
        return (tensor,)
    return tensor.crow_indices(), tensor.col_indices(), tensor.values()
