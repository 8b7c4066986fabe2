"""Sums under masks, as the server of an averaging job and holders that collude with it know them.

The server puts together what the survivors of a sum revealed: the own mask of each that is counted, and the mask key
of each that is not. A holder adds its own mask key, and its share of everybody's secrets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from veilgraph.audit.view import View
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.collectives import tensor_text
from veilgraph.link.view import Seen
from veilgraph.mpc import shamir
from veilgraph.mpc.aggregation.keys import KEY_BYTES, Round, mask_private, own_mask, pairwise_mask
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.resumption import session_name

MOST: Final = 48
"""Sums that are read, the first and the last of the run."""
OFFERS: Final = (Kind.KEY, 1)
SEALED: Final = (Kind.MASK_SHARE, 0)
PASSED: Final = (Kind.MASK_SHARE, 1)
VALUES: Final = (Kind.MASKED, 0)
SURVIVORS: Final = (Kind.CONTROL, 1)
REVEALED: Final = (Kind.MASK_SHARE, 2)
"""Kinds and rounds of a sum's messages, and of what holders note of theirs: the key behind an offer, opened shares."""
_MASK_KEYS: Final = slice(KEY_BYTES, 2 * KEY_BYTES)


@dataclass(frozen=True, eq=False)
class KnownSum:
    """One sum.

    Attributes:
        round: which.
        session: of the run, counted.
        offers: holder → the keys that it offered.
        sharing: holders whose masks with one another went into values.
        counted: those whose values were added up.
        values: holder → its values under masks, those that came too late among them.
        own_masks: holder → the seed of its own mask, where that is known.
        mask_keys: holder → the key of its pairwise masks, where that is known.
    """

    round: Round
    session: int
    offers: Mapping[PartyId, bytes]
    sharing: tuple[PartyId, ...]
    counted: tuple[PartyId, ...]
    values: Mapping[PartyId, Seen]
    own_masks: Mapping[PartyId, int]
    mask_keys: Mapping[PartyId, int]

    @property
    def size(self) -> int:
        """How many numbers are added up."""
        return self.values[self.counted[0]].shape[0]

    def hiding(self, holder: PartyId) -> list[PartyId]:
        """With whom a holder has masks that are not known."""
        if holder in self.mask_keys:
            return []
        return [other for other in self.sharing if other != holder and other not in self.mask_keys]

    def own(self, holder: PartyId) -> Tensor:
        """The mask that a holder has by itself: int64 [size]."""
        return own_mask(self.round, self.own_masks[holder], self.size)

    def less_masks(self, holder: PartyId, peers: Collection[PartyId], *, own: bool) -> Tensor:
        """A holder's values without some of their masks: int64 [size].

        Args:
            holder: whose.
            peers: of the others, whose keys are known; the masks with those that shared nothing are none.
            own: whether its own mask comes off as well.
        """
        left = self.values[holder].tensor()
        if own:
            left -= self.own(holder)
        for peer in peers:
            if peer in self.sharing and peer != holder:
                left -= self._pairwise(holder, peer)
        return left

    def _pairwise(self, holder: PartyId, peer: PartyId) -> Tensor:
        """What a holder added for another one."""
        if peer not in self.mask_keys:
            return pairwise_mask(self.round, holder, self._private(holder), peer, self._public(peer), self.size)
        return -pairwise_mask(self.round, peer, self._private(peer), holder, self._public(holder), self.size)

    def _private(self, holder: PartyId) -> X25519PrivateKey:
        return mask_private(self.mask_keys[holder])

    def _public(self, holder: PartyId) -> bytes:
        return self.offers[holder][_MASK_KEYS]

    @cached_property
    def less_pairs(self) -> Tensor:
        """The sum of what counted holders gave, where own masks alone are left: int64 [size]."""
        gone = [holder for holder in self.sharing if holder not in self.counted]
        return torch.stack([self.less_masks(holder, gone, own=False) for holder in self.counted]).sum(dim=0)

    @cached_property
    def total(self) -> Tensor:
        """The sum that the server opens: int64 [size]."""
        return self.less_pairs - torch.stack([self.own(holder) for holder in self.counted]).sum(dim=0)


