"""Which classes are taken for which, on the test nodes of the party whose predictions are here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.words import called, counted
from veilgraph.report.page.scored import Scored
from veilgraph.report.tables import percent

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
        always: the accuracy of always answering the most frequent class of these nodes.
    """

    missing: str = ""
    caption: str = ""
    classes: tuple[str, ...] = ()
    rows: tuple[tuple[str, tuple[Cell, ...]], ...] = ()
    top: tuple[Confused, ...] = ()
    always: str = ""


def confusion(told: Scored | str) -> Confusion:
    """The confusion matrix of the newest predictions of test nodes, or why there is none."""
    if isinstance(told, str):
        return Confusion(f"No confusion matrix: {told}")
    true, guessed = torch.from_numpy(told.test.labels), torch.from_numpy(told.test.taken)
    names = list(told.classes)
    count = len(names)
    matrix = torch.bincount(true * count + guessed, minlength=count * count).reshape(count, count)
    right, total = int(matrix.diagonal().sum()), int(matrix.sum())
    caption = f"{told.party}'s {counted(total, 'test node')}: {right:,} right, {percent(right / total)}"
    share = float((true == told.commonest).double().mean())
    always = (
        f"Always answering {called(names[told.commonest])}, the most frequent class, is right for {percent(share)}."
    )
    if count > _MOST_CLASSES:
        return Confusion(caption=caption, top=_top(matrix, names), always=always)
    return Confusion(caption=caption, classes=tuple(names), rows=_table(matrix, names), always=always)


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
