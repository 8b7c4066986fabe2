"""Facebook's pages, GitHub's developers (Rozemberczki et al. 2021) and LastFM's users in Asia (2020)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.features import from_scipy
from veilgraph.graph.public.files import ROOT_VARIABLE, data_root, without_loops
from veilgraph.graph.random_split import masks_by_fractions
from veilgraph.graph.settings import DataSettings
from veilgraph.tables.settings import SplitFractions

_SETS = {
    "facebook": ("musae_facebook", 4714, "target.csv"),
    "github": ("musae_git", 4005, "target.csv"),
    "lastfm": ("lastfm_asia", 7842, "lastfm_asia_target.csv"),
}
_SOURCES = {
    "lastfm": "fetch lasftm_asia.zip from snap.stanford.edu, or the files from new_node_level_dataset of "
    "github.com/benedekrozemberczki/FEATHER",
}
_MUSAE = (
    "fetch the edges and features from github.com/benedekrozemberczki/MUSAE or snap.stanford.edu, the targets (columns "
    "id, target) from dataset/node_level of github.com/benedekrozemberczki/karateclub"
)
_SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25}


def musae_data(dataset: str, root: Path, seed: int, *, with_features: bool = True) -> Data:
    """Read a graph of Rozemberczki et al. from the folder of its name in ``root``.

    Facebook: 22,470 pages with 4,714 features and 4 classes; GitHub: 37,700 developers with 4,005 features and 2
    classes; LastFM: 7,624 users with 7,842 liked artists and 18 countries. Features are 0 or 1 and sparse; edges
    undirected, without loops. There is no split of its own: of each class half of the nodes are for training, a
    quarter for validation and a quarter for testing, drawn by ``seed``.

    Args:
        dataset: ``facebook``, ``github`` or ``lastfm``.
        root: folder of data sets.
        seed: of the split.
        with_features: False leaves the features' file unread, and all features 0.

    Raises:
        DataError: a file is missing or damaged.
    """
    stem, columns, targets_file = _SETS[dataset]
    paths = [root / dataset / file for file in (f"{stem}_edges.csv", f"{stem}_features.json", targets_file)]
    needed = paths if with_features else [paths[0], paths[2]]
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise DataError(
            f"data.dataset={dataset!r}: {root / dataset} lacks {', '.join(missing)}; "
            f"{_SOURCES.get(dataset, _MUSAE)}, or set data.root or {ROOT_VARIABLE} to the folder above it"
        )
    try:
        edges, targets = (np.loadtxt(path, dtype=np.int64, delimiter=",", skiprows=1) for path in (paths[0], paths[2]))
        nodes = len(targets)
        labels = np.full(nodes, -1)
        labels[targets[:, 0]] = targets[:, 1]
        listed = json.loads(paths[1].read_text()) if with_features else {"0": []}
        of_nodes = {int(node): found for node, found in listed.items()}
        rows = np.repeat(list(of_nodes), [len(found) for found in of_nodes.values()])
        chosen = np.concatenate([np.asarray(found, dtype=np.int64) for found in of_nodes.values()])
        features = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, chosen)), shape=(nodes, columns))
        network = sp.coo_matrix((np.ones(len(edges)), edges.T), shape=(nodes, nodes))
    except Exception as error:
        raise DataError(f"{root / dataset}: damaged or other files ({error!r}); delete and fetch them again") from error
    features.data[:] = 1  # a feature that is listed twice is there once
    classes = torch.from_numpy(labels)
    masks = masks_by_fractions(classes, SplitFractions(**_SPLIT, seed=seed), dataset)
    edge_index = without_loops(sp.coo_matrix(network.tocsr() + network.T.tocsr()))
    return Data(x=from_scipy(features), edge_index=edge_index, y=classes, **masks)


@dataclass(frozen=True)
class Musae(DataSet):
    """One of them, by its name in a job; see ``musae_data``."""

    name: str

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return musae_data(self.name, data_root(settings), seed)


FACEBOOK, GITHUB, LASTFM = map(Musae, _SETS)
