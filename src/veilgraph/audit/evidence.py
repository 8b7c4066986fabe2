"""What a view holds for attacks: embeddings, gradients, opened values, predictions, and messages that must say nothing.

``docs/threat-model.md`` says what each party is meant to have; this file takes it out of the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor

from veilgraph.audit.roc import Floats
from veilgraph.audit.view import View
from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen
from veilgraph.mpc.dealer import Direction, operand_mask_name
from veilgraph.roles.disclosure_rows import TABLE
from veilgraph.roles.disclosures import direction_of, facts_of

Sort = Literal["embedding", "initial", "gradients", "posteriors", "hidden", "releases"]

_MOST_STEPS: Final = 200
"""Passes of a sequence that attacks use: the first ones, in which weights change most."""
_UNIT: Final = 2.0**40
_HIDDEN: Final = frozenset({"mask", "share"})


@dataclass(frozen=True, eq=False)
class Evidence:
    """One kind of thing that an adversary has.

    Attributes:
        sort: what attacks on it there are.
        words: what it is, for people.
        about: the holders whose secrets may be in it. Rows are the common nodes or, in paradigm horizontal, those of
            the one holder.
        permitted: whether the adversary is meant to have it; if not, it must tell nothing.
        rows: [N, d] the newest.
        steps: the passes of which there are rows, oldest first; their tensors are read when asked for.
        updates: with ``initial``: the adversary's own share of what changed between them, where it is known.
        messages: with ``hidden``.
    """

    sort: Sort
    words: str
    about: tuple[PartyId, ...]
    permitted: bool = True
    rows: Floats | None = None
    steps: tuple[Floats, ...] = ()
    updates: tuple[Floats, ...] = ()
    messages: tuple[Seen, ...] = field(default=(), repr=False)


def evidence_of(view: View) -> list[Evidence]:
    """Everything in a view that attacks can be mounted on.

    Raises:
        RunError: a message cannot be read.
    """
    found = [*_hidden(view)]
    if view.party == SERVER:
        found += [*_from_holders(view), *_sums(view)]
        if view.settings.paradigm == "vertical":
            found += _gradients(view, view.settings.data.label_party)
    else:
        found += [*_initial(view), *_combined(view), *_perturbed(view)]
        if view.settings.paradigm == "vertical" and view.party != view.settings.data.label_party:
            found += _gradients(view, SERVER)
    return found


def posteriors(holder: PartyId, about: Sequence[PartyId], probabilities: Tensor) -> Evidence:
    """What a client gets who asks for the predictions of all nodes."""
    return Evidence("posteriors", f"predicted probabilities at {holder}", tuple(about), rows=_numbers(probabilities))


def _hidden(view: View) -> Iterator[Evidence]:
    """Messages that are uniform by themselves, whatever the sender's data are."""
    settings = view.settings
    for sender in (*settings.data.names, SERVER):
        facts, direction = facts_of(settings, sender, view.party), direction_of(sender, view.party)
        for kind in Kind:
            rows = [row for row in TABLE if (row.kind, row.direction) == (kind, direction) and facts >= set(row.when)]
            if rows and all(row.protection in _HIDDEN for row in rows):
                seen = view.received(kind, sender)
                if seen:
                    words = f"{rows[0].what} from {sender}"
                    yield Evidence("hidden", words, (sender,), permitted=False, messages=tuple(seen))


def _from_holders(view: View) -> Iterator[Evidence]:
    """At the server: every holder's own embedding, where it is in the clear."""
    for holder in view.others:
        for round_ in sorted({seen.tag.round for seen in view.received(Kind.EMBEDDING, holder)}):
            rows = view.last(Kind.EMBEDDING, holder, round_)
            if rows is not None and (round_ > 0 or view.settings.paradigm == "horizontal"):
                what = "layer" if view.settings.paradigm == "horizontal" else "round"
                yield Evidence("embedding", f"{holder}'s embedding of {what} {round_}", (holder,), rows=_numbers(rows))


