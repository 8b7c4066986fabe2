"""Public and synthetic graphs in one piece, as PyTorch Geometric's ``Data``; ``simulate`` divides them.

data = vg.datasets.load("digits")
data = vg.datasets.split(data, train=0.5, val=0.25, test=0.25, seed=1)
world = vg.datasets.payments(customers=5_000, transfers=50_000, seed=1)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from veilgraph.core.errors import DataError
from veilgraph.core.settings import config_errors
from veilgraph.graph.dataset import masks_by_fractions
from veilgraph.graph.settings import DATASETS, DataSettings
from veilgraph.tables.settings import SplitFractions

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

__all__ = ["load", "names", "payments", "split"]


def names() -> tuple[str, ...]:
    """The data sets that a job or ``load`` may name, those of installed packages included."""
    return tuple(DATASETS)


def load(name: str, *, root: str | Path | None = None, seed: int = 0, **settings: object) -> Data:
    """A data set as one graph, with features as they are and the split that comes with it.

    Args:
        name: one of ``names()``.
        root: folder of its files; default: the variable ``VEILGRAPH_DATA``, else ``.data``.
        seed: of all draws: the same seed gives the same graph and split.
        settings: others of a job's ``data``, as ``block_model={"nodes": 1000}``.

    Returns:
        ``Data`` with ``x`` [N, F], dense or sparse_csr float32; ``edge_index`` [2, E]; ``y`` [N]; three masks [N] bool.

    Raises:
        ConfigError: there is no such data set, or it is not one graph.
        DataError: a file is missing or damaged.
    """
    with config_errors("load"):
        asked = DataSettings.model_validate({"dataset": name, "root": root, **settings})
    return DATASETS[name].whole(asked, seed)


def payments(*, seed: int = 0, **settings: object) -> Any:  # noqa: ANN401 - of the distribution veilgraph-datasets
    """A world of transfers between customers of several banks, some of whom launder in patterns that cross banks.

    ``load("payments", payments=settings, seed=seed)`` is its graph; a job's ``data.payments`` has the same settings.

    Args:
        seed: fixes everything.
        settings: of a job's ``data.payments``, as ``customers=2_000, transfers=20_000``; others have their defaults.

    Returns:
        The ``PaymentsWorld``: customers, transfers and the truth as arrays; ``view("A")`` and ``view("shop")`` are what
        an organisation sees of it, ``view("A").data()`` is that as a graph, and ``together()`` what all banks see.

    Raises:
        ConfigError: a setting is unknown or invalid, or sizes do not fit each other.
        DataError: a bank has too few customers for the patterns.
    """
    kind = DATASETS.find("data.dataset", "payments")
    with config_errors("payments"):
        asked = kind.settings.model_validate(settings)
    return kind.world(asked, seed)


def split(
    data: Data, *, train: float, val: float, test: float | None = None, seed: int = 0, stratify: bool = True
) -> Data:
    """Return a copy of the graph with ``train_mask``, ``val_mask`` and ``test_mask`` drawn anew.

    Args:
        data: with ``y``.
        train: share of the labelled nodes that are trained on; ``val`` and ``test`` likewise, of a sum of at most 1.
        val: share that early stopping judges by.
        test: share that the result is measured on; default: all others.
        seed: of the draw.
        stratify: take the shares of every class; else node by node, whatever its label.

    Raises:
        ConfigError: a share is out of range, or they add up to more than 1.
        DataError: there are no labels.
    """
    if not isinstance(data.get("y"), Tensor):
        raise DataError("data.y is missing, whose nodes a split divides; give labels", key="data.y")
    rest = 1 - train - val if test is None else test
    with config_errors("split"):
        fractions = SplitFractions(train=train, val=val, test=rest, seed=seed, stratify=stratify)
    return data.clone().update(masks_by_fractions(data.y, fractions, "data"))
