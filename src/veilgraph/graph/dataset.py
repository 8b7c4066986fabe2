"""A data set, and how the ``data`` of a job becomes one graph per holder.

``graph.settings.DATASETS`` finds one by the name in a job. A package adds its own, an instance of a subclass of
``DataSet``, by an entry point of the group ``veilgraph.datasets``; ``veilgraph_testing.dataset`` holds it to the rules.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.settings import Settings
from veilgraph.core.types import MASKS, PartyId
from veilgraph.graph import partition
from veilgraph.graph.features import scale_features, scale_together
from veilgraph.graph.federation import check_federation
from veilgraph.graph.party import PartyGraph, checked_ids, load_party, load_party_ids
from veilgraph.graph.pooling import POOLED, HorizontalPart
from veilgraph.graph.settings import DATASETS, DataSettings
from veilgraph.tables.nodes import draw_splits
from veilgraph.tables.settings import SplitFractions

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

ROOT_VARIABLE: Final = "VEILGRAPH_DATA"


def data_root(settings: DataSettings) -> Path:
    """The folder of public data sets: ``data.root``, else the variable VEILGRAPH_DATA, else ``.data``."""
    return settings.root or Path(os.environ.get(ROOT_VARIABLE) or ".data")


def masks_by_fractions(labels: Tensor, fractions: SplitFractions, name: str) -> dict[str, Tensor]:
    """Draw masks, Tensor[N] bool each, for labels Tensor[N] (negative: none); the draw depends on ``name``."""
    splits = torch.from_numpy(draw_splits(labels.to(torch.int32).numpy(), fractions, name))
    return {mask: splits == index for index, mask in enumerate(MASKS)}


def split_randomly(graph: PartyGraph, fractions: SplitFractions) -> PartyGraph:
    """Return the graph with masks drawn anew by ``fractions``; ``DataError``: no labels, or an unusable split."""
    if graph.labels is None:
        raise DataError(
            f"party {graph.party!r}: labels are missing, and a split divides the labelled nodes; give labels",
            key="labels",
            party=graph.party,
        )
    found = replace(graph, **masks_by_fractions(graph.labels, fractions, graph.party))  # type: ignore[arg-type]
    found.check_split()
    return found


class DataSet:
    """A data set that a job names: one graph to divide, for which ``whole`` suffices, or one that comes divided.

    ``settings``: the model of its key in ``DESCRIBED``, or of ``data.made`` in another package; None: it has no key.
    ``comes_divided``: why no option divides it, where organisations have tables of their own (``export_tables``).
    ``schemas``: published schemas in which ``export_tables`` can write instead, given as ``schema``.
    """

    settings: ClassVar[type[Settings] | None] = None
    comes_divided: ClassVar[str] = ""
    schemas: ClassVar[tuple[str, ...]] = ()

    def whole(self, settings: DataSettings, seed: int) -> Data:
        """The graph, undivided: ``x`` [N, F], dense or sparse_csr; ``edge_index``; ``y``; masks. Features unscaled.

        The same settings (``data`` of the job) and seed give the same graph. Raises ``ConfigError``: it is not one
        graph; ``DataError``: a file is missing or damaged.
        """
        one = (name for name, each in DATASETS.items() if type(each).whole is not DataSet.whole)
        raise ConfigError(f"data.dataset={settings.dataset!r} is not one graph to divide; choose {', '.join(one)}")

    def parties(self, settings: DataSettings, seed: int) -> list[PartyGraph]:
        """The holders' graphs in the settings' order, over the same nodes, not scaled; ``DataError`` as ``whole``."""
        return partition.split_vertically(
            self.whole(settings, seed),
            names=settings.names,
            feature_proportions=settings.feature_proportions,
            edge_proportions=settings.edge_proportions,
            label_holder=settings.label_party,
            seed=seed,
            num_classes=self.classes(settings),
        )

    def parts(self, data: Data, settings: DataSettings, seed: int) -> list[HorizontalPart]:
        """The holders' parts of ``whole``, with the job's split, in the settings' order, unscaled; or ``DataError``."""
        how, names = settings.partition, settings.names
        if how.by == "edges":
            return partition.split_horizontally(data, names=names, seed=seed, overlap=how.overlap, knows=how.knows)
        if how.by == "nodes":
            return partition.split_by_nodes(data, names=names, seed=seed)
        return partition.split_by_label(data, names=names, seed=seed, mixed=how.mixed, knows=how.knows)

    def at_home(self, data: Data, settings: DataSettings, seed: int) -> list[tuple[PartyGraph, list[str]]]:
        """Every holder's own nodes of ``whole``, with all edges that touch them, and its rows' ids: ``split_at_home``.

        Nodes are dealt evenly. Features are unscaled. Raises ``DataError``: data breaks a party's rule.
        """
        whole = PartyGraph.from_data(POOLED, data, self.classes(settings))
        home = partition.deal_nodes(whole, len(settings.names), torch.Generator().manual_seed(seed))
        return partition.split_at_home(whole, settings.names, home)

    def export_tables(
        self, settings: DataSettings, out: Path, seed: int, table_format: Literal["csv", "parquet"]
    ) -> dict[PartyId, Path]:
        """Write the tables and party files of its organisations, and jobs over them; only if ``comes_divided``.

        Gives organisation → its party file. ``RunError``: ``out`` is in use or cannot be written.
        """
        raise NotImplementedError

    def classes(self, settings: DataSettings) -> int | None:
        """Return the number of classes, where one may have no node; None: the labels say it."""
        return None


