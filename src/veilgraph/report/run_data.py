"""What lies in a run directory, whole or one organisation's part of it: read once, for the page and the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.files import os_errors_as, read_json, run_errors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph, load_party
from veilgraph.protocol.figures import CLASS_MEASURES
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import DisclosureRecord
from veilgraph.report.tables import data_facts
from veilgraph.runtime.session.preparation import DAMAGED_ALIGNMENT, AlignmentFacts, read_drift
from veilgraph.runtime.store import LEDGER_SUMMARY
from veilgraph.runtime.store.predictions import Predictions, load_predictions, predicting_holder
from veilgraph.runtime.store.records import dealer_name
from veilgraph.runtime.store.run_directory import Record, RunDirectory
from veilgraph.runtime.store.session_log import software_words

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class _Spent(BaseModel):
    releases: dict[str, int]
    epsilon_release: float | None
    epsilon_total: float | None
    delta: float | None = None
    budget: float | None = None
    lasting: bool | None = None


@dataclass(frozen=True)
class RunData:
    """A run as far as it is here.

    Attributes:
        summary: None where the run is not complete, or the scores are at another organisation.
        metrics: one record per epoch; empty where they are at another organisation.
        sent: what the parties ``here``, the server included, have sent.
        trained: whether a part of a trained model is here.
        holders: holder → ``data_facts`` of its graph, where that is here.
        table_sizes: holder → rows of its node table, where an alignment told them; of holders elsewhere as well.
        spent: holder → what its ledger came to after its last piece of work, where that is here.
        drift: party → how the tables of its newest prediction have moved since training, where tables were read.
        deals: the name in the certificate of party ``server``; None on one machine.
        software: versions that the parties stated, session by session.
    """

    path: Path
    settings: JobSettings
    summary: Record | None
    metrics: list[Record]
    sent: list[DisclosureRecord]
    here: tuple[PartyId, ...]
    trained: bool
    holders: dict[PartyId, Record]
    table_sizes: dict[PartyId, int]
    spent: dict[PartyId, Record]
    drift: dict[PartyId, Record]
    deals: str | None
    software: str

    @property
    def parties(self) -> tuple[PartyId, ...]:
        """All parties of the job, the server last."""
        return (*self.settings.data.names, SERVER)

    @property
    def folders(self) -> dict[PartyId, Path]:
        """The folder of each party whose part is here."""
        return {party: RunDirectory(self.path).party_path(party) for party in self.here}

    @property
    def is_part(self) -> bool:
        """Whether this is an organisation's own part of a run, with the others' elsewhere."""
        return self.settings.data.is_apart and any(party not in self.here for party in self.parties)


def read_run(run: RunDirectory) -> RunData:
    """Read what a run directory has for a report: job, scores, records, facts of graphs, and ledgers."""
    settings = run.settings
    here = {party: run.party_path(party) for party in (*settings.data.names, SERVER) if run.party_path(party).is_dir()}
    records = [path / "disclosures.jsonl" for path in here.values()]
    graphs = {party: graph for party in here if (graph := _load_graph(run, party)) is not None}
    return RunData(
        path=run.path,
        settings=settings,
        summary=run.summary,
        metrics=run.metrics(),
        sent=[record for path in records if path.is_file() for record in read_disclosures(path)],
        here=tuple(here),
        trained=run.trained(),
        holders={party: data_facts([graph])[0] for party, graph in graphs.items()},
        table_sizes=_table_sizes(path / "alignment.json" for path in here.values()),
        spent=read_spent(run),
        drift={party: moved for party, path in here.items() if (moved := read_drift(path))},
        deals=dealer_name(here.values()),
        software=software_words(here.values()),
    )


def read_disclosures(path: Path) -> list[DisclosureRecord]:
    """Read a ``disclosures.jsonl``: every line must be whole, for a record with a gap is none."""
    way_out = "give the directory of a run that has been worked on"
    with os_errors_as(RunError, f"{path}: cannot be read", way_out, UnicodeDecodeError):
        lines = path.read_text(encoding="utf-8").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        with run_errors(f"{path}, line {number}", "restore the file from a copy, or begin a new run", "no disclosure"):
            records.append(DisclosureRecord.model_validate_json(line))
    return records


def read_spent(run: RunDirectory) -> dict[PartyId, Record]:
    """Holder → the summary of its ledger after its last work, an infinite ε as None; those without one are left out."""
    found = {}
    for party in run.settings.data.names:
        path = run.party_path(party) / LEDGER_SUMMARY
        if path.exists():
            found[party] = read_json(path, _Spent, "a new prediction writes it anew from the ledger").model_dump()
    return found


def _load_graph(run: RunDirectory, party: PartyId) -> PartyGraph | None:
    file = run.party_path(party) / "graph.safetensors"
    return load_party(file) if file.is_file() else None


def _table_sizes(paths: Iterable[Path]) -> dict[PartyId, int]:
    """Table sizes from the first alignment that is there; every party has the same."""
    kept = next(filter(Path.is_file, paths), None)
    return {} if kept is None else read_json(kept, AlignmentFacts, DAMAGED_ALIGNMENT).get("set_sizes", {})


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled and predicted nodes of one split: ``rows`` [T] are their places among the party's nodes.

    ``likely`` [T, C] are probabilities, calibrated where the run is; ``own`` [T, C] those that the network gives, which
    figures are computed from; ``taken`` [T] is the class that it chose, by which it was judged and selected.
    """

    rows: Whole
    labels: Whole
    likely: Floats
    taken: Whole
    own: Floats


