"""Rounds of a private training as parties of it know them, for an audit that knows all but canaries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilgraph.audit.sources.averaging_models import Key, real_of, weights_of
from veilgraph.audit.sources.averaging_sums import SURVIVORS, VALUES
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.paradigms.averaging.rules.fedsgd import FedSgdSettings
from veilgraph.paradigms.averaging.settings import AveragingJob, averaging
from veilgraph.paradigms.averaging.training import EXTRA

CLEAN = (Kind.GRADIENT, 0)
"""Kind and round of what holders note of their sums before the noise."""
DRAWN = (Kind.GRADIENT, 1)
"""Kind and round of what they note of who is in them."""


@dataclass(frozen=True, eq=False)
class KnownRound:
    """One round.

    Attributes:
        weights: Tensor[W] float64, with which it began.
        rest: Tensor[W] float64, what some holders added before they divided by ``batch``: noise, canaries of one
            holder that is asked for, and nothing else.
        holders: these holders.
    """

    weights: Tensor
    rest: Tensor
    holders: tuple[PartyId, ...]


def known_rounds(
    view: View, friends: Sequence[View], outside: Mapping[PartyId, View], target: PartyId | None
) -> Iterator[KnownRound]:
    """The rounds of which everything is there.

    Friends take off what they put in. Of the others all that they added before the noise is known, but for the
    canaries of one holder.

    Args:
        view: of who is told the weights.
        friends: views of holders that work together, and train.
        outside: of the others that train, whose notes tell what they added.
        target: one of these, whose canaries stay; None: nobody's, so that noise alone is left.
    """
    job = averaging(view.settings)
    given = job.averaging.privacy
    if given is None:
        return
    weights, counted = weights_of(view), _counted(view)
    steps = _steps(job, weights)
    clean = {name: _noted(each, CLEAN) for name, each in outside.items()}
    own = [(each.party, _noted(each, VALUES)) for each in friends]
    for key in sorted(weights):
        start, step, of_round = weights.get((key[0], key[1] - 1)), steps.get(key), counted.get(key, ())
        there = tuple(name for name in outside if name in of_round)
        helping = [notes for party, notes in own if party in of_round]
        known = all(key in clean[name] for name in there) and all(key in notes for notes in helping)
        if start is None or step is None or not known or not there or target not in (None, *there):
            continue
        total = step * (len(there) + len(helping))
        for notes in helping:
            total = total - real_of(job, notes[key], start)[:-EXTRA]
        total = given.batch * (total - len(there) * job.train.weight_decay * start)
        for name in there:
            total = total - clean[name][key][int(name != target)]
        yield KnownRound(start, total, there)


def drawn_rounds(view: View) -> list[Tensor]:
    """Of every sum of a holder's private training, which of its terms are in it: Tensor[N] uint8 each."""
    return list(_noted(view, DRAWN).values())


def _steps(job: AveragingJob, weights: Mapping[Key, Tensor]) -> dict[Key, Tensor]:
    """Sum → the mean gradient that the server took a step down, less what it remembered of those before."""
    rule = job.averaging.rule
    momentum = rule.momentum if isinstance(rule, FedSgdSettings) else 0.0
    moved = {
        key: (weights[key[0], key[1] - 1] - following) / job.train.learning_rate
        for key, following in weights.items()
        if (key[0], key[1] - 1) in weights
    }
    found = dict[Key, Tensor]()
    for (session, number), step in moved.items():
        if not momentum or (number == 1 and (session, 0) in weights):  # nothing is remembered yet
            found[session, number] = step
        elif (session, number - 1) in moved:
            found[session, number] = step - momentum * moved[session, number - 1]
    return found


def _noted(view: View, what: tuple[Kind, int]) -> dict[Key, Tensor]:
    """Sum → what a party noted of it."""
    return {
        (seen.session, seen.tag.step): seen.tensor() for seen in view.own if (seen.tag.kind, seen.tag.round) == what
    }


def _counted(view: View) -> dict[Key, tuple[PartyId, ...]]:
    """Sum → whose values are in it, as the server told."""
    names, found = view.settings.data.names, dict[Key, tuple[PartyId, ...]]()
    for seen in view.messages:
        if seen.sender == SERVER and (seen.tag.kind, seen.tag.round) == SURVIVORS:
            told = zip(names, seen.tensor().to(torch.bool).tolist(), strict=True)
            found.setdefault((seen.session, seen.tag.step), tuple(name for name, one in told if one))
    return found
