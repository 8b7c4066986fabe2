"""A horizontal job in words."""

from __future__ import annotations

from veilgraph.core.words import TRUST, counted, listed
from veilgraph.paradigms.horizontal.settings import HorizontalJob


def describe(settings: HorizontalJob) -> list[str]:
    """A job in sentences."""
    split, holders = settings.horizontal, settings.data.names
    raw = (
        " In the first layer no weights are between the features and the server: it gets raw features, joined with "
        "neighbours'."
        if split.message == "none"
        else ""
    )
    server = (
        "The server learns that maximum alone: neither the other values nor whose it is."
        if split.combine == "secure-max"
        else "The server sees every holder's embeddings of its nodes by themselves."
    )
    sums = (
        "With two holders each can subtract its own from a sum, and has the other's exactly."
        if len(holders) == 2
        else "Masks hide the single summands."
    )
    return [
        f"{listed(holders)} have the same columns of different nodes, some of them perhaps the same, with edges and "
        "labels of their own.",
        f"The network has {counted(split.layers, 'layer')}. In each, every holder takes the {split.aggregate} over a "
        f"node's neighbours at it, and the server the {split.aggregate} over the holders. {server}{raw}",
        "The result is that of one network on the combined graph. Every holder gets it for its own nodes.",
        "The server knows nodes by hashes alone, under a key that it lacks; it sees how many each holder has and which "
        "several have.",
        f"Holders share their weights, and add up gradients, losses and counts among themselves. {sums}",
        "There is no differential privacy: nothing is noised.",
        TRUST,
    ]
