"""Products of XOR-shared bits with a dealer: 64 entries to a word, one exchange for a whole level of products.

A *plane* holds one bit of every entry: int64 [words]. Holder p's share X_p of a vector of bits is a stack of such
planes, and the secret is ⊕_p X_p. A ``Product`` z(X) is quadratic, so that it splits into what each holder has by
itself and a bilinear term of each pair:

    z(⊕_p X_p) = ⊕_p local(X_p) ⊕ ⊕_{p<q} cross(X_p, X_q)

    offline   dealer and holder p expand the masks A_p, C_p from p's seed; of the group's last holder only A_p, and the
              dealer sends it C_last = ⊕_{p<q} cross(A_p, A_q) ⊕ ⊕_{p≠last} C_p
    online    p sends E_p = X_p ⊕ A_p to the group's others                        (one plane for each operand's plane)
    result    p holds local(X_p) ⊕ cross(X_p, ⊕_{q>p} E_q) ⊕ cross(⊕_{q<p} E_q, A_p) ⊕ C_p

For X_p·X_q = X_p·E_q ⊕ E_p·A_q ⊕ A_p·A_q. This is the masked product of ``product.py`` over GF(2), for any number of
holders; with two holders and z = u·v it is Beaver's. E_p is uniform to whoever lacks p's seed, and so is the
result's share, by C_p, as long as one more holder of the group is honest. The dealer knows every A and C, so it must
not see an E: holders' messages are sealed wherever the server carries them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.randomness import expand
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.link.collectives import broadcast, gather, receive_as

WORD_BITS = 64
_BITS: Final = (1 << np.arange(8, dtype=np.uint8))[:, None]
_BLOCK: Final = 1 << 14  # entries whose bits stay in the processor's cache

Group: TypeAlias = tuple[PartyId, ...]  # holders that share a value, in the job's order


def words_for(entries: int) -> int:
    """Return the words of one plane of that many entries."""
    return -(-entries // WORD_BITS)


def to_planes(integers: Tensor) -> Tensor:
    """Integers [entries] → bit planes, int64 [32 or 64, words]: the lowest bit's first, zeros beyond the last entry."""
    width, entries, words = integers.element_size(), integers.numel(), words_for(integers.numel())
    little_endian = integers.contiguous().numpy().astype(f"<i{width}", copy=False)
    octets = np.zeros((width, 1, words * WORD_BITS), np.uint8)
    octets[:, 0, :entries] = little_endian.view(np.uint8).reshape(-1, width).T
    blocks = (octets[..., start : start + _BLOCK] & _BITS for start in range(0, max(entries, 1), _BLOCK))
    packed = np.concatenate([np.packbits(block, axis=-1, bitorder="little") for block in blocks], -1)
    return torch.from_numpy(packed.reshape(8 * width, words, 8).view("<i8")[..., 0].astype(np.int64, copy=False))


def to_plane(bits: Tensor) -> Tensor:
    """One bit of every entry, bool → one plane, int64 [words]; zeros beyond the last entry."""
    padded = np.zeros(words_for(bits.numel()) * WORD_BITS, np.bool_)
    padded[: bits.numel()] = bits.reshape(-1).numpy()
    return torch.from_numpy(np.packbits(padded, bitorder="little").view("<i8").astype(np.int64, copy=False))


def from_plane(plane: Tensor, entries: int) -> Tensor:
    """One plane, int64 [words] → bool [entries]."""
    octets = plane.numpy().astype("<i8", copy=False).view(np.uint8)
    return torch.from_numpy(np.unpackbits(octets, count=entries, bitorder="little").astype(np.bool_))


def xor(pieces: Iterable[Tensor]) -> Tensor:
    """⊕ of one or more tensors of one shape."""
    return reduce(torch.bitwise_xor, pieces)


