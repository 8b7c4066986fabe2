"""What data sets that are read from a folder have in common."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from veilgraph.graph.settings import DataSettings

ROOT_VARIABLE = "VEILGRAPH_DATA"
_DEFAULT_ROOT = ".data"


def data_root(settings: DataSettings) -> Path:
    """The folder of public data sets: ``data.root``, else the variable VEILGRAPH_DATA, else ``.data``."""
    return settings.root or Path(os.environ.get(ROOT_VARIABLE) or _DEFAULT_ROOT)


def mask_of(nodes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], num_nodes: int) -> Tensor:
    """True at some nodes: Tensor[N] bool."""
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes).long()] = True
    return mask


def without_loops(entries: sp.coo_matrix) -> Tensor:
    """A matrix' entries beside its diagonal, as edges: Tensor[2, E] int64."""
    keep = entries.row != entries.col
    return torch.from_numpy(np.stack([entries.row[keep], entries.col[keep]]).astype(np.int64))
