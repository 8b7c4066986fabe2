"""Splits of labelled nodes, at random and by time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import PartyId
from veilgraph.tables.convert import MISSING, Codes
from veilgraph.tables.settings import SplitFractions, SplitTimes
from veilgraph.tables.times import Times


def draw_splits(
    labels: Codes,
    fractions: SplitFractions,
    party: PartyId,
    ids: Sequence[str] | None = None,
    streams: LearningStreams | None = None,
) -> Codes:
    """Which split each labelled node is in.

    Stratified: of each class, the fractions' share of its nodes, rounded to whole nodes, so that the splits are a
    function of all labels. Else every node by its id alone, whatever its label and the others': the splits then say
    nothing but who is labelled.

    Args:
        labels: int32 [N] in the table's order, negative where unlabelled.
        fractions: of the labelled nodes.
        party: keeps parties' draws apart.
        ids: [N], each once; default: the places.
        streams: of a run, which keep the draw by id secret; default: whoever knows the fractions' seed can repeat it.

    Returns:
        int32 [N]: 0 train, 1 validation, 2 test, ``MISSING`` in none.
    """
    shares = np.cumsum([fractions.train, fractions.val, fractions.test])
    public = LearningStreams(fractions.seed, party)
    if not fractions.stratify:
        drawn = (streams or public).uniform(f"split/{fractions.seed}", ids or [str(row) for row in range(len(labels))])
        places = np.searchsorted(shares, drawn, side="right").astype(np.int32)
        return np.where((labels >= 0) & (places < len(shares)), places, MISSING).astype(np.int32)
    splits = np.full(len(labels), MISSING, np.int32)
    for label in range(int(labels.max(initial=-1)) + 1):
        nodes = np.flatnonzero(labels == label)
        generator = np.random.default_rng(public.seed("split", label))
        parts = np.split(generator.permutation(nodes), np.rint(shares * len(nodes)).astype(int))
        for split, part in enumerate(parts[:-1]):
            splits[part] = split
    return splits


def split_by_time(times: Times, split: SplitTimes) -> Codes:
    """Which split each time is in: int32 [n], ``MISSING`` where there is none."""
    ends = np.array([split.train_before, split.val_before], "datetime64[us]")
    places = np.searchsorted(ends, times, side="right")
    return np.where(np.isnat(times), MISSING, places).astype(np.int32)
