"""Pairwise masks that cancel in the sum over all holders (docs/protocol.md).

Every pair of holders agrees on a key (X25519 → HKDF) and expands from it, for every message, a fresh uniform
matrix that one of the two adds and the other subtracts. Whoever collects one masked matrix from each holder can
decode their sum and nothing else. ``secret_rounding`` sees to it that the sum's low bits are no exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import Tensor

from veilgraph.core.errors import ProtocolError, RangeOverflow
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource, derive_key
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import exchange
from veilgraph.link.recorded import RecordedLink
from veilgraph.mpc import ring
from veilgraph.mpc.secret_rounding import SecretRounding

_WORDS: Final = 10
INTEGER_BITS: Final = 64 * _WORDS
"""Whole numbers that are summed under masks are taken mod 2^640."""


class PairwiseMasks:
    """One holder's ends of the keys it shares with each other holder.

    Args:
        party: the holder.
        keys: other holder → 32 bytes that the two share.
        rounding_key: 32 bytes for ``SecretRounding``, which nobody else has.
    """

    def __init__(self, party: PartyId, keys: dict[PartyId, bytes], rounding_key: bytes) -> None:
        self._party = party
        self._keys = keys
        self.rounding = SecretRounding(rounding_key)

    @classmethod
    def agree(
        cls,
        link: Link,
        holders: Sequence[PartyId],
        secrets: SecretSource,
        *,
        round_: int = 0,
        rounding_key: bytes | None = None,
    ) -> PairwiseMasks:
        """Exchanges ephemeral public keys with the other holders; the keys live in memory for one session.

        Args:
            link: of this holder.
            holders: all of them.
            secrets: source of its private key.
            round_: of the messages, another one each time in a session.
            rounding_key: 32 bytes that only this holder has, for ``SecretRounding``; default: new ones, with which
                sums of real numbers come out a little different in every session.

        Raises:
            ProtocolError: a holder sent an invalid key.
            LinkError: as ``exchange``.
        """
        peers = [holder for holder in holders if holder != link.party]
        private = X25519PrivateKey.from_private_bytes(secrets(SEED_BYTES))
        public = torch.frombuffer(bytearray(private.public_key().public_bytes_raw()), dtype=torch.uint8)
        keys = {}
        for peer, received in exchange(link, peers, Tag(Kind.KEY, 0, round_), public).items():
            try:
                secret = private.exchange(X25519PublicKey.from_public_bytes(received.numpy().tobytes()))
            except ValueError as error:
                raise ProtocolError(
                    f"{peer} sent {link.party} an invalid X25519 public key: {error}", code="bad-public-key", party=peer
                ) from error
            keys[peer] = derive_key(secret, "pairwise/" + "/".join(sorted([link.party, peer])))
        return cls(link.party, keys, secrets(SEED_BYTES) if rounding_key is None else rounding_key)

    def mask(self, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        """This holder's mask, int64 of ``shape``: uniform by itself, zero when summed over the holders."""
        total: Tensor | None = None
        for peer, key in self._keys.items():
            expanded = expand(key, f"{purpose}/{step}", shape)
            if self._party > peer:
                expanded.neg_()
            total = expanded if total is None else total.add_(expanded)
        return torch.zeros(shape, dtype=torch.int64) if total is None else total

    def mask_integers(self, purpose: str, step: int, count: int) -> list[int]:
        """As ``mask``, of integers mod 2^``INTEGER_BITS``."""
        totals = [0] * count
        for peer, key in self._keys.items():
            expanded = integers_of(expand(key, f"{purpose}/{step}", (count, _WORDS)))
            sign = 1 if self._party < peer else -1
            totals = [total + sign * each for total, each in zip(totals, expanded, strict=True)]
        return [total % (1 << INTEGER_BITS) for total in totals]

    def hide(self, values: Tensor, bits: int, purpose: str, step: int, remedy: str) -> Tensor:
        """``values`` in fixed point, their low bits moved by ``SecretRounding``, under this holder's mask.

        Args:
            values: float32 or float64; the dtype says how many digits they have.
            bits: fractional bits.
            purpose: with ``step`` names the mask; never used twice in a session.
            step: of the session.
            remedy: the setting to change when the values do not fit.

        Raises:
            RangeOverflow: the values do not fit with room for the sum over the holders.
        """
        encoded = self._encoded(values, bits, purpose, remedy)
        self.rounding.move(encoded, values, bits)
        return encoded.add_(self.mask(purpose, step, tuple(values.shape)))

    def hide_exactly(self, values: Tensor, bits: int, purpose: str, step: int, remedy: str) -> Tensor:
        """As ``hide``, of multiples of one step that all holders have: their sum's low bits say nothing of summands.

        Raises:
            RangeOverflow: as ``hide``, or the values have more fractional bits.
        """
        encoded = self._encoded(values, bits, purpose, remedy)
        if not torch.equal(encoded.to(torch.float64) * 2.0**-bits, values):
            raise RangeOverflow(
                f"{self._party}'s {purpose}: {bits} fractional bits do not hold the values exactly, as their sum under "
                f"masks needs; {remedy}",
                key=purpose,
                value=bits,
            )
        return encoded.add_(self.mask(purpose, step, tuple(values.shape)))

    def _encoded(self, values: Tensor, bits: int, purpose: str, remedy: str) -> Tensor:
        return ring.encode(values, bits, f"{self._party}'s {purpose}", remedy, len(self._keys).bit_length())

    def hidden_for(
        self, link: Link, tag: Tag, values: Tensor, bits: int, purpose: str, remedy: str, *, exactly: bool = False
    ) -> Tensor:
        """As ``hide``, for a message; where the party's view is recorded, what is under the mask is noted there."""
        hide = self.hide_exactly if exactly else self.hide
        hidden = hide(values, bits, purpose, tag.step, remedy)
        if isinstance(link, RecordedLink):
            link.note(tag, lambda: hidden - self.mask(purpose, tag.step, tuple(values.shape)))
        return hidden


