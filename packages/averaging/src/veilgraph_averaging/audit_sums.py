"""Sums under masks, as the server of an averaging job and holders that collude with it know them, and what of them
must say nothing.

The server puts together what the survivors of a sum revealed: the own mask of each that is counted, and the mask key
of each that is not. A holder adds its own mask key, and its share of everybody's secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.collectives import tensor_text
from veilgraph.link.view import ViewEntry
from veilgraph.protocol.agreement import Hello, session_name
from veilgraph.protocol.evidence import Ciphertext, Evidence, chosen_words
from veilgraph.protocol.view import View
from veilgraph_averaging.aggregation import shamir
from veilgraph_averaging.aggregation.keys import (
    KEY_BYTES,
    SEALED_BYTES,
    SHARED_BYTES,
    Round,
    mask_private,
    own_mask,
    pad_pair_key,
    pairwise_mask,
)
from veilgraph_averaging.settings import averaging

MOST: Final = 48  # sums that are read, the first and the last of the run
OFFERS: Final = (Kind.KEY, 1)
SEALED: Final = (Kind.MASK_SHARE, 0)
PASSED: Final = (Kind.MASK_SHARE, 1)
VALUES: Final = (Kind.MASKED, 0)
SURVIVORS: Final = (Kind.CONTROL, 1)
REVEALED: Final = (Kind.MASK_SHARE, 2)
"""Kinds and rounds of a sum's messages, and of what holders note of theirs: the key behind an offer, opened shares."""
_MASK_KEYS: Final = slice(KEY_BYTES, 2 * KEY_BYTES)
_WORD: Final = 8
_UNIFORM_BYTES: Final = shamir.ELEMENT_BYTES - _WORD
"""Of an element of the field, the lowest: the highest word of a number below 2^255 is not uniform."""

Key = tuple[int, int]  # session, and number of a sum in it
_OfSum = Mapping[tuple[Kind, int], Mapping[PartyId, ViewEntry]]
"""Kind and round → the other party, or who noted it → the message."""


@dataclass(frozen=True, eq=False)
class KnownSum:
    """One recorded sum with the secrets of holders that its readers know, to take masks off."""

    round: Round
    session: int  # of the run, counted
    offers: Mapping[PartyId, bytes]  # holder → the keys that it offered
    shared: Mapping[PartyId, Tensor]  # holder → what it shared: behind each row's seal the pair's key under a pad
    sharing: tuple[PartyId, ...]  # holders whose masks with one another went into values
    counted: tuple[PartyId, ...]  # those whose values were added up
    values: Mapping[PartyId, ViewEntry]  # holder → its values under masks, those that came too late among them
    own_masks: Mapping[PartyId, int]  # holder → the seed of its own mask, where that is known
    mask_keys: Mapping[PartyId, int]  # holder → the key of its pairwise masks, where that is known

    @property
    def size(self) -> int:
        """How many numbers each holder adds."""
        return self.values[self.counted[0]].shape[0]

    def hiding(self, holder: PartyId) -> list[PartyId]:
        """Return the holders with which a holder has pairwise masks that are not known."""
        if holder in self.mask_keys:
            return []
        return [other for other in self.sharing if other != holder and other not in self.mask_keys]

    def own(self, holder: PartyId) -> Tensor:
        """Return a holder's own mask, whose seed must be known: int64 [size]."""
        return own_mask(self.round, self.own_masks[holder], self.size)

    def less_masks(self, holder: PartyId, peers: Collection[PartyId], *, own: bool) -> Tensor:
        """Return a holder's values less its masks with ``peers`` and, if ``own``, its own mask: int64 [size]."""
        left = self.values[holder].tensor()
        if own:
            left -= self.own(holder)
        for peer in peers:
            if peer in self.sharing and peer != holder:
                left -= -self._mask_of(peer, holder) if peer in self.mask_keys else self._mask_of(holder, peer)
        return left

    def _mask_of(self, known: PartyId, other: PartyId) -> Tensor:
        mask_key = self.mask_keys[known]
        private: X25519PrivateKey = mask_private(mask_key)
        padded = self.round.row(self.shared[known], other)[SEALED_BYTES:]
        pair_key = pad_pair_key(self.round, mask_key, other, padded)
        return pairwise_mask(self.round, known, private, other, self.offers[other][_MASK_KEYS], pair_key, self.size)

    @cached_property
    def less_pairs(self) -> Tensor:
        """The sum of counted holders' values, without pairwise masks but with their own masks: int64 [size]."""
        gone = [holder for holder in self.sharing if holder not in self.counted]
        return torch.stack([self.less_masks(holder, gone, own=False) for holder in self.counted]).sum(dim=0)

    @cached_property
    def total(self) -> Tensor:
        """The sum that the server opens: int64 [size]."""
        return self.less_pairs - torch.stack([self.own(holder) for holder in self.counted]).sum(dim=0)


