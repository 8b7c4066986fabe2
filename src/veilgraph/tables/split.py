"""Random splits of labelled nodes."""

from __future__ import annotations

import numpy as np

from veilgraph.core.party_settings import SplitFractions
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.tables.convert import MISSING, Codes


def draw_splits(labels: Codes, fractions: SplitFractions, party: PartyId) -> Codes:
    """Stratified: of each class, the fractions' share of its nodes, rounded to whole nodes.

    Args:
        labels: int32 [N] in the table's order, negative where unlabelled.
        fractions: of the labelled nodes.
        party: keeps parties' draws apart.

    Returns:
        int32 [N]: 0 train, 1 validation, 2 test, ``MISSING`` in none.
    """
    splits = np.full(len(labels), MISSING, np.int32)
    streams = LearningStreams(fractions.seed, party)
    shares = np.cumsum([fractions.train, fractions.val, fractions.test])
    for label in range(int(labels.max(initial=-1)) + 1):
        nodes = np.flatnonzero(labels == label)
        generator = np.random.default_rng(streams.seed("split", label))
        parts = np.split(generator.permutation(nodes), np.rint(shares * len(nodes)).astype(int))
        for split, part in enumerate(parts[:-1]):
            splits[part] = split
    return splits
