"""The newest single release (``privacy.schedule: once``) in a party's part of a run, so that it need not be repeated.

The label holder keeps the released rows. A holder that releases keeps what tells whether its data have changed since.
"""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.run_directory import PartyStore, load_tensors, save_tensors

RELEASE: Final = "release.safetensors"
_ROWS: Final = "released"


class KeptRelease:
    """What one holder keeps.

    Args:
        store: of the party.
        identity: of the alignment.
        graph: the party's own.
        labelled: whether it is the label holder, whose own data take no part in a release.

    Attributes:
        number: of the newest release; negative where what it depends on has changed since; 0 for none.
        rows: Tensor[C, width], at the label holder where the release holds.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, store: PartyStore, identity: str, graph: PartyGraph, *, labelled: bool) -> None:
        self._path = store.path / RELEASE
        self._depends_on = _digest(identity, graph, data_too=not labelled)
        self.number = 0
        self.rows: Tensor | None = None
        if not self._path.is_file():
            return
        tensors, facts = load_tensors(self._path)
        try:
            same, number = facts["depends_on"] == self._depends_on, int(facts["number"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._path}: damaged ({error}); delete it, and the holders release anew") from error
        self.number = number if same else -number
        self.rows = tensors.get(_ROWS) if same else None

    def replace(self, number: int, rows: Tensor | None) -> None:
        """Keeps a new release: its number and, at the label holder, its rows."""
        facts = {"number": number, "depends_on": self._depends_on}
        save_tensors(self._path, {} if rows is None else {_ROWS: rows}, facts)


def _digest(identity: str, graph: PartyGraph, *, data_too: bool) -> str:
    digest = hashlib.sha256(f"{identity}/{graph.common}".encode())
    if data_too:
        features = graph.features
        sparse = features.layout == torch.sparse_csr
        parts = (features.crow_indices(), features.col_indices(), features.values()) if sparse else (features,)
        for tensor in (*parts, graph.edge_index, graph.edge_weight):
            digest.update(b"none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            if tensor is not None:
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
