"""Published data sets, read from a folder as their authors distribute them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.deferred import deferred
from veilgraph.core.errors import DataError
from veilgraph.core.types import MASKS
from veilgraph.graph.dataset import ROOT_VARIABLE, DataSet, data_root, masks_by_fractions
from veilgraph.graph.features import choose_columns, compact, from_scipy
from veilgraph.graph.partition import deal_columns
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings
from veilgraph.tables.settings import SplitFractions

with deferred():  # seconds to import
    from torch_geometric.data import Data


def _check_files(dataset: str, root: Path, folder: str, files: Iterable[str], source: str) -> None:
    """Refuses a data set of which files are missing below ``root``; ``source`` says where they are to be had."""
    if missing := [file for file in files if not (root / folder / file).is_file()]:
        raise DataError(
            f"data.dataset={dataset!r}: {root / folder} lacks {', '.join(missing)}; {source}, or set data.root or "
            f"{ROOT_VARIABLE} to the folder that has {folder}"
        )


@contextmanager
def _undamaged(place: Path) -> Iterator[None]:
    """Whatever a library raises of bytes that are not its own becomes a ``DataError``."""
    try:
        yield
    except Exception as error:
        raise DataError(f"{place}: damaged or other files ({error!r}); delete and fetch them again") from error


def _mask_of(nodes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes).long()] = True
    return mask


def _without_loops(entries: sp.coo_matrix) -> Tensor:
    """A matrix' entries beside its diagonal, as edges: Tensor[2, E] int64."""
    keep = entries.row != entries.col
    return torch.from_numpy(np.stack([entries.row[keep], entries.col[keep]]).astype(np.int64))


NAMES: Final = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}


def planetoid_data(dataset: str, root: Path) -> Data:
    """Reads a Planetoid graph from ``root/planetoid/<Name>/raw`` or ``root/<Name>/raw``, downloading it if absent.

    Reading writes nothing, so the folder may be read-only.

    Raises:
        DataError: the files are neither there nor to be had, or are damaged.
    """
    name = NAMES[dataset]
    folders = [root / "planetoid" / name / "raw", root / name / "raw"]
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = [f"ind.{dataset}.{part}" for part in parts]
    found = next((folder for folder in folders if all((folder / file).is_file() for file in files)), None)
    if found is None:
        found = folders[0]
        from torch_geometric.datasets import Planetoid  # noqa: PLC0415 - seconds to import

        try:
            Planetoid(str(root / "planetoid"), name)
        except Exception as error:
            raise DataError(
                f"data.dataset={dataset!r}: no files in {folders[0]} or {folders[1]}, and the download failed "
                f"({error}); put the files ind.{dataset}.* there, or set data.root or {ROOT_VARIABLE} to their folder"
            ) from error
    from torch_geometric.io import read_planetoid_data  # noqa: PLC0415 - as above

    with _undamaged(found):
        data = read_planetoid_data(str(found), dataset)
    data.x = compact(data.x)
    return data


@dataclass(frozen=True)
class PlanetoidGraph(DataSet):
    """Cora, CiteSeer or PubMed by its name in a job, with the public split (Yang et al. 2016)."""

    name: str

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return planetoid_data(self.name, data_root(settings))


_MUSAE = (
    "fetch the edges and features from github.com/benedekrozemberczki/MUSAE or snap.stanford.edu, the targets (columns "
    "id, target) from dataset/node_level of github.com/benedekrozemberczki/karateclub"
)
_LASTFM = (
    "fetch lasftm_asia.zip from snap.stanford.edu, or the files from new_node_level_dataset of "
    "github.com/benedekrozemberczki/FEATHER"
)
_MUSAE_SETS = {
    "facebook": ("musae_facebook", 4714, "target.csv", _MUSAE),
    "github": ("musae_git", 4005, "target.csv", _MUSAE),
    "lastfm": ("lastfm_asia", 7842, "lastfm_asia_target.csv", _LASTFM),
}


def musae_data(dataset: str, root: Path, seed: int, *, with_features: bool = True) -> Data:
    """Reads a graph of Rozemberczki et al. from the folder of its name in ``root``.

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
    stem, columns, targets_file, source = _MUSAE_SETS[dataset]
    edges_file, features_file = f"{stem}_edges.csv", f"{stem}_features.json"
    needed = [edges_file, *([features_file] if with_features else []), targets_file]
    _check_files(dataset, root, dataset, needed, source)
    folder = root / dataset
    with _undamaged(folder):
        edges, targets = (
            np.loadtxt(folder / file, dtype=np.int64, delimiter=",", skiprows=1) for file in (edges_file, targets_file)
        )
        nodes = len(targets)
        labels = np.full(nodes, -1)
        labels[targets[:, 0]] = targets[:, 1]
        listed = json.loads((folder / features_file).read_text()) if with_features else {"0": []}
        of_nodes = {int(node): found for node, found in listed.items()}
        rows = np.repeat(list(of_nodes), [len(found) for found in of_nodes.values()])
        chosen = np.concatenate([np.asarray(found, dtype=np.int64) for found in of_nodes.values()])
        features = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, chosen)), shape=(nodes, columns))
        network = sp.coo_matrix((np.ones(len(edges)), edges.T), shape=(nodes, nodes))
    features.data[:] = 1  # a feature that is listed twice is there once
    classes = torch.from_numpy(labels)
    masks = masks_by_fractions(classes, SplitFractions(train=0.5, val=0.25, test=0.25, seed=seed), dataset)
    edge_index = _without_loops(sp.coo_matrix(network.tocsr() + network.T.tocsr()))
    return Data(x=from_scipy(features), edge_index=edge_index, y=classes, **masks)


@dataclass(frozen=True)
class Musae(DataSet):
    """Facebook's pages, GitHub's developers (Rozemberczki et al. 2021) or LastFM's users in Asia (2020), by name."""

    name: str

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return musae_data(self.name, data_root(settings), seed)


