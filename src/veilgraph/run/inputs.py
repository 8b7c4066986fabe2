"""What a job on one machine begins with: the holders' graphs, of a data set, saved, or given from Python; or tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.graph.ids import checked_ids
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.graph.settings import DESCRIBED
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.run.run_directory import RunDirectory

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

GivenParties = Sequence[PartyGraph] | Mapping[PartyId, "Data | PartyGraph"]
"""One graph per holder, or holder → a graph, which may be PyTorch Geometric ``Data``."""

GivenVector = Iterable[Hashable] | Tensor | np.ndarray
GivenIds = Mapping[PartyId, GivenVector]
"""Holder → the ids of its graph's rows."""


def save_inputs(inputs: Inputs, run: RunDirectory) -> None:
    """Gives every holder its own, in its part of the run."""
    for graph in inputs.graphs:
        store = run.party(graph.party)
        save_party(graph, store.graph_path)
        if graph.party in inputs.ids:
            store.save_ids(inputs.ids[graph.party])


def gather_inputs(settings: JobSettings, parties: GivenParties | None, ids: GivenIds | None, out: Path) -> Inputs:
    """Reads what the job names, or takes what is given in its place.

    Args:
        settings: the job.
        parties: as for ``jobs.train``, and ``ids`` likewise.
        ids: see there.
        out: the run directory that is going to be made.

    Raises:
        ConfigError: a party refuses the job, or it cannot take what is given.
        DataError: the data cannot be read, or break a rule.
    """
    if ids is not None and (parties is None or settings.is_aligned):
        raise ConfigError(
            "ids: they are for parties= in paradigm horizontal, whose rows are not the same nodes; leave out"
        )
    paradigm = paradigm_of(settings)
    if parties is None:
        return Inputs(accepted_by_parties(settings)) if settings.data.from_tables else paradigm.load(settings)
    graphs = _graphs(parties)
    label_party = paradigm.label_party(settings, graphs)
    names = {} if settings.is_aligned else _names(parties, graphs, ids)
    settings = _with_parties(settings, graphs, label_party, out)
    _check_given(parties, graphs)
    return paradigm.accept(settings, graphs, names)


def _names(parties: GivenParties, graphs: Sequence[PartyGraph], ids: GivenIds | None) -> dict[PartyId, list[str]]:
    """Every holder's ids: as given, or of its ``Data``."""
    given: dict[PartyId, GivenVector] = {}
    if isinstance(parties, Mapping):
        given = {party: data.n_id for party, data in parties.items() if isinstance(getattr(data, "n_id", None), Tensor)}
    given |= ids or {}
    holders = [graph.party for graph in graphs]
    if unknown := sorted(set(given) - set(holders)):
        raise ConfigError(f"ids: {unknown[0]!r} is not one of the holders {', '.join(holders)}; mend the name")
    if absent := [holder for holder in holders if holder not in given]:
        raise ConfigError(
            f"ids: there are none of {absent[0]}, and paradigm horizontal tells nodes by their ids; give "
            "ids={holder: one per row} or Data.n_id"
        )
    return {graph.party: checked_ids(graph.party, given[graph.party], graph.num_nodes) for graph in graphs}


def accepted_by_parties(settings: JobSettings) -> JobSettings:
    """The job with its party files' absolute paths, which hold from everywhere, once every party accepts it.

    Every party says the same before work; here it is known before a run directory is made.

    Raises:
        ConfigError: a holder has no party file, or refuses.
    """
    if settings.data.is_apart:
        raise ConfigError(
            "data.holders: names alone are for jobs across organisations (veilgraph net submit); on one machine give "
            "every holder's party file, as in parties: {bank: bank/party.yaml, shop: shop/party.yaml}"
        )
    paths = {name: path.absolute() for name, path in (settings.data.parties or {}).items()}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"parties": paths})})
    for name, path in paths.items():
        reason = Organisation.read(path, name).refusal(settings, named=True)
        if reason is not None:
            raise ConfigError(f"{name} refuses the job: {reason}", code="refused")
    return settings


def _with_parties(settings: JobSettings, parties: Sequence[PartyGraph], label_party: PartyId, out: Path) -> JobSettings:
    """The job for graphs given directly: its ``data`` names the holders and where the run keeps their graphs."""
    paths = {graph.party: str(RunDirectory(out).party_path(graph.party) / "graph.safetensors") for graph in parties}
    content = settings.model_dump(mode="json")
    content["data"].update(dict.fromkeys(DESCRIBED.values()))
    content["data"].update(dataset=None, graphs=paths, holders=len(parties), label_holder=label_party)
    return parse_job(content)


def _check_given(parties: GivenParties, graphs: Sequence[PartyGraph]) -> None:
    """Graphs that come as such; of ``Data`` they were checked as they were made."""
    given = parties.values() if isinstance(parties, Mapping) else parties
    for graph in (graph for graph, each in zip(graphs, given, strict=True) if isinstance(each, PartyGraph)):
        graph.validate()


def _graphs(parties: GivenParties) -> list[PartyGraph]:
    if isinstance(parties, Mapping):
        return [
            replace(graph, party=party) if isinstance(graph, PartyGraph) else PartyGraph.from_data(party, graph)
            for party, graph in parties.items()
        ]
    return list(parties)
