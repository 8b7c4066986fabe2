"""What ``preset: auto`` chooses where holders of the same columns have nodes and labels of their own."""

from __future__ import annotations

from collections.abc import Iterator

from veilgraph.graph.settings import OF_WORDS
from veilgraph.protocol.preset import Choice, Said


def choices(said: Said) -> Iterator[Choice]:
    """What fits a horizontal job."""
    yield Choice("model.server.batch_norm", True, "maxima over neighbours grow with degrees and layers")
    yield from same_columns(said, classes=said.get("horizontal.task.name", "classes") == "classes")


def same_columns(said: Said, *, classes: bool) -> Iterator[Choice]:
    """What fits the data of holders of the same columns.

    Args:
        said: what the job says.
        classes: whether it learns classes.
    """
    if said.get("data.dataset") in OF_WORDS:
        yield Choice("data.feature_scaling", "row", "words of one unit, few of them at a node")
    else:
        yield Choice("data.feature_scaling", "standard", "columns have units of their own")
    if not classes:
        return
    yield Choice("train.select_by", "auc", "accuracy says little of rare classes")
    if said.get("label_privacy") is None:  # the classes' shares are private
        yield Choice("train.class_weights", "balanced", "a rare class counts as much as another")
