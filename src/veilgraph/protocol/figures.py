"""What a trained model is judged by: named figures of each split, each with a direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

LAST: Final = "last"
LOSS: Final = "loss"  # what every job may select by, beside its figures


@dataclass(frozen=True)
class Figure:
    """One figure, called ``name`` in ``train.select_by``, and with a split before it (``val_mae``) in summaries.

    ``is_share``: it lies in [0, 1] and is shown as a percentage.
    """

    name: str
    title: str
    meaning: str
    rises: bool = True
    is_share: bool = False

    @property
    def best(self) -> str:
        """What the best epoch has, in words."""
        return f"the {'best' if self.rises else 'lowest'} {self.title}"

    def shown(self, value: float | None) -> str:
        """A value as tables show it; a dash where there is none."""
        if value is None:
            return "–"
        return f"{100 * value:.1f} %" if self.is_share else f"{value:.4g}"


@dataclass(frozen=True)
class Measures:
    """What jobs of a kind are judged by.

    The first of ``figures`` is what short tables and pictures take, and ``select_by`` of a job that says nothing;
    ``of`` is what is counted; figures ``on_demand`` are in epochs where they select.
    """

    loss: str
    figures: tuple[Figure, ...]
    of: str = "nodes"
    on_demand: tuple[str, ...] = ()

    @property
    def one(self) -> str:
        """One of what is counted, in words."""
        return self.of.removesuffix("s")

    @property
    def main(self) -> Figure:
        """The first figure."""
        return self.figures[0]

    @property
    def selectable(self) -> tuple[str, ...]:
        """What ``train.select_by`` may be."""
        return (*(figure.name for figure in self.figures), LOSS, LAST)

    def led_by(self, name: str) -> Measures:
        """Return the same measures with the figure ``name`` first, where there is one."""
        first = [figure for figure in self.figures if figure.name == name]
        return replace(self, figures=(*first, *(figure for figure in self.figures if figure.name != name)))

    def rises(self, name: str) -> bool:
        """Whether more of a figure, or of the loss, is better."""
        return name != LOSS and self.named(name).rises

    def named(self, name: str) -> Figure:
        """The figure of a name; raises ``KeyError``."""
        return {figure.name: figure for figure in self.figures}[name]


def selecting(job: Mapping[str, Any], measures: Measures) -> Mapping[str, Any]:
    """Return a job, not validated yet, with the first of its figures in ``train.select_by`` where it says none."""
    train = job.get("train", {})
    if not isinstance(train, Mapping) or "select_by" in train:
        return job
    return {**job, "train": {**train, "select_by": measures.main.name}}


ACCURACY: Final = Figure("accuracy", "accuracy", "share of the nodes whose class is right", is_share=True)
AUC: Final = Figure("auc", "AUC", "chance that a node of a class is ranked above one of another; 0.5 is guessing")
F1: Final = Figure("f1", "macro F1", "precision and recall together, all classes alike")
AP: Final = Figure("ap", "average precision", "precision on average over all nodes of the class that is looked for")
CLASS_MEASURES: Final = Measures("cross-entropy", (ACCURACY, AUC, AP, F1), on_demand=("auc", "ap", "f1"))

# The test AUC from which on a column that follows from the label is likelier than a model that good.
LEAK: Final = 0.995


def leak_words(found: Mapping[str, float | None]) -> str:
    """Call a test AUC (name of what was trained → AUC) of ``LEAK`` or more a likely leak; empty where there is none.

    Of two classes: of digits, which differ more than those who default, networks reach it without a leak.
    """
    if not (high := {name: auc for name, auc in found.items() if auc is not None and auc >= LEAK}):
        return ""
    shown = ", ".join(f"{auc:.3f} of {name}" for name, auc in high.items())
    return (
        f"Likely leak: the test AUC is {shown}, so a column may follow from the label; look at the columns that "
        "`veilgraph data check party.yaml` names, and at those known only after the label."
    )


@dataclass(frozen=True)
class Scores:
    """What an evaluation found: losses, and figures by name with their split (``val_mae``).

    A loss is NaN, and a figure None, where the split is empty; a figure also where it is undefined.
    """

    measures: Measures
    train_loss: float
    val_loss: float
    values: Mapping[str, float | None]

    def record(self) -> dict[str, float | None]:
        """Return losses and figures by name, for the record of an epoch."""
        return {"train_loss": self.train_loss, "val_loss": self.val_loss, **self.values}

    def of_epoch(self, select_by: str) -> Scores:
        """Drop the figures made on demand, as an epoch has them, but for the one that selects, where it is defined."""
        made = self.measures.on_demand
        kept = {
            name: value
            for name, value in self.values.items()
            if (figure := name.partition("_")[2]) not in made or (figure == select_by and value is not None)
        }
        return replace(self, values=kept)

    def selection(self, select_by: str) -> float:
        """What the best epoch is chosen by, higher is better; −∞ where it is undefined."""
        if select_by == LOSS:
            return -self.val_loss
        value = self.values.get(f"val_{select_by}")
        if value is None or math.isnan(value):
            return -math.inf
        return value if self.measures.rises(select_by) else -value