def known_sums(server: View, friends: Sequence[View]) -> list[KnownSum]:
    """The sums of which a view has all messages, some of the first and some of the last.

    Args:
        server: its view.
        friends: views of holders that help it.
    """
    job, names = averaging(server.settings), _session_names(server)
    came = _by_sum((seen, seen.sender) for seen in server.messages if seen.receiver == SERVER)
    told = _by_sum((seen, seen.receiver) for seen in server.messages if seen.sender == SERVER)
    notes = _by_sum((seen, friend.party) for friend in friends for seen in friend.own)
    keys = [key for key, of_sum in told.items() if SURVIVORS in of_sum and key[0] in names]
    sums = list[KnownSum]()
    for key in keys if len(keys) <= MOST else [*keys[: MOST // 2], *keys[-MOST // 2 :]]:
        round_ = Round(names[key[0]], key[1], job.data.names, job.threshold)
        found = _known(round_, key[0], came.get(key, {}), told[key], notes.get(key, {}))
        sums += [] if found is None else [found]
    return sums


_OfSum = Mapping[tuple[Kind, int], Mapping[PartyId, Seen]]
"""Kind and round → the other party, or who noted it → the message."""


def _by_sum(messages: Iterable[tuple[Seen, PartyId]]) -> dict[tuple[int, int], dict[Any, dict[PartyId, Seen]]]:
    """Session and step, which is the number of a sum, → its messages."""
    found: dict[tuple[int, int], dict[Any, dict[PartyId, Seen]]] = {}
    for seen, party in messages:
        of_sum = found.setdefault((seen.session, seen.tag.step), {})
        of_sum.setdefault((seen.tag.kind, seen.tag.round), {})[party] = seen
    return found


def _known(round_: Round, session: int, came: _OfSum, told: _OfSum, notes: _OfSum) -> KnownSum | None:
    """None where the view has not all of the sum."""
    offers = {holder: _bytes(seen.tensor()) for holder, seen in came.get(OFFERS, {}).items()}
    answers = {holder: seen.tensor() for holder, seen in came.get(REVEALED, {}).items()}
    survivors, passed = (
        next(iter(told[key].values())).tensor() if key in told else None for key in (SURVIVORS, PASSED)
    )
    values = came.get(VALUES, {})
    if survivors is None or passed is None or len(answers) < round_.threshold:
        return None
    counted = tuple(holder for holder, one in zip(round_.holders, survivors.tolist(), strict=True) if one)
    sharing = tuple(round_.present(passed))
    if not (set(sharing) <= set(offers) and set(counted) <= set(values)):
        return None
    masks = dict[PartyId, int]()
    keys = {friend: shamir.of_bytes(_bytes(seen.tensor())) for friend, seen in notes.get(OFFERS, {}).items()}
    opened = {friend: seen.tensor() for friend, seen in notes.get(REVEALED, {}).items()}
    for holder in sharing:
        place = round_.holders.index(holder)
        of_key = {friend: rows[place, : shamir.ELEMENT_BYTES] for friend, rows in opened.items()}
        of_mask = {friend: rows[place, shamir.ELEMENT_BYTES :] for friend, rows in opened.items()}
        (of_mask if holder in counted else of_key).update({other: rows[place] for other, rows in answers.items()})
        for shares, secrets in ((of_key, keys), (of_mask, masks)):
            if len(shares) >= round_.threshold:
                secrets.setdefault(holder, _combined(round_, shares))
    return KnownSum(round_, session, offers, sharing, counted, values, masks, keys)


def _combined(round_: Round, shares: Mapping[PartyId, Tensor]) -> int:
    chosen = list(shares.items())[: round_.threshold]
    return shamir.combine({round_.holders.index(party) + 1: shamir.of_bytes(_bytes(one)) for party, one in chosen})


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def hellos_of(view: View) -> dict[int, dict[PartyId, Hello]]:
    """Session → party → what it stated of itself last."""
    found: dict[int, dict[PartyId, Hello]] = {}
    for seen in view.messages:
        if (seen.tag.kind, seen.tag.round) == (Kind.HELLO, 0):
            said = Hello.model_validate_json(tensor_text(seen.tensor()))
            found.setdefault(seen.session, {})[seen.sender] = said
    return found


def _session_names(view: View) -> dict[int, str]:
    """Session → what its masks and keys were made for."""
    parties = (*view.settings.data.names, SERVER)
    return {
        session: session_name([hellos[party].nonce for party in parties])
        for session, hellos in hellos_of(view).items()
        if set(parties) <= set(hellos)
    }
