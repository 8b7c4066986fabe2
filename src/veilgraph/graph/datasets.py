"""From the job's data settings to one validated graph per holder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from veilgraph.core.data_settings import DataSettings
from veilgraph.core.errors import ConfigError
from veilgraph.graph.embedded import load_digits_parties, load_synthetic_parties
from veilgraph.graph.features import scale_features
from veilgraph.graph.party import PartyGraph, check_federation, load_party
from veilgraph.graph.public import (
    load_acm_parties,
    load_amazon_parties,
    load_arxiv_parties,
    load_planetoid_parties,
)

Loader = Callable[[DataSettings, int], list[PartyGraph]]
"""(settings, seed) → the holders' graphs in the settings' order, not yet scaled."""

DATASETS: dict[str, Loader] = {
    "digits": load_digits_parties,
    "synthetic": load_synthetic_parties,
    "cora": load_planetoid_parties,
    "citeseer": load_planetoid_parties,
    "pubmed": load_planetoid_parties,
    "acm": load_acm_parties,
    "amazon": load_amazon_parties,
    "ogbn-arxiv": load_arxiv_parties,
}
"""The data sets by the name the settings use."""


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
    parties = _saved(settings) if settings.parties is not None else DATASETS[settings.dataset](settings, seed)
    parties = [scale_features(graph, settings.feature_scaling) for graph in parties]
    for graph in parties:
        graph.validate()
    check_federation(parties, settings.label_party)
    return parties


def _saved(settings: DataSettings) -> list[PartyGraph]:
    paths = settings.parties or {}
    if settings.from_tables:
        raise ConfigError("data.parties: tables are read by each holder for itself; veilgraph train aligns them")
    return [_named(load_party(path), name) for name, path in paths.items() if path is not None]


def _named(graph: PartyGraph, name: str) -> PartyGraph:
    """The job's name for a holder counts, whatever name its file was saved under."""
    return replace(graph, party=name)
