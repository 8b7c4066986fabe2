"""ogbn-arxiv (Hu et al. 2020) with its split by year and its citations made undirected."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.public.files import ROOT_VARIABLE, data_root, mask_of
from veilgraph.graph.settings import DataSettings


def arxiv_data(root: Path) -> Data:
    """Reads ogbn-arxiv from ``root/ogbn_arxiv`` through ``ogb``, which downloads it if absent.

    Raises:
        DataError: the package ``ogb`` is not installed, or the data set can be neither read nor downloaded.
    """
    try:
        from ogb.nodeproppred import PygNodePropPredDataset  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DataError(
            "data.dataset='ogbn-arxiv' needs the package ogb, which is not installed; pip install ogb"
        ) from error
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: PLC0415 - with the extra only
    from torch_geometric.data.storage import GlobalStorage  # noqa: PLC0415

    try:
        # ogb reads its cache with torch.load, which refuses PyG's classes unless they are named.
        with torch.serialization.safe_globals([DataEdgeAttr, DataTensorAttr, GlobalStorage, Data]):
            dataset = PygNodePropPredDataset("ogbn-arxiv", root=str(root))
        split = dataset.get_idx_split()
        data: Data = dataset[0]
    except Exception as error:
        raise DataError(
            f"data.dataset='ogbn-arxiv': cannot be read from {root / 'ogbn_arxiv'} nor downloaded ({error}); put it "
            f"there, or set data.root or {ROOT_VARIABLE} to the folder that has it"
        ) from error
    source, target = data.edge_index
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    edge_index = torch.unique(both[:, both[0] != both[1]], dim=1)
    masks = {}
    for name, part in (("train_mask", "train"), ("val_mask", "valid"), ("test_mask", "test")):
        masks[name] = mask_of(split[part].numpy(), len(data.x))
    return Data(x=data.x, edge_index=edge_index, y=data.y.reshape(-1), **masks)


class Arxiv(DataSet):
    """See ``arxiv_data``."""

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return arxiv_data(data_root(settings))


ARXIV = Arxiv()
