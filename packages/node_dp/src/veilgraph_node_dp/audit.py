"""What the audit must know of a node-dp job: canaries among what nodes release, and how training nodes were chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import random_table
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import ViewEntry
from veilgraph.protocol.evidence import Audited, Guesses, Source, Told
from veilgraph.protocol.job import Check
from veilgraph.protocol.trade_offs import GaussianClaims
from veilgraph.protocol.view import Floats, View
from veilgraph_node_dp.canaries import NodeCanaries
from veilgraph_node_dp.settings import node_dp

_SPLIT: Final = 1  # column of perturbed labels that says which split a node is in
_TABLES: Final = 20_000
_CLAIM: Final = "The limit is that of the job, for each different release."


class NodeDpSource(Source):
    """The audit's evidence in a node-dp job: canaries in released values, and the split sent beside labels."""

    @override
    def canary_guesses(
        self, run: Audited, members: Sequence[PartyId], holder: PartyId, key: bytes
    ) -> Iterator[Guesses]:
        job = node_dp(run.settings)
        release, private = job.noise.feature_release, job.noise.label_release
        assert release is not None
        view = run.view(next(name for name in job.duties.learning if name in members))
        canaries = release.canaries_in(run.graph(holder), key, job.hash())
        assert isinstance(canaries, NodeCanaries)
        places, words = canaries.places, f"that {holder}'s nodes perturbed, {canaries.count} canaries among them"
        features, labels = (
            _distinct(view.received(kind, holder)) for kind in (Kind.PERTURBED_FEATURES, Kind.PERTURBED_LABELS)
        )

        def scores(given: Sequence[Tensor], score: Callable[[Tensor], Floats]) -> Floats:
            return np.asarray(np.sum([score(each[places]) for each in given], axis=0))

        if features:
            claims, limit = GaussianClaims() if release.is_gaussian else None, release.epsilon * len(features)
            told = f"features {words}", scores(features, _row_sums), canaries.coins
            yield Guesses(*told, release.delta or 0.0, limit, claims, _CLAIM)
        if private is not None and labels:
            told = f"labels {words}", scores(labels, _second_class_scores), canaries.label_coins
            yield Guesses(*told, 0.0, private.epsilon * len(labels), claim=_CLAIM)

    @override
    def claim(self, check: Check, run: Audited, view: View, holder: PartyId) -> Told | None:
        """Test whether the split that a holder sent beside perturbed labels was drawn without looking at labels."""
        seen, labels = view.received(Kind.PERTURBED_LABELS, holder), run.graph(holder).labels
        if check != "split" or not seen or labels is None:
            return None
        split = seen[-1].tensor()[:, _SPLIT].numpy()
        if len(labels) != len(split):
            return None
        known = labels.numpy() >= 0
        p_value, even = split_p_value(split[known], labels.numpy()[known], seed=run.seed)
        note = f"{even:.2%} of splits that were drawn without the labels are as even over the classes as this."
        return f"which of {holder}'s nodes are trained on, or validated with", p_value, note


def _distinct(released: Sequence[ViewEntry]) -> list[Tensor]:
    """Return the released tensors without exact repetitions."""
    found: list[Tensor] = []
    for each in (seen.tensor() for seen in released):
        if not any(each.shape == other.shape and torch.equal(each, other) for other in found):
            found.append(each)
    return found


def _row_sums(rows: Tensor) -> Floats:
    """Add up each node's released values over its columns, [N]: a canary's are all high, or all low."""
    if rows.dtype == torch.int64:  # 1 + column, with the value's sign
        rows = rows.sign()
    values = rows.double() - 1 if rows.dtype == torch.uint8 else rows.double()
    return np.asarray(values.sum(dim=1).numpy())


def _second_class_scores(rows: Tensor) -> Floats:
    """Score released labels, [N]: 1 for the second class, −1 for the first, 0 for another or none."""
    label = rows[:, 0].to(torch.int64)
    return np.asarray(((label == 2).double() - (label == 1).double()).numpy())


def split_p_value(split: NDArray[Any], labels: NDArray[Any], *, seed: int) -> tuple[float, float]:
    """Test whether a split [N] is more, or less, even over the classes [N] than one drawn without the labels.

    A split by classes is too even, and so many nodes of each class are too uneven where classes are not alike. Tables
    with the same margins are drawn at random, which makes the test exact. Gives the p-value of both directions, and the
    share of random splits that are at least as even.
    """
    parts, classes = np.unique(split, return_inverse=True)[1], np.unique(labels, return_inverse=True)[1]
    table = np.zeros((parts.max() + 1, classes.max() + 1))
    np.add.at(table, (parts, classes), 1)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    if min(table.shape) < 2:
        raise DataError("classes: there is one class, or one part of the split, alone")
    expected = np.outer(rows, columns) / table.sum()
    drawn = random_table(rows.astype(int), columns.astype(int)).rvs(size=_TABLES, random_state=seed)
    distances = ((drawn - expected) ** 2 / expected).sum(axis=(1, 2))
    found = ((table - expected) ** 2 / expected).sum()
    even, uneven = ((1 + (side <= 1e-9).sum()) / (1 + _TABLES) for side in (distances - found, found - distances))
    return float(min(1.0, 2 * min(even, uneven))), float(even)


SOURCE: Final = NodeDpSource()
