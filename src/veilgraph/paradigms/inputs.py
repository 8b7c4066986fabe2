"""What a job on one machine begins with: the holders' graphs, of a data set, saved, or given from Python; or tables."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from veilgraph.core.config import JobSettings, parse_job
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import PartyId
from veilgraph.graph.datasets import load_for_learner, load_named_graphs, load_parties, load_parts
from veilgraph.graph.features import scale_features, scale_together
from veilgraph.graph.ids import checked_ids
from veilgraph.graph.party import PartyGraph, check_federation, check_names, save_party
from veilgraph.paradigms.organisation import Organisation
from veilgraph.paradigms.run_directory import RunDirectory
from veilgraph.privacy.local.build import feature_mechanism
from veilgraph.roles.feature_release import misplaced_labels

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

GivenParties = Sequence[PartyGraph] | Mapping[PartyId, "Data"]
"""One graph per holder, or holder → PyTorch Geometric ``Data``."""

GivenVector = Iterable[Hashable] | Tensor | np.ndarray
GivenIds = Mapping[PartyId, GivenVector]
"""Holder → the ids of its graph's rows."""


@dataclass(frozen=True)
class Inputs:
    """A job and its holders' graphs.

    Attributes:
        settings: the job as it is kept in the run directory.
        graphs: one per holder; none where each holder reads tables.
        ids: holder → its rows' ids, in paradigm horizontal.
    """

    settings: JobSettings
    graphs: Sequence[PartyGraph] = ()
    ids: Mapping[PartyId, Sequence[str]] = field(default_factory=dict)

    def save(self, run: RunDirectory) -> None:
        """Gives every holder its own, in its part of the run."""
        for graph in self.graphs:
            store = run.party(graph.party)
            save_party(graph, store.graph_path)
            if graph.party in self.ids:
                store.save_ids(self.ids[graph.party])


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
    if ids is not None and (parties is None or settings.paradigm != "horizontal"):
        raise ConfigError(
            "ids: they are for parties= in paradigm horizontal, whose rows are not the same nodes; leave out"
        )
    if parties is None and settings.data.from_tables:
        return Inputs(accepted_by_parties(settings))
    if settings.paradigm == "horizontal":
        return _horizontal(settings, parties, ids, out)
    if settings.paradigm == "local":
        return _local(settings, parties, out)
    graphs = load_parties(settings.data, settings.seed) if parties is None else _graphs(parties)
    if parties is not None:
        labelled = [graph.party for graph in graphs if graph.labels is not None]
        label_party = settings.data.label_holder or next(iter(labelled), graphs[0].party if graphs else "")
        check_federation(graphs, label_party)
        settings = _with_parties(settings, graphs, label_party, out)
        for graph in graphs:
            graph.validate()
        graphs = [scale_features(graph, settings.data.feature_scaling) for graph in graphs]
    check_federation(graphs, settings.data.label_party)
    return Inputs(settings, graphs)


def _horizontal(settings: JobSettings, parties: GivenParties | None, ids: GivenIds | None, out: Path) -> Inputs:
    if parties is None and settings.data.parties is None:
        parts = load_parts(settings.data, settings.seed)
        names = {part.graph.party: [str(node) for node in part.ids.tolist()] for part in parts}
        return Inputs(settings, [part.graph for part in parts], names)
    if parties is None:
        graphs, found = map(list, zip(*load_named_graphs(settings.data), strict=True))
        names = {graph.party: each for graph, each in zip(graphs, found, strict=True)}
    else:
        graphs = _graphs(parties)
        check_names(graphs)
        names = _names(parties, graphs, ids)
        settings = _with_parties(settings, graphs, settings.data.label_holder or graphs[0].party, out)
    for graph in graphs:
        if graph.common != graph.num_nodes:
            raise DataError(
                f"party {graph.party!r}: num_common={graph.num_common} is for paradigm vertical; a horizontal holder "
                "does not know which nodes are common: leave it out"
            )
        graph.validate()
    return Inputs(settings, scale_together(graphs, settings.data.feature_scaling), names)


