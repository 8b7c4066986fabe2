"""The newest predictions beside the labels, where one party's both are in this directory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.figures import CLASS_MEASURES
from veilgraph.report.page.found import Found, graph_of
from veilgraph.run.predictions import Predictions, load_predictions, reading
from veilgraph.run.run_directory import RunDirectory

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Predicted nodes of one split.

    Attributes:
        rows: [T], their numbers among the party's nodes.
        labels: [T].
        likely: [T, C] probabilities, calibrated where the run is.
        taken: [T], the class that the network chose.
        own: [T, C] probabilities as the network gives them, of which figures are.
    """

    rows: Whole
    labels: Whole
    likely: Floats
    taken: Whole
    own: Floats


@dataclass(frozen=True, eq=False)
class Scored:
    """What one party's predictions say of its labelled nodes.

    Attributes:
        party: whose labels and predictions they are.
        classes: C names.
        val: validation nodes; none where none is set aside.
        test: test nodes, at least one.
        calibrated: whether probabilities are.
        ids: of all its nodes, where they have any.
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


def scored(found: Found) -> Scored | str:
    """The predictions of the test nodes with their labels, or why there are none here.

    Raises:
        RunError, DataError: a file is damaged.
    """
    run = RunDirectory(found.path)
    party = reading(run)
    if never := _never(found, party):
        return never
    folder = run.party_path(party)
    if not (folder / "predictions.safetensors").is_file():
        return f"{party}'s predictions are not in this directory."
    graph = graph_of(found.path, party)
    if graph is None or graph.labels is None:
        return f"{party}'s labels are not in this directory."
    if graph.test_mask is None or not bool(graph.test_mask.any()):
        return "no node is set aside for testing."
    return _paired(run, graph)


def _paired(run: RunDirectory, graph: PartyGraph) -> Scored | str:
    """A party's predictions with its labels, or why they do not fit."""
    store = run.party(graph.party)
    predictions, ids = load_predictions(store), store.ids()
    rows = _rows(predictions, ids, graph)
    if rows is None:
        return "the newest predictions are of other nodes than the labels here."
    test = _split(graph, predictions, rows, "test_mask")
    if not len(test.labels):
        return "the newest predictions have no test node."
    classes, known = tuple(predictions.class_labels()), None if ids is None else tuple(ids)
    val, calibrated = _split(graph, predictions, rows, "val_mask"), predictions.calibration is not None
    return Scored(graph.party, classes, val, test, calibrated, known)


def _never(found: Found, party: PartyId) -> str:
    """Why a job of these settings has none; empty where it may."""
    private = found.settings.label_release
    if private is not None:
        return f"the true labels are {private.holder}'s, and {party} never learns them."
    if set(found.settings.measures.figures) != set(CLASS_MEASURES.figures):
        return "what is predicted is not the class of a node."
    return ""


def _rows(predictions: Predictions, ids: list[str] | None, graph: PartyGraph) -> Tensor | None:
    """For every common node its row among the predictions, −1 where it has none: Tensor[C] int64."""
    if predictions.compared is None or ids is None:
        rows = torch.full((graph.common,), -1)
        if bool((predictions.nodes >= graph.common).any()):
            return None
        rows[predictions.nodes] = torch.arange(len(predictions.nodes))
        return rows
    places = {text: row for row, text in enumerate(predictions.compared)}
    return torch.tensor([places.get(text, -1) for text in ids[: graph.common]], dtype=torch.int64)


def _split(graph: PartyGraph, predictions: Predictions, rows: Tensor, name: str) -> Split:
    mask, labels = _common(graph, name).bool(), _common(graph, "labels")
    nodes = torch.nonzero(mask & (rows >= 0) & (labels >= 0)).ravel()
    places = rows[nodes]
    return Split(
        nodes.numpy(),
        labels[nodes].numpy(),
        predictions.probabilities[places].double().numpy(),
        predictions.classes[places].numpy(),
        predictions.uncalibrated[places].double().numpy(),
    )


def _common(graph: PartyGraph, name: str) -> Tensor:
    values = getattr(graph, name)
    return torch.zeros(graph.common) if values is None else values[: graph.common]