@dataclass(frozen=True)
class Product:
    """A quadratic function of shared bits, computed for ``count`` of them at once in every entry.

    Its planes: X is [operands, count, words], z [results, count, words]. ``local``: z's part of one share, X_p → z;
    ``cross``: its bilinear part of two, (X_p, X_q) → z.
    """

    operands: int
    results: int
    local: Callable[[Tensor], Tensor]
    cross: Callable[[Tensor, Tensor], Tensor]


# u, v → u·v
AND = Product(2, 1, local=lambda x: x[:1] & x[1:], cross=lambda x, y: (x[:1] & y[1:]) ^ (x[1:] & y[:1]))
AND_EACH = replace(AND, operands=3, results=2)  # u, v, w → u·v, u·w: the mask of u serves both


@dataclass(frozen=True)
class Level:
    """``count`` products in each entry and group, made in one exchange.

    Groups have two or more holders; two holders are together in one at most, as a tag serves them once.
    """

    product: Product
    count: int
    groups: tuple[Group, ...]


def deal(link: Link, seeds: Mapping[PartyId, bytes], level: Level, words: int, step: int, round_: int) -> None:
    """Send each group's last holder its C_last of a level, for planes of so many words, in one message to each holder.

    ``seeds`` are those that the holders have too; ``step`` and ``round_``, of the tag, are never used twice in a
    session.
    """
    corrections: dict[PartyId, list[Tensor]] = {}
    for group in level.groups:
        last = group[-1]
        before_masks, total = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
        for position, holder in enumerate(group):
            mask, share = masks_of_level(seeds[holder], level, group, words, step, round_, with_share=holder != last)
            if position:
                total = total ^ level.product.cross(before_masks, mask)
            before_masks = before_masks ^ mask
            if share is not None:
                total = total ^ share
        corrections.setdefault(last, []).append(total)
    for holder, own in corrections.items():
        link.send(holder, Tag(Kind.BIT_CORRELATION, step, round_), torch.stack(own))


def multiply(
    link: Link, seed: bytes, level: Level, operands: Mapping[Group, Tensor], step: int, round_: int
) -> dict[Group, Tensor]:
    """Multiply as one holder, in one exchange: group → its share of a level's z, int64 [results, count, words].

    ``seed`` is the dealer's; ``operands`` are group → its share X, int64 [operands, count, words]; the rest as
    ``deal``.
    """
    party, product = link.party, level.product
    tag = Tag(Kind.MASKED_BITS, step, round_)
    words = next(iter(operands.values())).shape[-1]
    masks = {}
    for group, operand in operands.items():
        masks[group] = masks_of_level(seed, level, group, words, step, round_, with_share=party != group[-1])
        broadcast(link, _other_members(group, party), tag, operand ^ masks[group][0])
    completes = sum(group[-1] == party for group in operands)
    if completes:
        shape = (completes, product.results, level.count, words)
        dealt = iter(receive_as(link, SERVER, Tag(Kind.BIT_CORRELATION, step, round_), shape, torch.int64))
    results = {}
    for group, operand in operands.items():
        received = gather(link, _other_members(group, party), tag, operand.shape, torch.int64)
        at = group.index(party)
        mask, share = masks[group]
        parts = [product.local(operand), next(dealt) if share is None else share]
        if group[at + 1 :]:
            parts.append(product.cross(operand, xor(received[holder] for holder in group[at + 1 :])))
        if group[:at]:
            parts.append(product.cross(xor(received[holder] for holder in group[:at]), mask))
        results[group] = xor(parts)
    return results


def _other_members(group: Sequence[PartyId], party: PartyId) -> list[PartyId]:
    return [holder for holder in group if holder != party]


def masks_of_level(
    seed: bytes, level: Level, group: Group, words: int, step: int, round_: int, *, with_share: bool
) -> tuple[Tensor, Tensor | None]:
    """Expand A_p [operands, count, words] and, ``with_share``, C_p [results, count, words] of a holder in a group."""
    product = level.product
    planes = product.operands + product.results * with_share
    stream = expand(seed, f"bits/{step}/{round_}/{group!r}", (planes, level.count, words))
    return stream[: product.operands], stream[product.operands :] if with_share else None
