"""A data set, as another package has it: docs/guides/extending.md says how."""

import torch
from torch_geometric.data import Data
from typing_extensions import override

from veilgraph.graph.builtin import random_masks
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.settings import DataSettings

NODES = 120


class Ring(DataSet):
    """Each node is linked with the next, and of the class of its half of the ring."""

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        generator = torch.Generator().manual_seed(seed)
        nodes = torch.arange(NODES)
        labels = (nodes >= NODES // 2).long()
        x = torch.randn(NODES, 8, generator=generator) + labels.unsqueeze(1)
        following = (nodes + 1) % NODES
        both = torch.stack([torch.cat([nodes, following]), torch.cat([following, nodes])])
        return Data(x=x, edge_index=both, y=labels, **random_masks(labels, 20, 20, seed))


RING = Ring()
