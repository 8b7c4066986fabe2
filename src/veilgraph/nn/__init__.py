"""Networks: local models, combine strategies, server layers, head.

Jobs name a local model and a strategy; docs/guides/extending.md says how a package adds one. Without a package, a local
model is any ``torch.nn.Module`` with PyTorch Geometric's ``forward(x, edge_index)`` that keeps the width:
``fit(job, custom=Model)``, where ``Model(width)`` makes one, for each holder and round (``CustomModel``).
"""

from __future__ import annotations

from veilgraph.nn.combine import Combine, CombineSettings
from veilgraph.nn.local.build import CustomModel
from veilgraph.nn.local.model import HopModel, LocalModel, LocalSettings

__all__ = ["Combine", "CombineSettings", "CustomModel", "HopModel", "LocalModel", "LocalSettings"]
