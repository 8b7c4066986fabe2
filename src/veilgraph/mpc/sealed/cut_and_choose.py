"""A dealer that need not be trusted to deal rightly: whole dealings are opened at random and computed again.

Nothing that a dealer gets depends on data, so all that it sends in a session follows from one key and public sizes. It
computes that once before anything is dealt, and commits to it: to the key by its SHA-256, to every message by that of
the message. The holders compare what they were told of the key, and one of them draws whether this dealing is opened.
One that is opened is never used: the dealer reveals its key, every holder computes the dealing anew and compares it
with what it was told, and the dealer begins another. One that is not opened is used, and every message of it is held
against its digest before anything is computed from it.

So a dealing with a single wrong message is used with a chance of 1 − rate, and ends the job with a chance of rate: the
dealer cannot know which before it has committed to it.

A dealer that learns which dealing is opened could hang up whenever that one is wrong, and try again. So every holder
records a check before it begins and clears the record once the dealing has proved right. A check that did not end
counts as failed, in its own session by name and in every later session of the run (``failed_check_reason``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import count
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import LinkError, ProtocolError
from veilgraph.core.randomness import Keystream
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.tensor_file import Keeper
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, exchange, receive_as
from veilgraph.link.wrapper import Wrapper
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.mpc.sealed.machine import Machine

DIGEST_BYTES: Final = 32
_DIGESTS, _COMPARED, _DRAWN, _KEY = range(4)  # rounds of the messages about one dealing
_DRAW_BYTES: Final = 8
_RECORD: Final = "dealer-check"
_OPENED: Final = "opened"

Dealing = Callable[[Machine], None]  # all that is computed in a session, on a machine


def dealer_of(link: Link, holders: Sequence[PartyId], secrets: SecretSource, dealing: Dealing) -> DealerMachine:
    """Commit to dealings until the holders leave one unopened, and return its machine; ``secrets`` gives the keys."""
    for number in count():
        key = secrets(SEED_BYTES)
        digests = _digests_of(key, link.party, holders, dealing)
        for holder in holders:
            link.send(holder, _dealing_tag(number, _DIGESTS), torch.cat([_row(sha256(key).digest()), digests[holder]]))
        if not bool(receive_as(link, holders[0], _dealing_tag(number, _DRAWN), (1,), torch.bool)):
            return DealerMachine(link, holders, _secrets_from(key))
        broadcast(link, holders, _dealing_tag(number, _KEY), _row(key)[0])
    raise AssertionError


def failed_check_reason(keeper: Keeper) -> str:
    """Return why this dealer must not be used again; empty unless a check failed in an earlier session."""
    kept = keeper.get(_RECORD)
    if kept is None or kept.facts.get(_OPENED) is False:
        return ""
    return (
        "dealer_checks: a dealing was opened in an earlier session of this run, and the dealer did not show that it "
        "was right. Ask the dealer's owner what it runs; begin a new run, or after an accident delete "
        f"{keeper.place(_RECORD)}"
    )


def checked_link(
    link: Link,
    holders: Sequence[PartyId],
    dealer: PartyId,
    dealing: Dealing,
    rate: float,
    secrets: SecretSource,
    keeper: Keeper,
) -> Link:
    """A holder's link, on which the dealer can send nothing but what it has committed to.

    The first holder draws; a dealing is opened with a chance of ``rate``, below 1. ``keeper`` records a check that has
    begun. Raises ``ProtocolError``: the dealer has told two holders of two keys, does not give the key of a dealing
    that is opened, or a dealing is not what follows from its key.
    """
    others = [holder for holder in holders if holder != link.party]
    for number in count():
        told = receive_as(link, dealer, _dealing_tag(number, _DIGESTS), (None, DIGEST_BYTES), torch.uint8)
        for holder, theirs in exchange(link, others, _dealing_tag(number, _COMPARED), told[:1]).items():
            if not torch.equal(told[:1], theirs):
                raise _dealer_fault(dealer, f"it told {link.party} and {holder} of different keys of dealing {number}")
        if link.party == holders[0]:
            opened = flip_biased_coin(rate, secrets)
            keeper.put(_RECORD, {}, {_OPENED: opened})  # before the dealer hears of it, and could hang up
            broadcast(link, [*others, dealer], _dealing_tag(number, _DRAWN), torch.tensor([opened]))
        else:
            opened = bool(receive_as(link, holders[0], _dealing_tag(number, _DRAWN), (1,), torch.bool))
            keeper.put(_RECORD, {}, {_OPENED: opened})
        if not opened:
            return _CheckedLink(link, dealer, told[1:])
        try:
            key = receive_as(link, dealer, _dealing_tag(number, _KEY), (SEED_BYTES,), torch.uint8).numpy().tobytes()
        except LinkError as error:
            raise _dealer_fault(dealer, f"dealing {number} was opened, and no key of it came ({error})") from error
        if not torch.equal(_row(sha256(key).digest()), told[:1]):
            raise _dealer_fault(dealer, f"the key of dealing {number} is not the one that it had committed to")
        if not torch.equal(_digests_of(key, dealer, holders, dealing)[link.party], told[1:]):
            raise _dealer_fault(dealer, f"dealing {number} is not what follows from its key")
        keeper.put(_RECORD, {}, {_OPENED: False})
    raise AssertionError


def flip_biased_coin(rate: float, secrets: SecretSource) -> bool:
    """Return True with a probability of ``rate``."""
    return int.from_bytes(secrets(_DRAW_BYTES), "big") < rate * (1 << 8 * _DRAW_BYTES)


class _CheckedLink(Wrapper):
    """A link that raises ``ProtocolError`` at a dealer's message whose digest the dealer has not committed to."""

    def __init__(self, link: Link, dealer: PartyId, digests: Tensor) -> None:
        super().__init__(link)
        self._dealer, self._digests = dealer, {digest.numpy().tobytes() for digest in digests}

    @override
    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Receive a message; ``ProtocolError``: it is the dealer's, and not what it has committed to."""
        tensor = super().receive(sender, tag)
        if sender == self._dealer and _digest_of(tag, tensor).numpy().tobytes() not in self._digests:
            raise _dealer_fault(sender, f"{tag} is not what it had committed to")
        return tensor