def sum_among(
    link: Link,
    others: Sequence[PartyId],
    masks: PairwiseMasks,
    values: Tensor,
    tag: Tag,
    *,
    bits: int,
    purpose: str,
    remedy: str,
) -> Tensor:
    """The sum of all holders' values, which every holder learns, the same to the bit, and nothing else of them.

    Args:
        link: of this holder.
        others: the other holders.
        masks: of the session, among them all.
        values: this holder's, as for ``hide``.
        tag: of the messages.
        bits: fractional bits.
        purpose: with the tag's step names the masks; never used twice in a session.
        remedy: the setting to change when the values do not fit.

    Returns:
        The sum, in the shape and dtype of ``values``.

    Raises:
        RangeOverflow: the values or their sum do not fit.
        LinkError: as ``exchange``.
    """
    hidden = masks.hidden_for(link, tag, values, bits, purpose, remedy)
    pieces = exchange(link, others, tag, hidden)
    return open_sum([hidden, *pieces.values()], bits, values.dtype, purpose, remedy)


def sum_integers_among(
    link: Link, others: Sequence[PartyId], masks: PairwiseMasks, values: Sequence[int], tag: Tag, *, purpose: str
) -> list[int]:
    """The sums of all holders' whole numbers, exact, which every holder learns, and nothing else of them.

    Args:
        link: of this holder.
        others: the other holders.
        masks: of the session, among them all.
        values: this holder's, as many as every other's.
        tag: of the messages.
        purpose: with the tag's step names the masks; never used twice in a session.

    Raises:
        RangeOverflow: a value does not fit into 640 bits with room for the sum.
        LinkError: as ``exchange``.
    """
    limit, modulus = (1 << (INTEGER_BITS - 1)) // (len(others) + 1), 1 << INTEGER_BITS
    if any(abs(value) >= limit for value in values):
        raise RangeOverflow(
            f"{link.party}'s {purpose}: a whole number of more than {limit.bit_length() - 1} bits",
            key=purpose,
            value=limit.bit_length() - 1,
            party=link.party,
        )
    mask = masks.mask_integers(purpose, tag.step, len(values))
    hidden = _words([(value + own) % modulus for value, own in zip(values, mask, strict=True)])
    pieces = [hidden, *exchange(link, others, tag, hidden).values()]
    totals = [sum(each) % modulus for each in zip(*map(integers_of, pieces), strict=True)]
    return [total - modulus if total >= modulus >> 1 else total for total in totals]


def _words(integers: Sequence[int]) -> Tensor:
    """Integers of 640 bits as Tensor[n, 10] int64, the lowest word first."""
    joined = b"".join(each.to_bytes(INTEGER_BITS // 8, "little") for each in integers)
    return torch.from_numpy(np.frombuffer(joined, dtype="<i8").reshape(-1, _WORDS).copy())


def integers_of(words: Tensor) -> list[int]:
    """What ``_words`` made words of."""
    raw, size = words.numpy().astype("<i8").tobytes(), INTEGER_BITS // 8
    return [int.from_bytes(raw[start : start + size], "little") for start in range(0, len(raw), size)]


def open_sum(pieces: Iterable[Tensor], bits: int, dtype: torch.dtype, what: str, remedy: str) -> Tensor:
    """Adds one masked matrix of every holder, so that the masks cancel, and decodes the sum.

    Raises:
        RangeOverflow: the sum reached into the guard bits.
    """
    return ring.decode(add(pieces), bits, dtype, what, remedy)


def add(pieces: Iterable[Tensor]) -> Tensor:
    """The sum of one or more ring tensors of one shape, mod 2^64, in new memory."""
    first, *rest = pieces
    if not rest:
        return first.clone()
    total = first + rest[0]
    for piece in rest[1:]:
        total += piece
    return total
