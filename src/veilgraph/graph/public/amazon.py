"""Amazon: reviewers of musical instruments, some of them fraudsters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from torch_geometric.data import Data
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.graph.dataset import DataSet
from veilgraph.graph.public.files import ROOT_VARIABLE, data_root, without_loops
from veilgraph.graph.random_split import masks_by_fractions
from veilgraph.graph.settings import DataSettings
from veilgraph.tables.settings import SplitFractions

_FILE = Path("fraud", "amazon_upu", "Amazon.mat")
_SPLIT = {"train": 0.4, "val": 0.2, "test": 0.4}


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
    path = root / _FILE
    if not path.is_file():
        raise DataError(
            f"data.dataset='amazon': there is no {path}; unpack it from datasets/Amazon.zip of "
            f"github.com/tzy528/sting, or set data.root or {ROOT_VARIABLE} to the folder that has {_FILE}"
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
    masks = masks_by_fractions(classes, SplitFractions(**_SPLIT, seed=seed), "amazon")
    return Data(x=features, edge_index=without_loops(network), y=classes, **masks)


class Amazon(DataSet):
    """The data set has no split of its own: of each class 40 % of the labelled users are for training, 20 % for
    validation and 40 % for testing, drawn by ``seed``.
    """

    @override
    def whole(self, settings: DataSettings, seed: int) -> Data:
        return amazon_data(data_root(settings), seed)


AMAZON = Amazon()