class Arxiv(DataSet):
    """ogbn-arxiv (Hu et al. 2020) with its split by year and its citations made undirected."""

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        """Reads it from ``ogbn_arxiv`` through ``ogb``, which downloads it if absent.

        Raises:
            DataError: the package ``ogb`` is not installed, or the data set can be neither read nor downloaded.
        """
        try:
            from ogb.nodeproppred import PygNodePropPredDataset  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise DataError(
                "data.dataset='ogbn-arxiv' needs the package ogb, which is not installed; pip install ogb"
            ) from error
        from torch_geometric.data import Data  # noqa: PLC0415 - seconds to import
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: PLC0415 - with the extra only
        from torch_geometric.data.storage import GlobalStorage  # noqa: PLC0415

        root = data_root(settings)
        try:
            # ogb reads its cache with torch.load, which refuses PyG's classes unless they are named.
            with torch.serialization.safe_globals([DataEdgeAttr, DataTensorAttr, GlobalStorage, Data]):
                dataset = PygNodePropPredDataset("ogbn-arxiv", root=str(root))
            split = dataset.get_idx_split()
            data: Data = dataset[0]
        except Exception as error:
            raise DataError(
                f"data.dataset='ogbn-arxiv': cannot be read from {root / 'ogbn_arxiv'} nor downloaded ({error}); put "
                f"it there, or set data.root or {ROOT_VARIABLE} to the folder that has it"
            ) from error
        source, target = data.edge_index
        both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
        edge_index = torch.unique(both[:, both[0] != both[1]], dim=1)
        parts = zip(MASKS, ("train", "valid", "test"), strict=True)
        masks = {mask: _mask_of(split[part].numpy(), len(data.x)) for mask, part in parts}
        return Data(x=data.x, edge_index=edge_index, y=data.y.reshape(-1), **masks)


class Amazon(DataSet):
    """Reviewers of musical instruments: 10,224 users, 25 numbers of each; class 1 is fraud.

    Edges are the relation U-P-U, which joins users who reviewed a common product (Dou et al. 2020). The file begins
    with users whose class is unknown and who stand there as honest (the authors leave them out of every split); it does
    not say how many. Taken as unlabelled are those before the first fraudster, 2,295: the true end cannot be far, for
    after it one in eleven is a fraudster. There is no split: of each class 40 % of the labelled users are for training,
    20 % for validation and 40 % for testing, drawn by ``seed``.
    """

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        """Reads ``fraud/amazon_upu/Amazon.mat``.

        Raises:
            DataError: the file is missing or damaged.
        """
        root, folder, file = data_root(settings), "fraud/amazon_upu", "Amazon.mat"
        source = "unpack it from datasets/Amazon.zip of github.com/tzy528/sting"
        _check_files("amazon", root, folder, [file], source)
        path = root / folder / file
        with _undamaged(path):
            content = scipy.io.loadmat(path)
            network = sp.coo_matrix(content["Network"])
            features = torch.from_numpy(sp.csr_matrix(content["Attributes"], dtype=np.float32).toarray())
            labels = np.asarray(content["Label"]).ravel().astype(np.int32)
            labels[: int((labels == 1).argmax())] = -1
        classes = torch.from_numpy(labels).long()
        masks = masks_by_fractions(classes, SplitFractions(train=0.4, val=0.2, test=0.4, seed=seed), "amazon")
        return Data(x=features, edge_index=_without_loops(network), y=classes, **masks)


class Acm(DataSet):
    """ACM papers with two relations over the same nodes, as two institutions would hold them.

    The first holder has the edges between papers of a common author (P-A-P), the second those of a common subject
    (P-S-P), without loops; columns are dealt at random. Twenty training labels a class.
    """

    @override
    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        """Reads ``multirel_acm``.

        Raises:
            DataError: files are missing, or the settings ask for other than two holders or for edge proportions.
        """
        names = settings.names
        if len(names) != 2 or settings.edge_proportions is not None:
            raise DataError(
                f"data.dataset='acm' has two relations, one for each of two holders: data.holders={len(names)}, "
                f"edge_proportions={settings.edge_proportions}; set holders to 2 and remove edge_proportions"
            )
        root, subfolder = data_root(settings), "multirel_acm"
        files = ("p_feat.npz", "pap.npz", "psp.npz", "labels.npy", "train_20.npy", "val_20.npy", "test_20.npy")
        _check_files("acm", root, subfolder, files, "fetch them from data/acm of github.com/liun-online/HeCo")
        folder = root / subfolder
        features = from_scipy(sp.csr_matrix(sp.load_npz(folder / "p_feat.npz"), dtype=np.float32))
        labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
        masks = {
            mask: _mask_of(np.load(folder / f"{mask.removesuffix('_mask')}_20.npy"), len(labels)) for mask in MASKS
        }
        generator = torch.Generator().manual_seed(seed)
        columns = deal_columns(features.shape[1], names, settings.feature_proportions, generator)
        parties = []
        for name, relation, mine in zip(names, ("pap", "psp"), columns, strict=True):
            data = Data(
                x=compact(choose_columns(features, mine)),
                edge_index=_without_loops(sp.coo_matrix(sp.load_npz(folder / f"{relation}.npz"))),
            )
            if name == settings.label_party:
                data.y = labels
                data.update(masks)
            parties.append(PartyGraph.from_data(name, data))
        return parties


CORA, CITESEER, PUBMED = map(PlanetoidGraph, NAMES)
FACEBOOK, GITHUB, LASTFM = map(Musae, _MUSAE_SETS)
ARXIV, AMAZON, ACM = Arxiv(), Amazon(), Acm()
