"""ACM: papers with two relations."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.features import choose_columns, compact, from_scipy
from veilgraph.graph.partition import deal_columns
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.public.files import ROOT_VARIABLE, data_root, mask_of, without_loops
from veilgraph.graph.settings import DataSettings

_FILES = ("p_feat.npz", "pap.npz", "psp.npz", "labels.npy", "train_20.npy", "val_20.npy", "test_20.npy")


def acm_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
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
    missing = [file for file in _FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"data.dataset='acm': {folder} lacks {', '.join(missing)}; fetch them from data/acm of "
            f"github.com/liun-online/HeCo, or set data.root or {ROOT_VARIABLE} to the folder above it"
        )
    features = from_scipy(sp.csr_matrix(sp.load_npz(folder / "p_feat.npz"), dtype=np.float32))
    labels = torch.from_numpy(np.load(folder / "labels.npy")).long()
    masks = {
        f"{part}_mask": mask_of(np.load(folder / f"{part}_20.npy"), len(labels)) for part in ("train", "val", "test")
    }
    generator = torch.Generator().manual_seed(seed)
    columns = deal_columns(features.shape[1], names, settings.feature_proportions, generator)
    parties = []
    for name, relation, mine in zip(names, ("pap", "psp"), columns, strict=True):
        data = Data(
            x=compact(choose_columns(features, mine)),
            edge_index=without_loops(sp.coo_matrix(sp.load_npz(folder / f"{relation}.npz"))),
        )
        if name == settings.label_party:
            data.y = labels
            data.update(masks)
        parties.append(PartyGraph.from_data(name, data))
    return parties


class Acm(DataSet):
    """See ``acm_parties``."""

    @override
    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        return acm_parties(settings, seed)


ACM = Acm()
