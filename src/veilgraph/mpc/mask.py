"""Pairwise masks that cancel in the sum over all holders, and the rounding of sums (docs/explanation/protocol.md).

Every pair of holders agrees on a key (X25519 → HKDF) and expands from it, for every message, a fresh uniform matrix
that one of the two adds and the other subtracts. Whoever collects one masked matrix from each holder can decode their
sum and nothing else. A secret contribution under such a mask is an additive share of the sum as well (VFGNN 2.2).

**Low bits.** A floating-point number carries its size in the zeros below its last place. Encoded with more fractional
bits than that, it keeps them, and so does a sum: as many trailing zeros as its smallest summand has. A grid no finer
than the last place of the largest summand would end that, and where the largest is public (``privacy.noise``) there is
one. Gradients, and embeddings that are not normalised, have none. So each value x is moved before it is summed, by

    x̃ = x + u·w,   w = 2^4 units in x's last place,   u uniform in [-1/2, 1/2)

at the resolution of the ring. Whatever the summands are, the sum modulo the largest w among them is then uniform and
independent of all of them: x̃ of the largest already is. What is above that are digits of the sum itself. Without the
factor 2^4 the digits just above would show a pattern: a division leaves gaps of up to two units between the numbers
that can come out. The price is an error of at most 2^-20 of each float32 (2^-49 of each float64), zeros stay zeros.

u comes from the value alone, by AES under a key that only the holder has. So the same job gives the same result, and
whoever sees the same value published a thousand times has one u of it and no mean over many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from veilgraph.core.errors import DataError, ProtocolError, RangeOverflow
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource, derive_key
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import exchange
from veilgraph.link.view import RecordedLink
from veilgraph.mpc import ring

SLACK_BITS: Final = 4  # binary places above a value's last that are moved with it

# Dtype → integers of the same size, where they hold the exponent, and stored binary digits.
_EXPONENTS: Final = {
    torch.float32: (torch.int32, 0x7F80_0000, 23),
    torch.float64: (torch.int64, 0x7FF0_0000_0000_0000, 52),
}
_PIECE: Final = 1 << 15  # Values that are moved at a time, so that what is computed on the way stays in the cache.
_BLOCK_BYTES: Final = 16


class SecretRounding:
    """Random rounding of one holder's values by a secret ``key``, the same in every session, so that results repeat."""

    def __init__(self, key: bytes) -> None:
        # Equal values must be moved equally, and there is one value in each block: a permutation, not a mode.
        self._cipher = Cipher(algorithms.AES256(derive_key(key, "secret rounding")), modes.ECB())  # noqa: S305

    def move(self, encoded: Tensor, values: Tensor, bits: int) -> None:
        """Add a secret rounding round(u·w·2^bits) to each element of ``encoded``, int64, in place.

        ``encoded`` is ``values`` with ``bits`` fractional bits. Their dtype **says how many digits they have**: float32
        numbers that are passed as float64 are not protected. Raises ``DataError``: they are of another dtype.
        """
        _, exponent, digits = _exponent_format(values.dtype)
        unit = 2.0 ** (bits - digits + SLACK_BITS - 64)
        for part, out, uniform in self._uniform(values, encoded, bits):
            powers = (part & exponent).view(values.dtype).mul_(unit)  # w / 2^64 of every value, 0 of zeros
            out.add_(uniform.mul_(powers).round_().to(torch.int64))

    def _uniform(self, values: Tensor, results: Tensor, use: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield pieces of the values' bits and of ``results``, with one u in [-2^63, 2^63), float64, for each value.

        u is AES of the value's bits and of ``use``: equal values have equal u.
        """
        flat = values.detach().contiguous().view(-1).view(_exponent_format(values.dtype)[0])
        encryptor, most = self._cipher.encryptor(), min(_PIECE, flat.numel())
        blocks = torch.full((most, 2), use, dtype=torch.int64)
        secret = torch.empty(_BLOCK_BYTES * (most + 1) - 1, dtype=torch.uint8)
        for part, out in zip(torch.split(flat, _PIECE), torch.split(results.view(-1), _PIECE), strict=True):
            blocks[: len(part), 0] = part
            size = encryptor.update_into(blocks[: len(part)].numpy().view("u1").data, secret.numpy().data)
            yield part, out, secret[:size].view(torch.int64)[::2].to(torch.float64)


def _exponent_format(dtype: torch.dtype) -> tuple[torch.dtype, int, int]:
    """Return integer dtype, exponent mask and mantissa bits of a float dtype; ``DataError``: it has none here."""
    if dtype not in _EXPONENTS:
        raise DataError(f"dtype={dtype}: such values cannot be rounded; give float32 or float64")
    return _EXPONENTS[dtype]


_WORDS: Final = 10
INTEGER_BITS: Final = 64 * _WORDS  # whole numbers that are summed under masks are taken mod 2^640


def derive_shared_key(private: X25519PrivateKey, public: bytes, purpose: str, party: PartyId) -> bytes:
    """Derive the 32-byte key of an X25519 exchange for a purpose; ``ProtocolError``: ``party``'s key is invalid."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise ProtocolError(
            f"{party} offered an invalid X25519 public key: {error}", code="bad-public-key", party=party
        ) from error
    return derive_key(secret, purpose)