def known_sums(server: View, friends: Sequence[View]) -> list[KnownSum]:
    """Return the recorded sums, at most 48, with the secrets that the server and holders ``friends`` can combine."""
    job, names = averaging(server.settings), session_names(server)
    came = _group_by_sum((seen, seen.sender) for seen in server.messages if seen.receiver == SERVER)
    told = _group_by_sum((seen, seen.receiver) for seen in server.messages if seen.sender == SERVER)
    notes = _group_by_sum((seen, friend.party) for friend in friends for seen in friend.own)
    keys = [key for key, of_sum in told.items() if SURVIVORS in of_sum and key[0] in names]
    sums = list[KnownSum]()
    for key in keys if len(keys) <= MOST else [*keys[: MOST // 2], *keys[-MOST // 2 :]]:
        round_ = Round(names[key[0]], key[1], job.data.names, job.threshold)
        found = _open_sum(round_, key[0], came.get(key, {}), told[key], notes.get(key, {}))
        sums += [] if found is None else [found]
    return sums


def _group_by_sum(messages: Iterable[tuple[ViewEntry, PartyId]]) -> dict[Key, dict[Any, dict[PartyId, ViewEntry]]]:
    found: dict[Key, dict[Any, dict[PartyId, ViewEntry]]] = {}
    for seen, party in messages:
        of_sum = found.setdefault((seen.session, seen.tag.step), {})
        of_sum.setdefault((seen.tag.kind, seen.tag.round), {})[party] = seen
    return found


def _open_sum(round_: Round, session: int, came: _OfSum, told: _OfSum, notes: _OfSum) -> KnownSum | None:
    """Restore the secrets of a sum from its messages and friends' notes; None where messages are missing."""
    offers = {holder: _to_bytes(seen.tensor()) for holder, seen in came.get(OFFERS, {}).items()}
    answers = {holder: seen.tensor() for holder, seen in came.get(REVEALED, {}).items()}
    survivors, passed = (
        next(iter(told[key].values())).tensor() if key in told else None for key in (SURVIVORS, PASSED)
    )
    values = came.get(VALUES, {})
    shared = {holder: seen.tensor() for holder, seen in came.get(SEALED, {}).items()}
    if survivors is None or passed is None or len(answers) < round_.threshold:
        return None
    counted = tuple(holder for holder, one in zip(round_.holders, survivors.tolist(), strict=True) if one)
    sharing = tuple(round_.present(passed))
    if not (set(sharing) <= set(offers) & set(shared) and set(counted) <= set(values)):
        return None
    masks = dict[PartyId, int]()
    keys = {friend: shamir.of_bytes(_to_bytes(seen.tensor())) for friend, seen in notes.get(OFFERS, {}).items()}
    opened = {friend: seen.tensor() for friend, seen in notes.get(REVEALED, {}).items()}
    for holder in sharing:
        place = round_.holders.index(holder)
        of_key = {friend: rows[place, : shamir.ELEMENT_BYTES] for friend, rows in opened.items()}
        of_mask = {friend: rows[place, shamir.ELEMENT_BYTES :] for friend, rows in opened.items()}
        (of_mask if holder in counted else of_key).update({other: rows[place] for other, rows in answers.items()})
        for shares, secrets in ((of_key, keys), (of_mask, masks)):
            if len(shares) >= round_.threshold:
                secrets.setdefault(holder, _combine_shares(round_, shares))
    return KnownSum(round_, session, offers, shared, sharing, counted, values, masks, keys)


def _combine_shares(round_: Round, shares: Mapping[PartyId, Tensor]) -> int:
    chosen = list(shares.items())[: round_.threshold]
    return shamir.combine({round_.holders.index(party) + 1: shamir.of_bytes(_to_bytes(one)) for party, one in chosen})


def _to_bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def hellos_of(view: View) -> dict[int, dict[PartyId, Hello]]:
    """Return session → party → its newest hello in a view."""
    found: dict[int, dict[PartyId, Hello]] = {}
    for seen in view.messages:
        if (seen.tag.kind, seen.tag.round) == (Kind.HELLO, 0):
            said = Hello.model_validate_json(tensor_text(seen.tensor()))
            found.setdefault(seen.session, {})[seen.sender] = said
    return found


def session_names(view: View) -> dict[int, str]:
    """Return session → the name that its masks and keys are derived with, from all parties' nonces."""
    parties = (*view.settings.data.names, SERVER)
    return {
        session: session_name([hellos[party].nonce for party in parties])
        for session, hellos in hellos_of(view).items()
        if set(parties) <= set(hellos)
    }


def noise_at_server(server: View, friends: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Yield what must look uniform to the server and its ``friends``: sealed shares, and values under masks.

    All known masks are taken off, as long as one that is not known is left.
    """
    sums, helping = known_sums(server, friends), [view.party for view in friends]
    yield from _noise_evidence("sums with all own masks", outside, sums, lambda known: known.less_pairs)
    for holder in outside:
        yield from _masked_value_evidence(sums, helping, holder)
    for holder in outside:
        yield from _share_tests(f"shares that {holder} sealed", holder, [server.received(SEALED[0], holder, SEALED[1])])


def _masked_value_evidence(sums: Sequence[KnownSum], friends: Sequence[PartyId], holder: PartyId) -> Iterator[Evidence]:
    came = [each for each in sums if holder in each.values]
    counted = [each for each in came if holder in each.counted]
    late = [each for each in came if holder not in each.counted and not each.hiding(holder)]
    hidden = [each for each in counted if each.hiding(holder)]
    values = f"values under masks from {holder}"

    def less(peers: Sequence[PartyId] | None, *, own: bool) -> Callable[[KnownSum], Tensor]:
        return lambda known: known.less_masks(holder, known.sharing if peers is None else peers, own=own)

    yield from _noise_evidence(values, [holder], came, lambda known: known.values[holder].tensor())
    yield from _noise_evidence(f"{values}, without its own", [holder], hidden, less((), own=True))
    words = f"sums with no own mask but {holder}'s"
    yield from _noise_evidence(words, [holder], counted, lambda known: known.total + known.own(holder))
    words = f"{values} that came too late, without those with others"
    yield from _noise_evidence(words, [holder], late, less(None, own=False))
    if friends:
        values += f", without those with {'+'.join(friends)}"
        yield from _noise_evidence(values, [holder], counted, less(friends, own=False))
        yield from _noise_evidence(f"{values} and its own", [holder], hidden, less(friends, own=True))


def _noise_evidence(
    words: str, about: Sequence[PartyId], sums: Sequence[KnownSum], left: Callable[[KnownSum], Tensor]
) -> Iterator[Evidence]:
    if sums:
        read = lambda: [Ciphertext(chosen_words(left(each).numpy())) for each in sums]  # noqa: E731
        messages = tuple(each.values[party] for each in sums for party in about if party in each.values)
        yield Evidence("noise", words, tuple(about), permitted=False, noise=read, messages=messages)


def noise_at_holders(holders: Sequence[View], outside: Sequence[PartyId]) -> Iterator[Evidence]:
    """Yield what must look uniform to some holders together: the shares that each other holder sealed for them."""
    names = holders[0].settings.data.names
    for sender in outside:
        sealed = [view.received(PASSED[0], SERVER, PASSED[1]) for view in holders]
        opened = [view.noted(*REVEALED) for view in holders]
        place = names.index(sender)
        yield from _share_tests(f"shares that {sender} sealed for it", sender, sealed, place)
        yield from _share_tests(f"shares that {sender} gave it", sender, opened, place)


def _share_tests(
    words: str, holder: PartyId, found: Sequence[Sequence[ViewEntry]], place: int | None = None
) -> Iterator[Evidence]:
    """Yield one test of shares of ``holder``, over all sums; ``found``: messages by receiver; ``place``: one row."""
    chosen = [some if len(some) <= MOST else [*some[: MOST // 2], *some[-MOST // 2 :]] for some in found]
    messages = tuple(seen for some in chosen for seen in some)
    if messages:
        read = lambda: [_share_bytes(some, place) for some in chosen if some]  # noqa: E731
        yield Evidence("noise", words, (holder,), permitted=False, noise=read, messages=messages)


def _share_bytes(some: Sequence[ViewEntry], place: int | None) -> Ciphertext:
    rows = [seen.tensor().numpy()[slice(None) if place is None else [place]] for seen in some]
    there = np.concatenate([each[each.any(axis=1)] for each in rows])
    if there.shape[1] not in (SEALED_BYTES, SHARED_BYTES):
        there = there.reshape(-1, shamir.ELEMENT_BYTES)[:, :_UNIFORM_BYTES]
    return Ciphertext(chosen_words(np.ascontiguousarray(there).view(np.int64)), there.shape[1] // _WORD)
