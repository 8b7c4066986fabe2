"""A lower bound on the ε of edges that vote with noise, from what predictions tell of canaries among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from torch import Tensor

from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding, claimed, inserted_at
from veilgraph.audit.passes import numbers
from veilgraph.audit.roc import Floats
from veilgraph.audit.view import load_view
from veilgraph.core.errors import DataError
from veilgraph.core.types import SERVER, PartyId

_TIED: Final = 0
"""The class that a node without anything is taken for."""
_SAME, _NOTHING, _OTHER, _UNMOVED = 3, 2, 1, 0
"""Scores where classes alone are told."""


def votes_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every other holder's edges, from what the label holder is told of every node.

    Args:
        case: of a sealed run with noise on edges.
        adversary: nothing is found but of the label holder, by itself or with other holders.
    """
    settings, members, privacy = case.settings, members_of(adversary), case.settings.privacy
    label_holder = settings.data.label_party
    if privacy is None or label_holder not in members or SERVER in members:
        return
    if not privacy.canaries:
        yield Skipped(adversary, "epsilon", "the job has no canaries; train it again with privacy.canaries", "epsilon")
        return
    for holder in settings.publishing:
        if holder in members:
            continue
        try:
            canaries = inserted_at(case, holder)
            read = load_view(case.run, label_holder).predicted
            if read is None:
                raise DataError("there are no predictions")
            yield bound_finding(
                adversary,
                holder,
                f"what is predicted of {canaries.count} nodes, each at the end of a canary among {holder}'s edges",
                voted(read(), canaries.places(holder), classes=settings.opens_classes_alone),
                canaries.coins.numpy(),
                delta=privacy.delta_of(canaries.nodes),
                gaussian=True,
                limit=claimed(case, holder),
                claim="The limit is the ledger's total.",
            )
        except DataError as error:
            yield Skipped(adversary, f"epsilon of {holder}", str(error), "epsilon")


def voted(predicted: Tensor, places: Tensor, *, classes: bool) -> Floats:
    """How much more each canary's first end is taken for the class of the other end than for others.

    Of classes alone: the same class speaks for a vote, the class of a node without anything against it, any other one
    for noise. Where the other end is itself of that class they say nothing, and the canary is between all others.

    Args:
        predicted: Tensor[N, C], probabilities.
        places: Tensor[m, 2].
        classes: whether the likeliest class alone was told.
    """
    rows = numbers(predicted)
    first, voted = rows[places[:, 0]], rows[places[:, 1]].argmax(axis=1)
    if not classes:
        logits = np.log(np.maximum(first, np.finfo(np.float64).tiny))
        return np.asarray(logits[np.arange(len(voted)), voted] - logits.mean(axis=1))
    taken = first.argmax(axis=1)
    rules = [voted == _TIED, taken == voted, taken == _TIED]
    return np.select(rules, [_NOTHING, _SAME, _UNMOVED], _OTHER).astype(np.float64)