class PairwiseMasks:
    """One holder's masks, from ``keys``: other holder → 32 bytes shared with it; ``rounding_key`` is its alone."""

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
        """Exchange ephemeral public keys with the other holders; the keys live in memory for one session.

        Across organisations they travel in the pair's own channel, whose keys stand against quantum computers later.
        Nobody passes them on, so X25519 alone is enough here.

        ``round_`` must differ between calls on one link. Without a ``rounding_key`` one is drawn, and sums of real
        numbers differ a little between sessions. Raises ``ProtocolError``: a holder sent an invalid key.
        """
        peers = [holder for holder in holders if holder != link.party]
        private = X25519PrivateKey.from_private_bytes(secrets(SEED_BYTES))
        public = torch.frombuffer(bytearray(private.public_key().public_bytes_raw()), dtype=torch.uint8)
        keys = {}
        for peer, received in exchange(link, peers, Tag(Kind.KEY, 0, round_), public).items():
            purpose = "pairwise/" + "/".join(sorted([link.party, peer]))
            keys[peer] = derive_shared_key(private, received.numpy().tobytes(), purpose, peer)
        return cls(link.party, keys, secrets(SEED_BYTES) if rounding_key is None else rounding_key)

    def mask(self, purpose: str, step: int, shape: tuple[int, ...]) -> Tensor:
        """Return this holder's mask, int64 of ``shape``: uniform by itself, zero when summed over the holders."""
        total: Tensor | None = None
        for peer, key in self._keys.items():
            expanded = expand(key, f"{purpose}/{step}", shape)
            if self._party > peer:
                expanded.neg_()
            total = expanded if total is None else total.add_(expanded)
        return torch.zeros(shape, dtype=torch.int64) if total is None else total

    def mask_integers(self, purpose: str, step: int, count: int) -> list[int]:
        """Return ``count`` masks, each uniform in [0, 2^640); summed over the holders they are zero mod 2^640."""
        totals = [0] * count
        for peer, key in self._keys.items():
            expanded = integers_of(expand(key, f"{purpose}/{step}", (count, _WORDS)))
            sign = 1 if self._party < peer else -1
            totals = [total + sign * each for total, each in zip(totals, expanded, strict=True)]
        return [total % (1 << INTEGER_BITS) for total in totals]

    def hide(self, values: Tensor, bits: int, purpose: str, step: int, remedy: str) -> Tensor:
        """Return ``values`` in fixed point, int64, their low bits moved by ``SecretRounding``, plus this holder's mask.

        Their dtype, float32 or float64, says how many digits they have. ``purpose`` with ``step`` names the mask; never
        used twice in a session. Raises ``RangeOverflow``: they do not fit; ``remedy`` is the setting to change.
        """
        parties = len(self._keys) + 1
        encoded = encoded_for_sum(values, bits, self._party, purpose, remedy, parties, self.rounding)
        return encoded.add_(self.mask(purpose, step, tuple(values.shape)))

    def hide_message(self, link: Link, tag: Tag, values: Tensor, bits: int, purpose: str, remedy: str) -> Tensor:
        """Return ``hide`` of a message's values; a recorded link also notes what is under the mask."""
        hidden = self.hide(values, bits, purpose, tag.step, remedy)
        if isinstance(link, RecordedLink):
            link.note(tag, lambda: hidden - self.mask(purpose, tag.step, tuple(values.shape)))
        return hidden


