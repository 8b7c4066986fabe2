"""A horizontal job in words."""

from __future__ import annotations

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.horizontal.settings import HorizontalJob


def describe(settings: HorizontalJob) -> list[str]:
    """A job in sentences."""
    split, holders = settings.model, settings.data.names
    alone = " It learns that maximum alone: neither the other values nor whose it is."
    return [
        f"{listed(holders)} have the same columns of different nodes, some of them perhaps the same, with edges and "
        "labels of their own.",
        f"The network has {counted(split.layers, 'layer')}. In each, every holder takes the {split.aggregate} over a "
        f"node's neighbours at it, and the server the {split.aggregate} over the holders."
        f"{alone if split.combine == 'secure-max' else ''}",
        "The result is that of one network on the combined graph. Every holder gets it for its own nodes.",
        "Holders share their weights, and add up gradients, losses and counts among themselves.",
        _noise(settings),
        TRUST,
    ]


def _noise(settings: HorizontalJob) -> str:
    private = settings.label_privacy
    if private is None:
        return "There is no differential privacy: nothing is noised."
    return (
        f"Labels are perturbed at their holder (randomised response, ε {private.epsilon:g} of one label, once, before "
        "training), and all that is computed of labels is of these; features and edges are not noised."
    )
