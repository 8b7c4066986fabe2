"""The server of an averaging job: opens sums under masks, and makes the next weights of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.types import Kind, Tag
from veilgraph.mpc import ring
from veilgraph.mpc.aggregation.summing import GONE, Group, SummingServer
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.paradigms.averaging.training import EXTRA, REMEDY, TALLY_BITS, UPDATE_BITS, averaged, said
from veilgraph.paradigms.horizontal.holder import common_classes
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.stated import agree_within

_log = logging.getLogger("veilgraph")


class AveragingServer(Role):
    """Learns sums over the holders alone, and the weights that all have.

    Args:
        session: of the server.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._job = averaging(session.settings)
        self._sums = 0

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session = self.session
        mine = Hello(
            job=session.settings.hash(), checkpoints=list(held), restarts=session.restarts, nonce=session.nonce()
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos)
        self._classes = common_classes({holder: hellos[holder] for holder in session.holders})
        features = hellos[session.holders[0]].features
        self._network = AveragedNetwork(
            self._job.model, features, self._classes, session.streams, session.dtype, session.custom
        )
        weights = self._network.vector()
        self._rule = self._job.averaging.rule.build(len(weights), self._job.train.learning_rate)
        group = Group(start.session, session.holders, self._job.threshold)
        self._summing = SummingServer(session.link, group, self._job.averaging.patience_s)
        self._tell(weights)
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None:
            self._tell(self._add(3 + 3 * self._classes**2, TALLY_BITS, "scores"))
            return
        weights = self._network.vector()
        following, loss = averaged(self._rule, weights, self._add(len(weights) + EXTRA, UPDATE_BITS, "weights"))
        self._network.take(following)
        self._tell(said(following, loss))

    def _add(self, size: int, bits: int, what: str) -> Tensor:
        self._sums += 1
        found = self._summing.add(self._sums, size)
        if absent := [holder for holder in self.session.holders if holder not in found.counted]:
            _log.warning("sum %d (%s) is without %s, which came too late", self._sums, what, ", ".join(absent))
        return ring.decode(found.total, bits, torch.float64, f"the sum of {what}", REMEDY)

    def _tell(self, tensor: Tensor) -> None:
        for holder in self.session.holders:
            with suppress(*GONE):
                self.session.link.send(holder, Tag(Kind.AVERAGED, self._sums), tensor)

    @override
    def backward(self, step: int) -> None:
        """The forward pass of a round is all of it."""

    @override
    def trained(self) -> list[nn.Parameter]:
        """None: the rule moves the weights."""
        return []

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"network": self._network}

    @override
    def state(self) -> dict[str, Tensor]:
        """With what the rule keeps from round to round."""
        return {**self.weights(), **{f"rule.{name}": tensor for name, tensor in self._rule.state().items()}}
