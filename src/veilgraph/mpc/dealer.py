"""The dealer at the server: correlated randomness for the secure product (docs/protocol.md).

The dealer knows masks only. From 32-byte seeds, given once to each holder, both sides expand the static mask U_i
of holder i's features and, for every step, the one-time masks V and Z. The dealer sends each holder one matrix per
product: the dealer's half of the product of masks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

import torch
from torch import Tensor

from veilgraph.core.randomness import SEED_BYTES, SecretSource, expand
from veilgraph.core.types import Kind, Link, PartyId, Tag
from veilgraph.mpc import ring


class Direction(IntEnum):
    """Which product of a step: its number is the round of the messages' tags."""

    FORWARD = 0
    """x·W."""
    BACKWARD = 1
    """xᵀ·g."""


def static_mask_name() -> str:
    """Purpose under which U_i is expanded from holder i's seed."""
    return "U"


def operand_mask_name(owner: PartyId, direction: Direction, step: int) -> str:
    """Purpose of V: forward it hides a share of the owner's weight block; backward one V hides g for all owners."""
    return f"V/{owner if direction is Direction.FORWARD else '*'}/{direction.name}/{step}"


def result_mask_name(owner: PartyId, direction: Direction, step: int) -> str:
    """Purpose of Z, the random share of a product with ``owner``'s features."""
    return f"Z/{owner}/{direction.name}/{step}"


class SeededOperand:
    """A uniform matrix known by its seed: kept when small, expanded block by block in every product when large."""

    def __init__(self, seed: bytes, purpose: str, shape: tuple[int, int], keep_bytes: int, block_bytes: int) -> None:
        self._seed, self._purpose, self._shape = seed, purpose, shape
        rows, columns = shape
        self._block_rows = max(2, block_bytes // (8 * max(columns, 1)) // 2 * 2)
        kept = 16 * rows * columns <= keep_bytes
        self._kept = ring.DenseOperand(expand(seed, purpose, shape)) if kept else None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, F)."""
        return self._shape

    def times(self, right: Tensor) -> Tensor:
        """U·right: [F, d] → [N, d]."""
        if self._kept is not None:
            return self._kept.times(right)
        return torch.cat([ring.matmul(block, right) for _, block in self._blocks()])

    def transposed_times(self, right: Tensor) -> Tensor:
        """Uᵀ·right: [N, d] → [F, d]."""
        if self._kept is not None:
            return self._kept.transposed_times(right)
        total = torch.zeros(self._shape[1], right.shape[1], dtype=torch.int64)
        for start, block in self._blocks():
            total += ring.matmul(block.t().contiguous(), right[start : start + block.shape[0]])
        return total

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        rows, columns = self._shape
        for start in range(0, rows, self._block_rows):
            size = min(self._block_rows, rows - start)
            yield start, expand(self._seed, self._purpose, (size, columns), start * columns)


class Dealer:
    """Deals the correlated randomness of one session.

    Args:
        link: the server's.
        features: holder → number of feature columns, in the job's order of holders.
        num_nodes: N.
        dim: d.
        secrets: source of the seeds.
        keep_bytes: the static masks may take this much memory; larger ones are expanded again in every product.
        block_bytes: memory of one block of such a mask.
    """

    def __init__(
        self,
        link: Link,
        features: Mapping[PartyId, int],
        num_nodes: int,
        dim: int,
        secrets: SecretSource,
        keep_bytes: int = 1 << 30,
        block_bytes: int = 1 << 25,
    ) -> None:
        self._link, self._features, self._nodes, self._dim = link, dict(features), num_nodes, dim
        self._seeds = {holder: secrets(SEED_BYTES) for holder in features}
        budget = keep_bytes // len(features)
        self._static = {
            holder: SeededOperand(self._seeds[holder], static_mask_name(), (num_nodes, columns), budget, block_bytes)
            for holder, columns in features.items()
        }

    def send_seeds(self) -> None:
        """Gives every holder its seed, once."""
        for holder, seed in self._seeds.items():
            self._link.send(holder, Tag(Kind.SEED), torch.frombuffer(bytearray(seed), dtype=torch.uint8))

    def deal(self, direction: Direction, step: int) -> None:
        """Sends every holder i the matrix U_i·ΣV − ΣZ of this product, the sums over the other holders."""
        for owner, static in self._static.items():
            columns = self._features[owner]
            inner, outer = (columns, self._nodes) if direction is Direction.FORWARD else (self._nodes, columns)
            operand_masks = torch.zeros(inner, self._dim, dtype=torch.int64)
            result_masks = torch.zeros(outer, self._dim, dtype=torch.int64)
            for holder, seed in self._seeds.items():
                if holder != owner:
                    name = operand_mask_name(owner, direction, step)
                    operand_masks += expand(seed, name, (inner, self._dim))
                    result_masks += expand(seed, result_mask_name(owner, direction, step), (outer, self._dim))
            multiply = static.times if direction is Direction.FORWARD else static.transposed_times
            correlation = multiply(operand_masks).sub_(result_masks)
            self._link.send(owner, Tag(Kind.CORRELATION, step, int(direction)), correlation)
