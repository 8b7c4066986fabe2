"""Canaries: rows that a holder publishes in place of its own, so that an audit can hold a run against its ledger.

A secret fair coin says of each whether it is *in* or *out*. The two are neighbours under the job's relation, as far
apart as it allows: with zero-out +C·u and the zero row, with replacement +C·u and -C·u, u a direction of the row's own.
So whoever sees the releases may tell the coins only as well as the ledger's total ε allows (``audit.one_run``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy import noise
from veilgraph.privacy.event import Neighbours

_LENGTH = 10.0  # of a canary over the clip, so that clipping too has to do its part


@dataclass(frozen=True)
class Canaries:
    """One holder's, for all releases of N ``nodes`` in a run; places, coins and directions come of 32 secret bytes."""

    count: int
    nodes: int
    key: bytes = field(repr=False)

    @classmethod
    def draw(cls, count: int, nodes: int, source: SecretSource) -> Self:
        """Fresh ones; raises ``ConfigError`` where there are fewer rows than canaries."""
        if count > nodes:
            raise ConfigError(
                f"privacy.canaries={count} must be at most the number of common nodes, {nodes}: each takes the place "
                "of a row; choose fewer"
            )
        return cls(count, nodes, source(SEED_BYTES))

    @cached_property
    def rows(self) -> Tensor:
        """Their places, different ones: Tensor[m] int64."""
        return expand(self.key, "canaries/rows", (self.nodes,)).argsort()[: self.count]

    @cached_property
    def coins(self) -> Tensor:
        """What the audit guesses, True for in: Tensor[m] bool."""
        return expand(self.key, "canaries/coins", (self.count,)) < 0

    def directions(self, width: int, step: int, order: int = 2) -> Tensor:
        """The directions u of one release of d columns (``width``): Tensor[m, d] float64.

        They turn round from step to step, so that noise that comes twice, or what is added to all releases alike,
        cancels in a sum along them. Where ``order`` is 1, one is that of one column, where ℓ1 noise hides least.
        """
        drawn = noise.gaussian((self.count, width), 1.0, lambda _: self.key)
        if order == 1:
            drawn *= drawn.abs() == drawn.abs().amax(dim=1, keepdim=True)
        lengths: Tensor = torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        return drawn / (lengths if step % 2 == 0 else -lengths)

    def plant(self, rows: Tensor, clip: float, step: int, order: int, relation: Neighbours) -> Tensor:
        """Put them in place of rows to be released, Tensor[N, d], which are not changed; no gradient flows there.

        A canary that is not zero is ten times as long as C (``clip``), that the rows will be clipped to. Raises
        ``RunError`` where they were drawn for another number of rows.
        """
        check_nodes(self.nodes, len(rows))
        signs = torch.where(self.coins, 1.0, 0.0 if relation == "zero-out" else -1.0)
        values = _LENGTH * clip * signs.unsqueeze(1) * self.directions(rows.shape[1], step, order)
        return rows.index_copy(0, self.rows, values.to(rows.dtype))


def check_nodes(drawn: int, now: int) -> None:
    """Raises ``RunError`` for canaries that were drawn for another number of common nodes."""
    if drawn != now:
        raise RunError(
            f"canaries: drawn for {drawn} common nodes, and now there are {now}; an audited run goes on with its own "
            "nodes only, so begin a new one"
        )
