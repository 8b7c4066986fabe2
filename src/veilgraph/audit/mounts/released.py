"""A lower bound on ε of what nodes perturbed by themselves, from canaries among them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding
from veilgraph.audit.roc import Floats, Truth
from veilgraph.audit.view import load_view
from veilgraph.core.types import Kind, PartyId
from veilgraph.privacy.local.settings import FEATURE_MECHANISMS
from veilgraph.protocol.node_canaries import NodeCanaries


def released_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every holder's features, and of its labels, from what one who learns was given.

    Args:
        case: of a run in which nodes release their features.
        adversary: nothing is found but of holders that learn from the releases.
    """
    settings, members = case.settings, members_of(adversary)
    learner = next((name for name in settings.learning if name in members), None)
    release, private = settings.feature_release, settings.label_release
    if learner is None or release is None:
        return
    if not release.canaries:
        yield Skipped(adversary, "epsilon", "the release has no canaries; train it again with some", "epsilon")
        return
    view = load_view(case.run, learner)
    for holder in settings.releasing:
        if holder in members:
            continue
        kept = case.run.party(holder).canaries()
        if kept is None:
            yield Skipped(adversary, f"epsilon of {holder}", "its canaries are not here", "epsilon")
            continue
        canaries = NodeCanaries.of(settings, kept.nodes, bytes, kept.key)
        places, gaussian = canaries.places, FEATURE_MECHANISMS[release.mechanism].is_gaussian
        given = _distinct([seen.tensor() for seen in view.received(Kind.PERTURBED_FEATURES, holder)])
        if given:
            scores = np.sum([_sums(each[places]) for each in given], axis=0)
            limit = release.epsilon * len(given)
            yield _finding(
                adversary, holder, "features", scores, canaries.coins.numpy(), release.delta or 0.0, limit, gaussian
            )
        labels = _distinct([seen.tensor() for seen in view.received(Kind.PERTURBED_LABELS, holder)])
        if labels and private is not None:
            scores, coins = np.sum([_second_class(each[places]) for each in labels], axis=0), canaries.label_coins
            limit = private.epsilon * len(labels)
            yield _finding(adversary, holder, "labels", scores, coins.numpy(), 0.0, limit, gaussian=False)


def _finding(
    adversary: PartyId,
    holder: PartyId,
    what: str,
    scores: Floats,
    coins: Truth,
    delta: float,
    limit: float,
    gaussian: bool,
) -> Finding:
    return bound_finding(
        adversary,
        holder,
        f"{what} that {holder}'s nodes perturbed, {len(coins)} canaries among them",
        scores,
        coins,
        delta=delta,
        gaussian=gaussian,
        limit=limit,
        claim="The limit is that of the job, for each different release.",
    )


def _distinct(released: list[Tensor]) -> list[Tensor]:
    """Without those that are sent again, byte for byte."""
    found: list[Tensor] = []
    for each in released:
        if not any(each.shape == other.shape and torch.equal(each, other) for other in found):
            found.append(each)
    return found


def _sums(rows: Tensor) -> Floats:
    """What a node released, added up over its columns: all of them are high in one of both cases."""
    if rows.dtype == torch.int64:  # 1 + column, with the value's sign
        rows = rows.sign()
    values = rows.double() - 1 if rows.dtype == torch.uint8 else rows.double()
    return np.asarray(values.sum(dim=1).numpy())


def _second_class(rows: Tensor) -> Floats:
    """1 where the second class was released, −1 where the first, 0 for another or none."""
    label = rows[:, 0].to(torch.int64)
    return np.asarray(((label == 2).double() - (label == 1).double()).numpy())
