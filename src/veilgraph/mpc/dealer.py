"""The dealer at the server: correlated randomness for the secure product (docs/protocol.md).

The dealer knows masks only. From 32-byte seeds, given once to each holder, both sides expand the static mask U_i
of holder i's features and, for every step, the one-time masks V and Z. The dealer sends each holder one matrix per
product and block of rows: the dealer's half of the product of masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import reduce
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.link.collectives import gather
from veilgraph.mpc import ring

BLOCK_BYTES: Final = 1 << 26
"""Of the widest matrix in a block of rows."""

AHEAD: Final = 2
"""Blocks that are prepared, and dealt, before they are needed."""


class Direction(IntEnum):
    """Which product of a step."""

    FORWARD = 0
    """x·W."""
    BACKWARD = 1
    """xᵀ·g."""


def row_blocks(nodes: int, features: Mapping[PartyId, int], dim: int, block_bytes: int = BLOCK_BYTES) -> list[slice]:
    """The blocks of rows in which all parties multiply, the same at each of them: one, unless the graph is large.

    Args:
        nodes: N.
        features: holder → number of feature columns.
        dim: d.
        block_bytes: of the widest matrix in a block.
    """
    rows = max(1, block_bytes // (8 * max(dim, *features.values())))
    return [slice(start, min(start + rows, nodes)) for start in range(0, nodes, rows)]


def round_of(direction: Direction, block: int) -> int:
    """The round of the messages of one block of a product."""
    return 2 * block + direction


def static_mask_name(block: int = 0) -> str:
    """Purpose under which the rows of a block of U_i are expanded from holder i's seed."""
    return f"U/{block}"


def operand_mask_name(owner: PartyId, direction: Direction, step: int, block: int = 0) -> str:
    """Purpose of V: forward it hides a share of the owner's weight block; backward one V hides g for all owners."""
    return f"V/{owner if direction is Direction.FORWARD else '*'}/{direction.name}/{step}/{block}"


def result_mask_name(owner: PartyId, direction: Direction, step: int, block: int = 0) -> str:
    """Purpose of Z, the random share of a product with ``owner``'s features."""
    return f"Z/{owner}/{direction.name}/{step}/{block}"


class SeededOperand:
    """A uniform matrix known by its seed: kept, or expanded again in every product."""

    def __init__(
        self, seed: bytes, purpose: str, shape: tuple[int, int], *, keep: bool, device: torch.device = ring.CPU
    ) -> None:
        self._seed, self._purpose, self._shape, self._device = seed, purpose, shape, device
        self._kept = self._expanded() if keep else None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return self._shape

    def times(self, right: Tensor) -> Tensor:
        """U·right: [F, d] → [N, d]."""
        return (self._kept or self._expanded()).times(right)

    def transposed_times(self, right: Tensor) -> Tensor:
        """Uᵀ·right: [N, d] → [F, d]."""
        return (self._kept or self._expanded()).transposed_times(right)

    def _expanded(self) -> ring.StaticOperand:
        return ring.dense_operand(expand(self._seed, self._purpose, self._shape), self._device)


class Dealer:
    """Deals the correlated randomness of one session.

    Where a product has many blocks, the large matrices of the forward one are dealt as the holders use them, so that
    no more than ``AHEAD`` of them wait anywhere.

    Args:
        link: the server's.
        features: holder → number of feature columns, in the job's order of holders.
        num_nodes: N.
        dim: d.
        secrets: source of the seeds.
        keep_bytes: the static masks may take this much memory; larger ones are expanded again in every product.
        block_bytes: as for ``row_blocks``, the same at all parties.
        device: where products are computed.
    """

    def __init__(
        self,
        link: Link,
        features: Mapping[PartyId, int],
        num_nodes: int,
        dim: int,
        secrets: SecretSource,
        keep_bytes: int = 1 << 30,
        block_bytes: int = BLOCK_BYTES,
        device: torch.device = ring.CPU,
    ) -> None:
        self._link, self._features, self._dim = link, dict(features), dim
        self._seeds = {holder: secrets(SEED_BYTES) for holder in features}
        self._blocks = row_blocks(num_nodes, features, dim, block_bytes)
        keep = 8 * num_nodes * sum(features.values()) <= keep_bytes
        self._static: dict[PartyId, Sequence[SeededOperand]] = {
            holder: [
                SeededOperand(
                    self._seeds[holder],
                    static_mask_name(number),
                    (rows.stop - rows.start, columns),
                    keep=keep,
                    device=device,
                )
                for number, rows in enumerate(self._blocks)
            ]
            for holder, columns in features.items()
        }

    def send_seeds(self) -> None:
        """Gives every holder its seed, once."""
        for holder, seed in self._seeds.items():
            self._link.send(holder, Tag(Kind.SEED), torch.frombuffer(bytearray(seed), dtype=torch.uint8))

    def deal(self, direction: Direction, step: int) -> None:
        """Sends every holder i the matrices U_i·ΣV − ΣZ of this product, the sums over the other holders."""
        for block in range(len(self._blocks)):
            if direction is Direction.FORWARD and block >= AHEAD:
                gather(self._link, self._seeds, Tag(Kind.READY, step, block - AHEAD), (1,), torch.uint8)
            self._deal_block(direction, step, block)

    def _deal_block(self, direction: Direction, step: int, block: int) -> None:
        rows = self._blocks[block].stop - self._blocks[block].start
        for owner, columns in self._features.items():
            inner, outer = (columns, rows) if direction is Direction.FORWARD else (rows, columns)
            others = [seed for holder, seed in self._seeds.items() if holder != owner]
            name = operand_mask_name(owner, direction, step, block)
            operand_masks = _sum(expand(seed, name, (inner, self._dim)) for seed in others)
            name = result_mask_name(owner, direction, step, block)
            result_masks = _sum(expand(seed, name, (outer, self._dim)) for seed in others)
            static = self._static[owner][block]
            multiply = static.times if direction is Direction.FORWARD else static.transposed_times
            correlation = multiply(operand_masks).sub_(result_masks)
            self._link.send(owner, Tag(Kind.CORRELATION, step, round_of(direction, block)), correlation)


def _sum(masks: Iterable[Tensor]) -> Tensor:
    """One by one, into the first."""
    return reduce(Tensor.add_, masks)