class _DigestLink:
    """A dealer's link that sends nothing, keeps the digest of every message, and receives acknowledgements at once."""

    def __init__(self, party: PartyId, holders: Sequence[PartyId]) -> None:
        self.party = party
        self.digests: dict[PartyId, list[Tensor]] = {holder: [] for holder in holders}

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        self.digests[to].append(_digest_of(tag, tensor))

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        return torch.ones(1, dtype=torch.uint8)

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        return True

    def expect(self, unread_bytes: int) -> None:
        pass

    def close(self) -> None:
        pass


def _digests_of(key: bytes, dealer: PartyId, holders: Sequence[PartyId], dealing: Dealing) -> dict[PartyId, Tensor]:
    """Compute a dealing from its key: holder → digests of all that it is dealt, in order, uint8 [messages, 32]."""
    link = _DigestLink(dealer, holders)
    dealing(DealerMachine(link, holders, _secrets_from(key)))
    return {holder: torch.cat(digests) for holder, digests in link.digests.items()}


def _secrets_from(key: bytes) -> SecretSource:
    stream = Keystream(key, "dealing")
    return lambda length: stream.take(length).numpy().tobytes()


def _digest_of(tag: Tag, tensor: Tensor) -> Tensor:
    found = sha256(f"{tag}/{tensor.dtype}/{tuple(tensor.shape)}/".encode())
    found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return _row(found.digest())


def _row(digest: bytes) -> Tensor:
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)[None]


def _dealing_tag(number: int, round_: int) -> Tag:
    return Tag(Kind.COMMITMENT, number, round_)


def _dealer_fault(dealer: PartyId, what: str) -> ProtocolError:
    return ProtocolError(
        f"the dealer ({dealer}) does not deal as it should: {what}; nothing was computed from it; ask whose machine it "
        "is what it runs",
        code="dealer",
        party=dealer,
    )