@dataclass(frozen=True, eq=False)
class LabelledPredictions:
    """One party's newest predictions of its labelled validation and test nodes, with their labels.

    There is a test node at least. ``ids`` are of all its nodes, None where they have none.
    """

    party: PartyId
    classes: tuple[str, ...]
    val: Split
    test: Split
    calibrated: bool
    ids: tuple[str, ...] | None

    @property
    def commonest(self) -> int:
        """The most frequent class of the test nodes: no constant answer is right for more of them."""
        return int(np.bincount(self.test.labels).argmax())

    @property
    def is_ranked(self) -> bool:
        """Whether nodes of one predicted class have different probabilities."""
        return len(np.unique(self.test.own, axis=0)) > len(self.classes)


def read_predictions(found: RunData) -> LabelledPredictions | str:  # noqa: PLR0911 - a reason each
    """The newest predictions of the test nodes with their labels, or why there are none here."""
    run = RunDirectory(found.path)
    party, private = predicting_holder(run), found.settings.noise.label_release
    if private is not None:
        return f"the true labels are {private.holder}'s, and {party} never learns them."
    if set(found.settings.measures.figures) != set(CLASS_MEASURES.figures):
        return "what is predicted is not the class of a node."
    if not (run.party_path(party) / "predictions.safetensors").is_file():
        return f"{party}'s predictions are not in this directory."
    graph = _load_graph(run, party)
    if graph is None or graph.labels is None:
        return f"{party}'s labels are not in this directory."
    if graph.test_mask is None or not bool(graph.test_mask.any()):
        return "no node is set aside for testing."
    store = run.party(party)
    predictions, ids = load_predictions(store), store.ids()
    rows = _rows_of_predictions(predictions, ids, graph)
    if rows is None:
        return "the newest predictions are of other nodes than the labels here."
    val, test = (_split_of(graph, predictions, rows, f"{split}_mask") for split in ("val", "test"))
    if not len(test.labels):
        return "the newest predictions have no test node."
    classes, known = tuple(predictions.class_labels()), None if ids is None else tuple(ids)
    return LabelledPredictions(party, classes, val, test, predictions.calibration is not None, known)


def _rows_of_predictions(predictions: Predictions, ids: list[str] | None, graph: PartyGraph) -> Tensor | None:
    """For every common node its row among the predictions, −1 where it has none: Tensor[C] int64."""
    if predictions.compared is None or ids is None:
        rows = torch.full((graph.common,), -1)
        if bool((predictions.nodes >= graph.common).any()):
            return None
        rows[predictions.nodes] = torch.arange(len(predictions.nodes))
        return rows
    places = {text: row for row, text in enumerate(predictions.compared)}
    return torch.tensor([places.get(text, -1) for text in ids[: graph.common]], dtype=torch.int64)


def _split_of(graph: PartyGraph, predictions: Predictions, rows: Tensor, mask: str) -> Split:
    """The labelled common nodes of a mask that have a prediction, which ``rows`` [C] places."""
    chosen, labels = (
        torch.zeros(graph.common) if values is None else values[: graph.common]
        for values in (getattr(graph, mask), graph.labels)
    )
    nodes = torch.nonzero(chosen.bool() & (rows >= 0) & (labels >= 0)).ravel()
    places = rows[nodes]
    return Split(
        nodes.numpy(),
        labels[nodes].numpy(),
        predictions.probabilities[places].double().numpy(),
        predictions.uncalibrated[places].argmax(dim=1).numpy(),
        predictions.uncalibrated[places].double().numpy(),
    )
