"""Messages of an averaging job that must say nothing: values under the masks that are left, and sealed shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np
from torch import Tensor

from veilgraph.audit.attacks.ciphertexts import Ciphertext, chosen_words
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import coalition_of
from veilgraph.audit.sources.averaging_sums import MOST, PASSED, REVEALED, SEALED, KnownSum
from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.view import Seen
from veilgraph.mpc.aggregation.keys import SEALED_BYTES
from veilgraph.mpc.shamir import ELEMENT_BYTES

_WORD: Final = 8
_UNIFORM_BYTES: Final = ELEMENT_BYTES - _WORD
"""Of an element of the field, the lowest: the highest word of a number below 2^255 is not uniform."""


def values_under_masks(
    sums: Sequence[KnownSum], friends: Sequence[PartyId], outside: Sequence[PartyId]
) -> Iterator[Evidence]:
    """What holders gave, less every part of their masks that comes off, as long as one is left.

    Args:
        sums: as the server and its friends know them.
        friends: holders that help the server.
        outside: the others.
    """
    whose = coalition_of(friends)
    yield from _noise("sums with all own masks", outside, sums, _with_own)
    for holder in outside:
        came = [each for each in sums if holder in each.values]
        counted = [each for each in came if holder in each.counted]
        late = [each for each in came if holder not in each.counted and not each.hiding(holder)]
        hidden = [each for each in counted if each.hiding(holder)]
        values, less = f"values under masks from {holder}", partial(_less, holder)
        yield from _noise(values, [holder], came, partial(_given, holder))
        yield from _noise(f"{values}, without its own", [holder], hidden, partial(less, (), own=True))
        words = f"sums with no own mask but {holder}'s"
        yield from _noise(words, [holder], counted, partial(_own_alone, holder))
        yield from _noise(
            f"{values} that came too late, without those with others", [holder], late, partial(less, None, own=False)
        )
        if friends:
            values += f", without those with {whose}"
            yield from _noise(values, [holder], counted, partial(less, friends, own=False))
            yield from _noise(f"{values} and its own", [holder], hidden, partial(less, friends, own=True))


def _with_own(known: KnownSum) -> Tensor:
    return known.less_pairs


def _given(holder: PartyId, known: KnownSum) -> Tensor:
    return known.values[holder].tensor()


def _own_alone(holder: PartyId, known: KnownSum) -> Tensor:
    return known.total + known.own(holder)


def _less(holder: PartyId, peers: Sequence[PartyId] | None, known: KnownSum, *, own: bool) -> Tensor:
    return known.less_masks(holder, known.sharing if peers is None else peers, own=own)


def _noise(
    words: str, about: Sequence[PartyId], sums: Sequence[KnownSum], left: Callable[[KnownSum], Tensor]
) -> Iterator[Evidence]:
    if sums:

        def read() -> list[Ciphertext]:
            return [Ciphertext(chosen_words(left(each).numpy())) for each in sums]

        messages = tuple(each.values[party] for each in sums for party in about if party in each.values)
        yield Evidence("noise", words, tuple(about), permitted=False, noise=read, messages=messages)


def shares_at_server(server: View, outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What holders sealed for one another, as it passes the server."""
    kind, round_ = SEALED
    for holder in outside:
        yield from _bytes(f"shares that {holder} sealed", holder, [server.received(kind, holder, round_)], None)


def shares_at_holders(holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """What some holders got of each of the others, sealed, and opened."""
    names = holders[0].settings.data.names
    for sender in outside:
        sealed = [view.received(PASSED[0], SERVER, PASSED[1]) for view in holders]
        opened = [[seen for seen in view.own if (seen.tag.kind, seen.tag.round) == REVEALED] for view in holders]
        place = names.index(sender)
        yield from _bytes(f"shares that {sender} sealed for it", sender, sealed, place)
        yield from _bytes(f"shares that {sender} gave it", sender, opened, place)


def _bytes(words: str, holder: PartyId, found: Sequence[Sequence[Seen]], place: int | None) -> Iterator[Evidence]:
    """A message of each party: what came in all sums, one after another; of one row where a place is given."""
    chosen = [some if len(some) <= MOST else [*some[: MOST // 2], *some[-MOST // 2 :]] for some in found]
    messages = tuple(seen for some in chosen for seen in some)
    if messages:

        def read() -> list[Ciphertext]:
            return [_one(some, place) for some in chosen if some]

        yield Evidence("noise", words, (holder,), permitted=False, noise=read, messages=messages)


def _one(some: Sequence[Seen], place: int | None) -> Ciphertext:
    rows = [seen.tensor().numpy()[slice(None) if place is None else [place]] for seen in some]
    there = np.concatenate([each[each.any(axis=1)] for each in rows])
    if there.shape[1] != SEALED_BYTES:
        there = there.reshape(-1, ELEMENT_BYTES)[:, :_UNIFORM_BYTES]
    return Ciphertext(chosen_words(np.ascontiguousarray(there).view(np.int64)), there.shape[1] // _WORD)
