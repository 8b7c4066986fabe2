"""Networks: local models, combine strategies, server layers, head.

Jobs name a local model and a strategy; docs/extending.md says how a package adds one. Without a package, a local
model is any ``torch.nn.Module`` with PyTorch Geometric's ``forward(x, edge_index)`` that keeps the width:
``fit(job, custom=Model)``, where ``Model(width)`` makes one, for each holder and round (``CustomModel``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from veilgraph.nn.combine import Combine, CombineSettings
    from veilgraph.nn.local.build import CustomModel
    from veilgraph.nn.local.model import HopModel, LocalModel, LocalSettings

__all__ = ["Combine", "CombineSettings", "CustomModel", "HopModel", "LocalModel", "LocalSettings"]

_HOMES: Final = {
    "Combine": "veilgraph.nn.combine",
    "CombineSettings": "veilgraph.nn.combine",
    "CustomModel": "veilgraph.nn.local.build",
    "HopModel": "veilgraph.nn.local.model",
    "LocalModel": "veilgraph.nn.local.model",
    "LocalSettings": "veilgraph.nn.local.model",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    return value
