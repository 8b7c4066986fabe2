"""A lower bound on the ε of a private training, from what noisy gradients tell of canaries among a holder's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.audit.attacks.gradient_canaries import Part, Round, gradient_scores
from veilgraph.audit.attacks.noise_level import Noisy, noise_level
from veilgraph.audit.attacks.sampled_claims import SampledClaims
from veilgraph.audit.case import Case
from veilgraph.audit.finding import Finding, Skipped, members_of
from veilgraph.audit.mounts.bounds import bound_finding, claimed, paid, withstands
from veilgraph.audit.mounts.claims import claim_finding
from veilgraph.audit.passes import numbers
from veilgraph.audit.roc import Floats
from veilgraph.audit.sources.averaging_models import task_of
from veilgraph.audit.sources.averaging_rounds import KnownRound, known_rounds
from veilgraph.audit.view import View, load_view
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import load_party
from veilgraph.paradigms.averaging.network import Averaged
from veilgraph.paradigms.averaging.terms import Terms
from veilgraph.privacy.sampled_settings import SampledPlan
from veilgraph.protocol.trained_canaries import TrainedCanaries

_CENTRE, _LEAF = 0, 1
_NONE: Final = "the job has no canaries; train it again with averaging.privacy.canaries"


@dataclass(frozen=True, eq=False)
class _Rounds:
    """What an adversary knows of a private training: who helps it, and all that others added but canaries."""

    case: Case
    plan: SampledPlan
    view: View
    friends: Sequence[View]
    outside: dict[PartyId, View]

    @classmethod
    def of(cls, case: Case, plan: SampledPlan, members: Sequence[PartyId]) -> _Rounds:
        trains = [name for name in case.settings.data.names if case.graph(name).labels is not None]
        views = {name: load_view(case.run, name) for name in trains}
        first = load_view(case.run, members[0])
        friends = [views.pop(name) for name in trains if name in members]
        return cls(case, plan, first, friends, views)

    def known(self, target: PartyId | None) -> list[KnownRound]:
        return list(known_rounds(self.view, self.friends, self.outside, target))

    def deviation(self, known: KnownRound) -> float:
        """Of the noise of all others together, over the clip."""
        return self.plan.added * float(np.sqrt(len(known.holders)))


def gradients_epsilon(case: Case, adversary: PartyId) -> Iterator[Finding | Skipped]:
    """A lower bound on the ε of every holder that trains privately, from the weights that an adversary is told.

    It is granted the holder's data but the coins, and what all other terms of a sum add up to, which ε allows it.

    Args:
        case: of a run with a private training.
        adversary: a party, or several.
    """
    plan, members = case.settings.training_plan, members_of(adversary)
    if plan is None or not {*members} <= {SERVER, *case.settings.data.names}:
        return
    if not plan.settings.canaries:
        yield Skipped(adversary, "epsilon", _NONE, "epsilon")
        return
    rounds = _Rounds.of(case, plan, members)
    for holder in rounds.outside:
        kept, name = case.run.party(holder).canaries(), f"epsilon of {holder}"
        if kept is None:
            yield Skipped(adversary, name, "its canaries are not here", "epsilon")
            continue
        try:
            yield _bound(rounds, adversary, holder, kept.key)
        except DataError as error:
            yield Skipped(adversary, name, str(error), "epsilon")


def gradients_noise(case: Case, party: PartyId) -> Iterator[Finding | Skipped]:
    """Whether the noise that holders say they added is in the weights that a party is told, in every round anew.

    Args:
        case: of a run with a private training.
        party: one alone.
    """
    plan = case.settings.training_plan
    if plan is None:
        return
    if not plan.settings.canaries:
        yield Skipped(party, "noise-level", _NONE, "noise-level")
        return
    rounds = _Rounds.of(case, plan, (party,))
    by_holders: dict[tuple[PartyId, ...], list[Noisy]] = {}
    for known in rounds.known(None):
        entries = numbers(known.rest / plan.settings.clip)[:, None]
        by_holders.setdefault(known.holders, []).append(Noisy(entries, rounds.deviation(known), _ROUNDING))
    for holders, found in by_holders.items():
        level = noise_level(found)
        words = f"{len(found)} sums of {' and '.join(holders)}, less what they say they added before the noise"
        note = f"Of the noise {level.share:.3g} is there by the least of all estimates, in every release and anew."
        yield claim_finding("noise-level", party, holders[0], "noise", words, level.p_value, note)


_ROUNDING: Final = 1.0
"""What weights told in single precision may hide of a sum, in clips; far more than they do."""


def _bound(rounds: _Rounds, adversary: PartyId, holder: PartyId, key: bytes) -> Finding:
    case, plan = rounds.case, rounds.plan
    graph = load_party(case.run.party(holder).graph_path)
    canaries = TrainedCanaries.of(case.settings, graph, bytes, key)
    planted = _Planted(case, canaries, holder, rounds.view)
    known = rounds.known(holder)
    if not known:
        raise DataError("the view has none of its rounds")
    found = [
        Round(numbers(each.rest / plan.settings.clip), rounds.deviation(each), planted.parts(each.weights))
        for each in known
    ]
    limit = claimed(case, holder)
    return bound_finding(
        adversary,
        holder,
        f"weights after {len(found)} rounds, {canaries.count} canaries among {holder}'s nodes",
        gradient_scores(found, plan.settings.sampling_rate),
        canaries.coins.numpy(),
        delta=plan.delta,
        gaussian=False,
        limit=limit if withstands(case, members_of(adversary)) else None,
        claim="The limit is the ledger's total.",
        claims=SampledClaims(plan.event, max(len(found), paid(case, holder))),
    )


class _Planted:
    """Gradients of a holder's canaries, whichever their coins."""

    def __init__(self, case: Case, canaries: TrainedCanaries, holder: PartyId, view: View) -> None:
        plan = case.settings.training_plan
        assert plan is not None
        self._network: Averaged = task_of(view).network(LearningStreams(0, SERVER))
        self._clip, self._leaves = plan.settings.clip, canaries.leaves
        graph = load_party(case.run.party(holder).graph_path)
        self._parts = list[tuple[Terms, list[int], int, bool]]()
        for inside in (True, False):
            world = canaries.world(graph, torch.full((canaries.count,), inside))
            terms = Terms(world, plan.hops, next(self._network.parameters()).dtype)
            if inside or canaries.relation == "replacement":
                self._parts.append((terms, terms.numbers(canaries.places[:, _CENTRE]), 1, inside))
            if canaries.leaves:
                self._parts.append((terms, terms.numbers(canaries.places[:, _LEAF]), canaries.leaves, inside))

    def parts(self, weights: Tensor) -> list[Part]:
        """Of one round, over the clip."""
        self._network.take(weights.to(next(self._network.parameters()).dtype))
        return [
            Part(np.stack([self._clipped(terms.gradient(self._network, number)) for number in chosen]), count, inside)
            for terms, chosen, count, inside in self._parts
        ]

    def _clipped(self, gradient: Tensor) -> Floats:
        row = numbers(gradient / self._clip)
        return np.asarray(row / max(1.0, float(np.linalg.norm(row))))