def encoded_for_sum(
    values: Tensor, bits: int, party: PartyId, what: str, remedy: str, parties: int, rounding: SecretRounding | None
) -> Tensor:
    """Encode a party's values as int64 with ``bits`` fractional bits, with room for a sum over so many parties.

    ``rounding`` moves their low bits; without it values must be multiples of 2^-bits. Raises ``RangeOverflow``, worded
    by ``what`` and ``remedy``: they do not fit, or are not such multiples.
    """
    encoded = ring.encode(values, bits, f"{party}'s {what}", remedy, (parties - 1).bit_length())
    if rounding is not None:
        rounding.move(encoded, values, bits)
    elif not torch.equal(encoded.to(torch.float64) * 2.0**-bits, values):
        raise RangeOverflow(
            f"{party}'s {what}: {bits} fractional bits do not hold the values exactly, as their sum under masks needs; "
            f"{remedy}",
            key=what,
            value=bits,
        )
    return encoded


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
    """Return the sum of all holders' values, of their dtype, the same bits at every holder; nothing else is learned.

    Args and errors as of ``PairwiseMasks.hide``; the tag's step is that of the masks.
    """
    hidden = masks.hide_message(link, tag, values, bits, purpose, remedy)
    pieces = exchange(link, others, tag, hidden)
    return open_sum([hidden, *pieces.values()], bits, values.dtype, purpose, remedy)


def sum_integers_among(
    link: Link, others: Sequence[PartyId], masks: PairwiseMasks, values: Sequence[int], tag: Tag, *, purpose: str
) -> list[int]:
    """Return exact sums of all holders' integers, by entry; ``RangeOverflow``: no room for a sum of 640 bits."""
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
    """Return the integers in [0, 2^640) that words, Tensor[n, 10] int64, the lowest first, stand for."""
    raw, size = words.numpy().astype("<i8").tobytes(), INTEGER_BITS // 8
    return [int.from_bytes(raw[start : start + size], "little") for start in range(0, len(raw), size)]


def open_sum(pieces: Iterable[Tensor], bits: int, dtype: torch.dtype, what: str, remedy: str) -> Tensor:
    """Add one masked matrix of every holder, so that masks cancel, and decode; ``RangeOverflow`` as ``decode``."""
    return ring.decode(ring_sum(pieces), bits, dtype, what, remedy)


def ring_sum(pieces: Iterable[Tensor]) -> Tensor:
    """The sum of one or more ring tensors of one shape, mod 2^64, in new memory."""
    first, *rest = pieces
    if not rest:
        return first.clone()
    total = first + rest[0]
    for piece in rest[1:]:
        total += piece
    return total


def share_contribution(contribution: Tensor, masks: PairwiseMasks, purpose: str) -> Tensor:
    """Turn a holder's summand of a secret, int64, into its uniform share of it, without a message.

    ``purpose`` names the secret; never used twice in a session.
    """
    return contribution + masks.mask(purpose, 0, tuple(contribution.shape))


def open_shares(link: Link, others: Iterable[PartyId], tag: Tag, share: Tensor) -> Tensor:
    """Every holder sends its share to every other; all reconstruct the sum mod 2^64 (VFGNN Rec)."""
    return ring_sum([share, *exchange(link, others, tag, share).values()])


def plain_sum(pieces: Sequence[Tensor]) -> Tensor:
    """Plaintext twin of ``hide`` and ``open_sum``: the sum of the pieces, float64."""
    return ring_sum([piece.to(torch.float64) for piece in pieces])
