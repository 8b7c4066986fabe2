"""Which classes are taken for which, on the test nodes of the party whose predictions are here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.core.words import counted
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.figures import ACCURACY, CLASS_MEASURES
from veilgraph.report.page.found import Found, graph_of
from veilgraph.report.tables import percent
from veilgraph.run.predictions import Predictions, load_predictions, reading
from veilgraph.run.run_directory import RunDirectory

_MOST_CLASSES: Final = 12
"""With more the matrix is no longer readable, and the most frequent confusions are listed in its place."""
_LISTED: Final = 12


@dataclass(frozen=True)
class Cell:
    """How many nodes of one true class are taken for one class, and which share of the true class that is."""

    count: int
    share: float
    right: bool


@dataclass(frozen=True)
class Confused:
    """A true class and the other class that some of its nodes are taken for."""

    true: str
    taken_for: str
    count: int
    of: int


@dataclass(frozen=True)
class Confusion:
    """Either ``missing`` says why there is none, or the rest is there.

    Attributes:
        missing: why there is none; empty where there is.
        caption: whose nodes, how many, how many right.
        classes: their names; empty where only the top is listed.
        rows: true class → a cell for each class.
        top: the most frequent confusions, where there are too many classes for rows.
        always: the accuracy of always answering the most frequent training class.
    """

    missing: str = ""
    caption: str = ""
    classes: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[Cell, ...]], ...] = ()
    top: tuple[Confused, ...] = ()
    always: str = ""


def confusion(found: Found) -> Confusion:
    """The confusion matrix of the newest predictions, where labels and predictions lie in this directory.

    Raises:
        RunError, DataError: a file is damaged.
    """
    run = RunDirectory(found.path)
    party = reading(run)
    if never := _never(found, party):
        return Confusion(never)
    folder = run.party_path(party)
    if not (folder / "predictions.safetensors").is_file():
        return Confusion(f"No confusion matrix: {party}'s predictions are not in this directory.")
    graph = graph_of(found.path, party)
    if graph is None or graph.labels is None:
        return Confusion(f"No confusion matrix: {party}'s labels are not in this directory.")
    if graph.test_mask is None or not bool(graph.test_mask.any()):
        return Confusion("No confusion matrix: no node is set aside for testing.")
    store = run.party(party)
    predictions = load_predictions(store)
    rows = _rows(predictions, store.ids(), graph)
    if rows is None:
        return Confusion("No confusion matrix: the newest predictions are of other nodes than the labels here.")
    return _confusion(party, graph, predictions, rows)


def _never(found: Found, party: PartyId) -> str:
    """Why a job of these settings has none; empty where it may."""
    private = found.settings.label_release
    if private is not None:
        return f"No confusion matrix: the true labels are {private.holder}'s, and {party} never learns them."
    if found.settings.measures.led_by(ACCURACY.name) != CLASS_MEASURES:
        return "No confusion matrix: what is predicted is not the class of a node."
    return ""


def _rows(predictions: Predictions, ids: list[str] | None, graph: PartyGraph) -> Tensor | None:
    """For every common node its row among the predictions, −1 where it has none: Tensor[C] int64."""
    if predictions.ids is None or ids is None:
        rows = torch.full((graph.common,), -1)
        if bool((predictions.nodes >= graph.common).any()):
            return None
        rows[predictions.nodes] = torch.arange(len(predictions.nodes))
        return rows
    places = {text: row for row, text in enumerate(predictions.ids)}
    return torch.tensor([places.get(text, -1) for text in ids[: graph.common]], dtype=torch.int64)


def _confusion(party: PartyId, graph: PartyGraph, predictions: Predictions, rows: Tensor) -> Confusion:
    labels, test, train = (_common(graph, name) for name in ("labels", "test_mask", "train_mask"))
    counted_in = test.bool() & (rows >= 0) & (labels >= 0)
    if not bool(counted_in.any()):
        return Confusion("No confusion matrix: the newest predictions have no test node.")
    true, guessed = labels[counted_in], predictions.classes[rows[counted_in]]
    names = predictions.class_labels()
    count = len(names)
    matrix = torch.bincount(true * count + guessed, minlength=count * count).reshape(count, count)
    right, total = int(matrix.diagonal().sum()), int(matrix.sum())
    caption = f"{party}'s {counted(total, 'test node')}: {right:,} right, {percent(right / total)}"
    known = train.bool() & (labels >= 0)
    always = ""
    if bool(known.any()):
        commonest = int(labels[known].bincount(minlength=count).argmax())
        always = f"Always answering the most frequent class would be right for {percent(_share(true, commonest))}."
    if count > _MOST_CLASSES:
        return Confusion(caption=caption, top=_top(matrix, names), always=always)
    return Confusion(caption=caption, classes=tuple(names), rows=_table(matrix, names), always=always)


def _common(graph: PartyGraph, name: str) -> Tensor:
    values = getattr(graph, name)
    return torch.zeros(graph.common) if values is None else values[: graph.common]


def _share(true: Tensor, label: int) -> float:
    return float((true == label).double().mean())


def _table(matrix: Tensor, names: list[str]) -> tuple[tuple[str, tuple[Cell, ...]], ...]:
    sums = matrix.sum(dim=1).clamp_min(1).tolist()
    return tuple(
        (
            names[row],
            tuple(Cell(value, round(value / sums[row], 3), row == column) for column, value in enumerate(values)),
        )
        for row, values in enumerate(matrix.tolist())
    )


def _top(matrix: Tensor, names: list[str]) -> tuple[Confused, ...]:
    wrong = matrix - torch.diag(matrix.diagonal())
    sums = matrix.sum(dim=1).tolist()
    order = wrong.flatten().argsort(descending=True, stable=True)[:_LISTED].tolist()
    pairs = [divmod(place, len(names)) for place in order]
    return tuple(
        Confused(names[row], names[column], int(wrong[row, column]), sums[row])
        for row, column in pairs
        if int(wrong[row, column])
    )