def _local(settings: JobSettings, parties: GivenParties | None, out: Path) -> Inputs:
    """The learner's graph and the others' nodes; labels are at the learner, or at the holder that releases them."""
    private = settings.local.labels
    if parties is None:
        return Inputs(settings, local_graphs(settings))
    graphs = _graphs(parties)
    if not graphs:
        check_federation(graphs, "")
    labelled = next((graph.party for graph in graphs if graph.labels is not None), graphs[0].party)
    learner = settings.data.label_holder or (labelled if private is None else graphs[0].party)
    check_federation(graphs, learner if private is None else private.holder)
    for graph in graphs:
        graph.validate()
    settings = _with_parties(settings, graphs, learner, out)
    _check_local(settings, graphs)
    return Inputs(settings, graphs)


def local_graphs(settings: JobSettings) -> list[PartyGraph]:
    """All holders' graphs of a job of paradigm local over a data set or saved graphs, in the job's order.

    Raises:
        ConfigError: labels are not where the job says, or a split of them would tell what they are; a mechanism cannot
            release so many columns; or the data set is not one graph.
        DataError: the data cannot be read, or break a rule, or a feature lies outside the declared range.
    """
    private, data = settings.local.labels, settings.data
    if private is not None and data.parties is None and (data.split is None or data.stratify):
        raise ConfigError(
            f"{private.holder} refuses the job: the learner sees who is trained on, and a split by classes tells the "
            "labels that local.labels protects; give data.split, as in [0.5, 0.25, 0.25], with data.stratify: false"
        )
    labels_at = settings.data.label_party if private is None else private.holder
    graphs = load_for_learner(settings.data, labels_at, settings.seed)
    _check_local(settings, graphs)
    return graphs


def _check_local(settings: JobSettings, graphs: Sequence[PartyGraph]) -> None:
    """What the parties would find out, before a run directory is made; here with the value that is out of range."""
    for graph in graphs:
        if reason := misplaced_labels(settings, graph):
            raise ConfigError(f"{graph.party} refuses the job: {reason}")
        if settings.feature_release is None or graph.party not in settings.releasing:
            continue
        try:
            feature_mechanism(settings.feature_release, graph.num_features).check(graph.common_part().features)
        except DataError as error:
            raise DataError(f"party {graph.party!r}: {error}") from error


def _names(parties: GivenParties, graphs: Sequence[PartyGraph], ids: GivenIds | None) -> dict[PartyId, list[str]]:
    """Every holder's ids: as given, or of its ``Data``."""
    given: dict[PartyId, GivenVector] = {}
    if isinstance(parties, Mapping):
        given = {party: data.n_id for party, data in parties.items() if isinstance(data.get("n_id"), Tensor)}
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
    parties = settings.data.parties or {}
    if any(path is None for path in parties.values()):
        raise ConfigError(
            "data.parties: names alone are for jobs across organisations (veilgraph submit); on one machine give every "
            "holder's party file, as in parties: {bank: bank/party.yaml, shop: shop/party.yaml}"
        )
    paths = {name: path.absolute() for name, path in parties.items() if path}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update={"parties": paths})})
    for name, path in paths.items():
        reason = Organisation.read(path, name).refusal(settings, named=True)
        if reason is not None:
            raise ConfigError(f"{name} refuses the job: {reason}")
    return settings


def _with_parties(settings: JobSettings, parties: Sequence[PartyGraph], label_party: PartyId, out: Path) -> JobSettings:
    """The job for graphs given directly: its ``data`` names the holders and where the run keeps their graphs."""
    paths = {graph.party: str(RunDirectory(out).party_path(graph.party) / "graph.safetensors") for graph in parties}
    content = settings.model_dump(mode="json")
    content["data"].update(parties=paths, holders=len(parties), label_holder=label_party)
    return parse_job(content)


def _graphs(parties: GivenParties) -> list[PartyGraph]:
    if isinstance(parties, Mapping):
        return [PartyGraph.from_data(party, data) for party, data in parties.items()]
    return list(parties)
