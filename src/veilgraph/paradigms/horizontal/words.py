"""A horizontal job in words."""

from __future__ import annotations

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.horizontal.settings import HorizontalJob
from veilgraph.protocol.label_release import noised_labels


def describe(settings: HorizontalJob) -> list[str]:
    """A job in sentences."""
    split, holders = settings.model, settings.data.names
    alone = " It learns that maximum alone: neither the other values nor whose it is."
    task = settings.horizontal.task
    return [
        f"{listed(holders)} have the same columns of different nodes, some of them perhaps the same, with edges and "
        "labels of their own.",
        f"The network has {counted(split.layers, 'layer')}. In each, every holder takes the {split.aggregate} over a "
        f"node's neighbours at it, and the server the {split.aggregate} over the holders."
        f"{alone if split.combine == 'secure-max' else ''}",
        *(task.describe() if task.is_values else ()),
        "The result is that of one network on the combined graph. Every holder gets it for its own nodes.",
        "Holders share their weights, and add up gradients, losses and counts among themselves.",
        noised_labels(settings),
        TRUST,
    ]
