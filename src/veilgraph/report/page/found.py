"""What lies in a run directory, whole or one organisation's part of it, read once for all sections of the page."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.protocol.disclosures import DisclosureRecord
from veilgraph.protocol.job import JobSettings
from veilgraph.report.disclosures import read_disclosures
from veilgraph.run.evidence import who_deals
from veilgraph.run.run_directory import Record, RunDirectory
from veilgraph.run.software import software_words

_GRAPH: Final = "graph.safetensors"
_ALIGNMENT: Final = "alignment.json"


@dataclass(frozen=True)
class HolderFacts:
    """What one holder brings, in numbers.

    Attributes:
        nodes: its own included.
        common: those that all holders know.
        columns: of features.
        edges: directed.
        classes: None without labels.
        splits: labelled nodes for training, validation and testing; None without labels.
    """

    nodes: int
    common: int
    columns: int
    edges: int
    classes: int | None
    splits: tuple[int, int, int] | None


@dataclass(frozen=True)
class Found:
    """A run as far as it is here.

    Attributes:
        path: of the run directory.
        settings: of the job.
        summary: None where the run is not complete, or the scores are at another organisation.
        metrics: one record per epoch; empty where they are at another organisation.
        sent: what the parties whose part is here have sent.
        here: parties, the server included, whose part is here.
        trained: whether a part of a trained model is here.
        holders: holder → its facts, where its data are here.
        table_sizes: holder → rows of its node table, where an alignment told them; of holders elsewhere as well.
        common_nodes: as the alignment counted them; None where there was none.
        deals: the name in the certificate of party ``server``; None on one machine.
        software: versions that the parties stated, session by session; empty on one machine.
    """

    path: Path
    settings: JobSettings
    summary: Record | None
    metrics: list[Record]
    sent: list[DisclosureRecord]
    here: tuple[PartyId, ...]
    trained: bool
    holders: dict[PartyId, HolderFacts]
    table_sizes: dict[PartyId, int]
    common_nodes: int | None
    deals: str | None
    software: str

    @property
    def parties(self) -> tuple[PartyId, ...]:
        """All of the job, the server last."""
        return (*self.settings.data.names, SERVER)

    @property
    def elsewhere(self) -> tuple[PartyId, ...]:
        """Parties whose part is not here."""
        return tuple(party for party in self.parties if party not in self.here)

    @property
    def is_part(self) -> bool:
        """Whether this is an organisation's own part of a run, with the others' elsewhere."""
        return self.settings.data.is_apart and bool(self.elsewhere)


def find(run: RunDirectory) -> Found:
    """Reads a run directory.

    Raises:
        RunError: a file is damaged.
        DataError: a party's graph is.
    """
    settings = run.settings
    parties = (*settings.data.names, SERVER)
    here = tuple(party for party in parties if run.party_path(party).is_dir())
    records = [run.party_path(party) / "disclosures.jsonl" for party in here]
    sizes, common = _alignment(run.party_path(party) / _ALIGNMENT for party in here)
    return Found(
        path=run.path,
        settings=settings,
        summary=run.summary,
        metrics=run.metrics(),
        sent=[record for path in records if path.is_file() for record in read_disclosures(path)],
        here=here,
        trained=run.trained(),
        holders={party: _facts(graph) for party in here if (graph := graph_of(run.path, party)) is not None},
        table_sizes=sizes,
        common_nodes=common,
        deals=who_deals(map(run.party_path, here)),
        software=software_words(map(run.party_path, here)),
    )


def graph_of(path: Path, party: PartyId) -> PartyGraph | None:
    """A holder's data, None where they are not in the run directory at ``path``.

    Raises:
        DataError: the file is damaged.
    """
    file = RunDirectory(path).party_path(party) / _GRAPH
    return load_party(file) if file.is_file() else None


def _facts(graph: PartyGraph) -> HolderFacts:
    splits = None
    if graph.labels is not None or graph.targets is not None:
        train, val, test = (
            0 if mask is None else int(mask.sum()) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)
        )
        splits = train, val, test
    return HolderFacts(graph.num_nodes, graph.common, graph.num_features, graph.num_edges, graph.num_classes, splits)


def _alignment(paths: Iterable[Path]) -> tuple[dict[PartyId, int], int | None]:
    """Table sizes and the number of common nodes from the first alignment that is there; every party has the same."""
    for path in paths:
        if not path.is_file():
            continue
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            sizes = {str(party): int(size) for party, size in facts.get("set_sizes", {}).items()}
            common = facts.get("common_nodes")
            return sizes, None if common is None else int(common)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RunError(f"{path}: damaged ({error}); delete it, and the parties read their tables anew") from error
    return {}, None
