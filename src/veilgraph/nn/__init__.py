"""Networks: local models, combine strategies, server layers, head.

A local model of one's own is any ``torch.nn.Module`` with PyTorch Geometric's ``forward(x, edge_index)`` that keeps the
width: ``fit(job, custom=Model)``, where ``Model(width)`` makes one, for each holder and round (``CustomModel``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from veilgraph.nn.local import LocalModel
    from veilgraph.nn.network import CustomModel

__all__ = ["CustomModel", "LocalModel"]

_HOMES: Final = {"CustomModel": "veilgraph.nn.network", "LocalModel": "veilgraph.nn.local"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    return value