def _sums(view: View) -> Iterator[Evidence]:
    """At the server: the sum of the masked embeddings, which it opens."""
    if view.settings.paradigm != "vertical" or not view.settings.is_masked:
        return
    holders = view.settings.publishing
    for round_ in range(1, view.settings.model.rounds + 1):
        pieces = [view.last(Kind.MASKED, holder, round_) for holder in holders]
        present = [piece for piece in pieces if piece is not None]
        if len(present) == len(holders):
            words = f"the sum of all embeddings of round {round_}"
            yield Evidence("embedding", words, holders, rows=_opened(present))


def _combined(view: View) -> Iterator[Evidence]:
    """At a holder: what the server sent back of all holders' embeddings."""
    if view.settings.paradigm != "vertical":
        return
    rounds = view.settings.model.rounds
    for round_ in sorted({seen.tag.round for seen in view.received(Kind.COMBINED, SERVER)}):
        rows = view.last(Kind.COMBINED, SERVER, round_)
        words = "the network's output z_L" if round_ == rounds else f"the combined embedding of round {round_}"
        if rows is not None:
            yield Evidence("embedding", words, view.others, rows=_numbers(rows))


def _initial(view: View) -> Iterator[Evidence]:
    """At a holder: h^0 of every pass, which all holders open, and its own part of what changes W."""
    method = view.settings.model.initial.method
    kind = {"collaborative": Kind.SHARE, "secure-sum": Kind.MASKED}.get(method)
    if kind is None or view.settings.paradigm != "vertical" or not view.others:
        return
    own = {(seen.session, seen.tag): seen for seen in view.sent(kind, view.others[0])}
    parts = [{(seen.session, seen.tag): seen for seen in view.received(kind, other)} for other in view.others]
    tags = [tag for tag in own if all(tag in part for part in parts)]
    chosen = tags[:_MOST_STEPS] + tags[_MOST_STEPS:][-1:]
    opened = [_opened([own[tag].tensor(), *(part[tag].tensor() for part in parts)]) for tag in chosen]
    if opened:
        yield Evidence(
            "initial",
            f"the initial embeddings h0 of {len(opened)} passes, which all holders open",
            view.others,
            rows=opened[-1],
            steps=tuple(opened),
            updates=_own_updates(view) if method == "collaborative" else (),
        )


def _own_updates(view: View) -> tuple[Floats, ...]:
    """What a holder put into the product that changes W, pass by pass: B = F + V, V from the dealer's seed."""
    seeds = view.received(Kind.SEED, SERVER)
    found = []
    for seen in view.sent(Kind.MASKED_OPERAND, view.others[0], int(Direction.BACKWARD)):
        seed = next(each for each in seeds if each.session == seen.session).tensor().numpy().tobytes()
        mask = expand(seed, operand_mask_name(view.party, Direction.BACKWARD, seen.tag.step), seen.shape)
        found.append((seen.tensor() + mask).double().numpy())
        if len(found) == _MOST_STEPS:
            break
    return tuple(found)


def _gradients(view: View, sender: PartyId) -> Iterator[Evidence]:
    """Gradients that come from the label holder's loss, at the server at once and at a holder through it."""
    rounds = (0,) if view.party == SERVER else (view.settings.model.rounds,)
    for round_ in rounds:
        steps = [_numbers(seen.tensor()) for seen in view.received(Kind.GRADIENT, sender, round_)[:_MOST_STEPS]]
        if steps:
            what = "the output z_L" if view.party == SERVER else "its own embedding"
            about = (view.settings.data.label_party,)
            yield Evidence("gradients", f"gradients of {what} in {len(steps)} steps", about, steps=tuple(steps))


def _perturbed(view: View) -> Iterator[Evidence]:
    """At a holder that learns: what others' nodes perturbed by themselves."""
    for other in view.others:
        seen = view.received(Kind.PERTURBED_FEATURES, other)
        if seen:
            yield Evidence("releases", f"features that {other}'s nodes perturbed", (other,), messages=(seen[-1],))


def _opened(pieces: Sequence[Tensor]) -> Floats:
    """The sum mod 2^64 as numbers; how many of its bits are fractional does not matter to an attack."""
    total = pieces[0].clone()
    for piece in pieces[1:]:
        total += piece
    return _numbers(total.double() / _UNIT)


def _numbers(values: Tensor) -> Floats:
    return np.asarray(values.detach().to(torch.float64).numpy())
