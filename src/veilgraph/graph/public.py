"""Public data sets that are read from a folder: Cora, CiteSeer, PubMed, ACM, Amazon, Facebook, GitHub, ogbn-arxiv."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid
from torch_geometric.io import read_planetoid_data

from veilgraph.core.errors import DataError
from veilgraph.graph.features import choose_columns, compact, from_scipy
from veilgraph.graph.partition import deal_columns, split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.random_split import masks_by_fractions
from veilgraph.graph.settings import DataSettings
from veilgraph.tables.settings import SplitFractions

ROOT_VARIABLE = "VEILGRAPH_DATA"
_DEFAULT_ROOT = ".data"
_PLANETOID = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
_PLANETOID_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_ACM_FILES = ("p_feat.npz", "pap.npz", "psp.npz", "labels.npy", "train_20.npy", "val_20.npy", "test_20.npy")
_AMAZON_FILE = Path("fraud", "amazon_upu", "Amazon.mat")
_AMAZON_SPLIT = {"train": 0.4, "val": 0.2, "test": 0.4}
_MUSAE = {"facebook": ("musae_facebook", 4714), "github": ("musae_git", 4005)}
_MUSAE_SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25}


def data_root(settings: DataSettings) -> Path:
    """The folder of public data sets: ``data.root``, else the variable VEILGRAPH_DATA, else ``.data``."""
    return settings.root or Path(os.environ.get(ROOT_VARIABLE) or _DEFAULT_ROOT)


def load_planetoid_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """Cora, CiteSeer or PubMed with the public split (Yang et al. 2016), split vertically.

    Raises:
        DataError: the files are neither there nor to be had.
    """
    return _split(planetoid_data(settings.dataset, data_root(settings)), settings, seed)


def planetoid_data(dataset: str, root: Path) -> Data:
    """Reads a Planetoid graph from ``root/planetoid/<Name>/raw`` or ``root/<Name>/raw``, downloading it if absent.

    Reading writes nothing, so the folder may be read-only.

    Raises:
        DataError: the files are neither there nor to be had, or are damaged.
    """
    name = _PLANETOID[dataset]
    folders = [root / "planetoid" / name / "raw", root / name / "raw"]
    files = [f"ind.{dataset}.{part}" for part in _PLANETOID_PARTS]
    found = next((folder for folder in folders if all((folder / file).is_file() for file in files)), None)
    if found is None:
        found = _download_planetoid(name, root, folders)
    try:
        data = read_planetoid_data(str(found), dataset)
    except Exception as error:
        raise DataError(f"{found}: the files of {name} are damaged ({error}); delete and fetch them again") from error
    data.x = compact(data.x)
    return data


def _download_planetoid(name: str, root: Path, looked: list[Path]) -> Path:
    try:
        Planetoid(str(root / "planetoid"), name)
    except Exception as error:
        raise DataError(
            f"data.dataset={name.lower()!r}: no files in {looked[0]} or {looked[1]}, and the download failed "
            f"({error}); put the files ind.{name.lower()}.* there, or set data.root or {ROOT_VARIABLE} to "
            "their folder"
        ) from error
    return looked[0]


def load_acm_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """ACM papers with two relations over the same nodes, as two institutions would hold them.

    The first holder has the edges between papers of a common author (P-A-P), the second those of a common subject
    (P-S-P), without loops; columns are dealt at random. Twenty training labels a class.

    Raises:
        DataError: files are missing, or the settings ask for other than two holders or for edge proportions.
    """
    names = settings.names
    if len(names) != 2 or settings.edge_proportions is not None:
        raise DataError(
            f"data.dataset='acm' has two relations, one for each of two holders: data.holders={len(names)}, "
            f"edge_proportions={settings.edge_proportions}; set holders to 2 and remove edge_proportions"
        )
    folder = data_root(settings) / "multirel_acm"
    missing = [file for file in _ACM_FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"data.dataset='acm': {folder} lacks {', '.join(missing)}; fetch them from data/acm of "
            f"github.com/liun-online/HeCo, or set data.root or {ROOT_VARIABLE} to the folder above it"
        )
    features = from_scipy(sp.csr_matrix(sp.load_npz(folder / "p_feat.npz"), dtype=np.float32))
    labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
    masks = {
        f"{part}_mask": _mask(np.load(folder / f"{part}_20.npy"), len(labels)) for part in ("train", "val", "test")
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


def _mask(nodes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], num_nodes: int) -> Tensor:
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[torch.from_numpy(nodes).long()] = True
    return mask


def _without_loops(entries: sp.coo_matrix) -> Tensor:
    keep = entries.row != entries.col
    return torch.from_numpy(np.stack([entries.row[keep], entries.col[keep]]).astype(np.int64))


def load_amazon_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """Amazon's musical-instrument reviewers, some of them fraudsters, split vertically.

    The data set has no split of its own: of each class 40 % of the labelled users are for training, 20 % for
    validation and 40 % for testing, drawn by ``seed``.

    Raises:
        DataError: the file is missing or damaged.
    """
    return _split(amazon_data(data_root(settings), seed), settings, seed)


def amazon_data(root: Path, seed: int) -> Data:
    """Reads ``root/fraud/amazon_upu/Amazon.mat``: 10,224 users, 25 numbers of each, edges of the relation U-P-U.

    The relation joins users who reviewed a common product (Dou et al. 2020); class 1 is fraud. The file begins with
    users whose class is unknown and who stand there as honest (the authors leave them out of every split); it does
    not say how many. Taken as unlabelled are those before the first fraudster, 2,295: the true end cannot be far, for
    after it one in eleven is a fraudster.

    Args:
        root: folder of data sets.
        seed: of the split.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = root / _AMAZON_FILE
    if not path.is_file():
        raise DataError(
            f"data.dataset='amazon': there is no {path}; unpack it from datasets/Amazon.zip of "
            f"github.com/tzy528/sting, or set data.root or {ROOT_VARIABLE} to the folder that has {_AMAZON_FILE}"
        )
    try:
        content = scipy.io.loadmat(path)
        network = sp.coo_matrix(content["Network"])
        features = torch.from_numpy(sp.csr_matrix(content["Attributes"], dtype=np.float32).toarray())
        labels = np.asarray(content["Label"]).ravel().astype(np.int32)
        labels[: int((labels == 1).argmax())] = -1
    except Exception as error:
        raise DataError(f"{path}: damaged or another file ({error!r}); delete and fetch it again") from error
    classes = torch.from_numpy(labels).long()
    masks = masks_by_fractions(classes, SplitFractions(**_AMAZON_SPLIT, seed=seed), "amazon")
    return Data(x=features, edge_index=_without_loops(network), y=classes, **masks)


