"""The server of an averaging job: opens sums under masks, and makes the next weights of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.keeper import MemoryKeeper
from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import gather
from veilgraph.mpc import ring
from veilgraph.mpc.aggregation.summing import GONE, Group, SummingServer
from veilgraph.mpc.aggregation.survivors import RecordedSum, SumId, SurvivorRecord
from veilgraph.nn.facts import FACT_BITS
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.paradigms.averaging.tasks.task import Task
from veilgraph.paradigms.averaging.training import (
    EXTRA,
    RECORDS,
    REMEDY,
    averaged,
    opened,
    public,
    said,
    update_bits,
)
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import BEGINNING, Role, Session
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
        self._sums, self._epoch = 0, 0

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, self._predicts = self.session, not self._learns
        mine = Hello(
            job=session.settings.hash(), checkpoints=list(held), restarts=session.restarts, nonce=session.nonce()
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos, self._job.gives_checkpoints)
        self.allow_steps(hellos)
        told = {holder: hellos[holder] for holder in session.holders}
        known = public(
            self._job,
            {holder: hello.features for holder, hello in told.items()},
            {holder: hello.classes for holder, hello in told.items()},
            session.custom,
        )
        self._task: Task[Any, Any] = known.task.kind(known)
        self._network = self._task.network(session.streams)
        self._network.keep_home(self._job.averaging.personal)
        self._network.keep_facts(sum(self._task.gathers))
        if (earlier := session.keeper.get(BEGINNING)) is not None:
            self._begin(earlier.tensors)
        weights = self._network.vector()
        self._rule = self._job.averaging.rule.build(len(weights), self._job.train.learning_rate)
        group = Group(start.session, session.holders, self._job.threshold)
        self._record = self._records(start.number) if self._job.records_survivors else None
        self._summing = SummingServer(session.link, group, self._job.averaging.patience_s)
        self._tell(weights)
        return start

    def _records(self, session: int) -> SurvivorRecord:
        """The record of all holders' records, where a session goes on from another."""
        link, holders = self.session.link, self.session.holders
        found = SurvivorRecord(link.party, holders, MemoryKeeper())
        if session > 1:
            for holder, rows in gather(link, holders, RECORDS, (None, found.width), torch.uint8).items():
                found.merge(rows, holder)
        return found

    def _begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes the averaged weights of an earlier run; what its holders added up before its first round is anew."""
        mine = {f"network.{name}": weight for name, weight in self._network.named_parameters()}
        if {name: weight.shape for name, weight in mine.items()} != {
            name: tensor.shape for name, tensor in tensors.items() if name in mine
        }:
            raise RunError(
                "begin_with: the earlier run's network is another one, or its columns or classes are; make model, "
                "columns and classes the same, or begin without it",
                key="begin_with",
            )
        with torch.no_grad():
            for name, weight in mine.items():
                weight.copy_(tensors[name])

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None:
            if self._predicts or self._job.averaging.privacy is not None:  # holders judge for themselves
                return
            sum_id = SumId.of("scores", self._epoch if self._learns else None, self._network.vector())
            self._tell(self._add(self._task.tally_size, self._task.tally_bits, sum_id))
            return
        if not self._network.has_facts:
            self._gather()
        self._epoch, weights = epoch, self._network.vector()
        sum_id = SumId.of("weights", epoch, weights)
        total = opened(self._job, self._add(len(weights) + EXTRA, update_bits(self._job), sum_id), weights)
        following, loss = averaged(self._rule, weights, total, tells_loss=self._job.averaging.privacy is None)
        self._network.take(following)
        if loss is None:
            RecordedSum(self._record, sum_id).forget()
        self._tell(said(following, loss))

    def _gather(self) -> None:
        def summed(size: int, known: Tensor) -> Tensor:
            total = self._add(size, FACT_BITS, SumId.of("facts", None, known))
            self._tell(total)
            return total

        self._network.gather(self._task.gathers, summed)

    def _add(self, size: int, bits: int, sum_id: SumId) -> Tensor:
        self._sums, what = self._sums + 1, sum_id.what
        found = self._summing.add(self._sums, size, RecordedSum(self._record, sum_id))
        if absent := [holder for holder in self.session.holders if holder not in found.counted]:
            _log.warning("sum %d (%s) is without %s, which came too late", self._sums, what, ", ".join(absent))
        self.in_lockstep = not absent
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