def load_parts(settings: DataSettings, seed: int) -> list[HorizontalPart]:
    """Divide and scale the data set of a horizontal job on one machine: all holders' parts, in the order of names."""
    found = DATASETS[_dataset_name(settings)].parts(_whole_with_split(settings, seed), settings, seed)
    graphs = scale_together([part.graph for part in found], settings.feature_scaling)
    return [replace(part, graph=graph) for part, graph in zip(found, graphs, strict=True)]


def load_at_home(settings: DataSettings, seed: int) -> list[tuple[PartyGraph, list[str]]]:
    """Return each holder's own nodes with all edges that touch them, and its rows' ids, with the job's split."""
    dataset: DataSet = DATASETS[_dataset_name(settings)]
    return dataset.at_home(_whole_with_split(settings, seed), settings, seed)


def load_for_learner(settings: DataSettings, labels_at: PartyId, seed: int) -> list[PartyGraph]:
    """Load or divide all holders' graphs of a node-dp job on one machine, in the order of its names, and check them.

    ``labels_at``: the holder of the labels, ``settings.label_party`` or one whose nodes release them.
    """
    if settings.graphs is not None:
        parties = _load_saved(settings)
    else:
        whole = load_whole(settings, labels_at, seed)
        parties = partition.split_for_learner(
            whole, names=settings.names, learner=settings.label_party, labels_at=labels_at, seed=seed
        )
    check_federation(parties, labels_at)
    return parties


def load_whole(settings: DataSettings, party: PartyId, seed: int) -> PartyGraph:
    """Return the whole data set as the graph of ``party``, with the job's split; features are not scaled."""
    return PartyGraph.from_data(party, _whole_with_split(settings, seed))


def _whole_with_split(settings: DataSettings, seed: int) -> Data:
    data = DATASETS[_dataset_name(settings)].whole(settings, seed)
    fractions = _split_fractions(settings, seed)
    if fractions is None:
        return data
    masks = masks_by_fractions(data.y, fractions, _dataset_name(settings))
    return data.clone().update(masks)


def _dataset_name(settings: DataSettings) -> str:
    if settings.dataset is None:
        raise ConfigError("data.parties: tables are read by each holder for itself; veilgraph train aligns them")
    return settings.dataset


def _split_fractions(settings: DataSettings, seed: int) -> SplitFractions | None:
    if settings.split is None:
        return None
    train, val, test = settings.split
    return SplitFractions(train=train, val=val, test=test, seed=seed, stratify=settings.stratify)


def load_named_graphs(settings: DataSettings) -> list[tuple[PartyGraph, list[str]]]:
    """Load the saved graphs of a horizontal job, unscaled, with their rows' ids; ``DataError`` without ids."""
    found = []
    for graph, path in zip(_load_saved(settings), (settings.graphs or {}).values(), strict=True):
        ids = load_party_ids(path)
        if ids is None:
            raise DataError(
                f"{path}: the graph was saved without ids, by which a horizontal job tells its nodes; save it with "
                "save_party(graph, path, ids=...)"
            )
        found.append((graph, checked_ids(graph.party, ids, graph.num_nodes)))
    return found


def load_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """Load or divide all holders' graphs of a job on one machine, and scale, split and check them."""
    given = settings.graphs is not None
    parties = _load_saved(settings) if given else DATASETS[_dataset_name(settings)].parties(settings, seed)
    parties = [scale_features(graph, settings.feature_scaling) for graph in parties]
    fractions = _split_fractions(settings, seed)
    if fractions is not None:
        parties = [graph if graph.labels is None else split_randomly(graph, fractions) for graph in parties]
    check_federation(parties, settings.label_party)
    return parties


def _load_saved(settings: DataSettings) -> list[PartyGraph]:
    """Load the job's saved graphs, each under the job's name for its holder."""
    return [replace(load_party(path), party=name) for name, path in (settings.graphs or {}).items()]