def load_musae_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """Facebook's pages or GitHub's developers, split vertically; see ``musae_data``.

    Raises:
        DataError: a file is missing or damaged.
    """
    return _split(musae_data(settings.dataset, data_root(settings), seed), settings, seed)


def musae_data(dataset: str, root: Path, seed: int) -> Data:
    """Reads a MUSAE graph (Rozemberczki et al. 2021) from ``root/facebook`` or ``root/github``.

    Facebook: 22,470 pages with 4,714 features and 4 classes; GitHub: 37,700 developers with 4,005 features and 2
    classes. Features are 0 or 1 and sparse; edges undirected, without loops. There is no split of its own: of each
    class half of the nodes are for training, a quarter for validation and a quarter for testing, drawn by ``seed``.

    Args:
        dataset: ``facebook`` or ``github``.
        root: folder of data sets.
        seed: of the split.

    Raises:
        DataError: a file is missing or damaged.
    """
    stem, columns = _MUSAE[dataset]
    paths = [root / dataset / file for file in (f"{stem}_edges.csv", f"{stem}_features.json", "target.csv")]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise DataError(
            f"data.dataset={dataset!r}: {root / dataset} lacks {', '.join(missing)}; fetch the edges and features from "
            "github.com/benedekrozemberczki/MUSAE or snap.stanford.edu, the targets (columns id, target) from "
            "dataset/node_level of github.com/benedekrozemberczki/karateclub, or set data.root or "
            f"{ROOT_VARIABLE} to the folder above it"
        )
    try:
        edges, targets = (np.loadtxt(path, dtype=np.int64, delimiter=",", skiprows=1) for path in (paths[0], paths[2]))
        nodes = len(targets)
        labels = np.full(nodes, -1)
        labels[targets[:, 0]] = targets[:, 1]
        of_nodes = {int(node): found for node, found in json.loads(paths[1].read_text()).items()}
        rows = np.repeat(list(of_nodes), [len(found) for found in of_nodes.values()])
        chosen = np.concatenate([np.asarray(found, dtype=np.int64) for found in of_nodes.values()])
        features = sp.csr_matrix((np.ones(len(rows), np.float32), (rows, chosen)), shape=(nodes, columns))
        network = sp.coo_matrix((np.ones(len(edges)), edges.T), shape=(nodes, nodes))
    except Exception as error:
        raise DataError(f"{root / dataset}: damaged or other files ({error!r}); delete and fetch them again") from error
    features.data[:] = 1  # a feature that is listed twice is there once
    classes = torch.from_numpy(labels)
    masks = masks_by_fractions(classes, SplitFractions(**_MUSAE_SPLIT, seed=seed), dataset)
    edge_index = _without_loops(sp.coo_matrix(network.tocsr() + network.T.tocsr()))
    return Data(x=from_scipy(features), edge_index=edge_index, y=classes, **masks)


def load_arxiv_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """ogbn-arxiv (Hu et al. 2020) with its split by year and its citations made undirected, split vertically.

    Raises:
        DataError: the package ``ogb`` is not installed, or the data set can be neither read nor downloaded.
    """
    return _split(arxiv_data(data_root(settings)), settings, seed)


def arxiv_data(root: Path) -> Data:
    """Reads ogbn-arxiv from ``root/ogbn_arxiv`` through ``ogb``, which downloads it if absent.

    Raises:
        DataError: the package ``ogb`` is not installed, or the data set can be neither read nor downloaded.
    """
    try:
        from ogb.nodeproppred import PygNodePropPredDataset  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise DataError(
            "data.dataset='ogbn-arxiv' needs the package ogb, which is not installed; pip install 'veilgraph[arxiv]'"
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
        masks[name] = _mask(split[part].numpy(), len(data.x))
    return Data(x=data.x, edge_index=edge_index, y=data.y.reshape(-1), **masks)


def _split(data: Data, settings: DataSettings, seed: int) -> list[PartyGraph]:
    return split_vertically(
        data,
        names=settings.names,
        feature_proportions=settings.feature_proportions,
        edge_proportions=settings.edge_proportions,
        label_holder=settings.label_party,
        seed=seed,
    )
