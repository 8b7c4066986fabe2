"""From the job's data settings to one validated graph per holder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.features import scale_features, scale_together
from veilgraph.graph.ids import checked_ids
from veilgraph.graph.partition import split_for_learner
from veilgraph.graph.parts import HorizontalPart
from veilgraph.graph.party import PartyGraph, check_federation, load_party, load_party_ids
from veilgraph.graph.random_split import masks_by_fractions, split_randomly
from veilgraph.graph.settings import DATASETS, DataSettings
from veilgraph.tables.settings import SplitFractions

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data


def load_parts(settings: DataSettings, seed: int) -> list[HorizontalPart]:
    """All holders' parts of a horizontal job on one machine: divided, scaled and checked.

    Args:
        settings: ``data`` of the job; ``partition`` says how it is divided.
        seed: of the division and of the digits' label draw.

    Returns:
        One part per holder in the order of ``settings.names``.

    Raises:
        ConfigError: the data set is not one graph.
        DataError: a file is missing or damaged, or the data break a rule.
    """
    found = DATASETS[_dataset(settings)].parts(_whole(settings, seed), settings, seed)
    graphs = scale_together([part.graph for part in found], settings.feature_scaling)
    return [replace(part, graph=graph) for part, graph in zip(found, graphs, strict=True)]


def load_for_learner(settings: DataSettings, labels_at: PartyId, seed: int) -> list[PartyGraph]:
    """All holders' graphs of a job of paradigm node-dp on one machine; see ``split_for_learner``.

    Args:
        settings: ``data`` of the job; saved graphs are taken as they are.
        labels_at: who has the labels: ``settings.label_party``, or one whose nodes release them.
        seed: of the deal of the columns and of random splits.

    Returns:
        One graph per holder in the order of ``settings.names``.

    Raises:
        ConfigError: the data set is not one graph.
        DataError: a file is missing or damaged, or the data break a rule.
    """
    if settings.graphs is not None:
        parties = _saved(settings)
    else:
        whole = load_whole(settings, labels_at, seed)
        parties = split_for_learner(
            whole, names=settings.names, learner=settings.label_party, labels_at=labels_at, seed=seed
        )
    check_federation(parties, labels_at)
    return parties


def load_whole(settings: DataSettings, party: PartyId, seed: int) -> PartyGraph:
    """The data set as one graph, with the split that the job asks for; features as they are.

    Args:
        settings: ``data`` of the job.
        party: who has it.
        seed: of random splits.

    Raises:
        ConfigError: the data set is not one graph.
        DataError: a file is missing or damaged.
    """
    return PartyGraph.from_data(party, _whole(settings, seed))


def _whole(settings: DataSettings, seed: int) -> Data:
    """The data set as one graph, with the split that the job asks for."""
    data = DATASETS[_dataset(settings)].whole(settings, seed)
    fractions = _fractions(settings, seed)
    if fractions is None:
        return data
    masks = masks_by_fractions(data.y, fractions, _dataset(settings))
    return data.clone().update(masks)


def _dataset(settings: DataSettings) -> str:
    if settings.dataset is None:
        raise ConfigError("data.parties: tables are read by each holder for itself; veilgraph train aligns them")
    return settings.dataset


def _fractions(settings: DataSettings, seed: int) -> SplitFractions | None:
    if settings.split is None:
        return None
    train, val, test = settings.split
    return SplitFractions(train=train, val=val, test=test, seed=seed, stratify=settings.stratify)


def load_named_graphs(settings: DataSettings) -> list[tuple[PartyGraph, list[str]]]:
    """The saved graphs of a horizontal job, as they are, and the ids of their rows.

    Args:
        settings: ``data`` of the job, whose ``graphs`` are named.

    Returns:
        One pair per holder in the order of ``settings.names``.

    Raises:
        DataError: a file is missing or damaged, breaks a rule, or was saved without ids.
    """
    found = []
    for graph, path in zip(_saved(settings), (settings.graphs or {}).values(), strict=True):
        ids = load_party_ids(path)
        if ids is None:
            raise DataError(
                f"{path}: the graph was saved without ids, by which a horizontal job tells its nodes; save it with "
                "save_party(graph, path, ids=...)"
            )
        found.append((graph, checked_ids(graph.party, ids, graph.num_nodes)))
    return found


def load_parties(settings: DataSettings, seed: int) -> list[PartyGraph]:
    """All holders' graphs of a job on one machine: read or split, scaled, checked one by one and together.

    Args:
        settings: ``data`` of the job.
        seed: of the split and of the digits' label draw.

    Returns:
        One graph per holder in the order of ``settings.names``.

    Raises:
        DataError: a file is missing or damaged, or the data break a rule.
    """
    given = settings.graphs is not None
    parties = _saved(settings) if given else DATASETS[_dataset(settings)].parties(settings, seed)
    parties = [scale_features(graph, settings.feature_scaling) for graph in parties]
    fractions = _fractions(settings, seed)
    if fractions is not None:
        parties = [graph if graph.labels is None else split_randomly(graph, fractions) for graph in parties]
    check_federation(parties, settings.label_party)
    return parties


def _saved(settings: DataSettings) -> list[PartyGraph]:
    return [_named(load_party(path), name) for name, path in (settings.graphs or {}).items()]


def _named(graph: PartyGraph, name: str) -> PartyGraph:
    """The job's name for a holder counts, whatever name its file was saved under."""
    return replace(graph, party=name)
