"""A holder of an averaging job: trains on its own graph, and adds its part to sums under masks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.aggregation.signatures import Signatures
from veilgraph.mpc.aggregation.summing import Group, SummingHolder
from veilgraph.mpc.secret_rounding import SecretRounding
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.paradigms.averaging.training import REMEDY, TALLY_BITS, UPDATE_BITS, Own, heard, summand
from veilgraph.paradigms.horizontal.holder import common_classes
from veilgraph.paradigms.horizontal.tally import Tally, tally
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Session
from veilgraph.protocol.scores import Scores
from veilgraph.protocol.stated import agree_within

_log = logging.getLogger("veilgraph")
_SIGNING = 2
"""Round of the signing keys; those of masks are new in every sum."""


class AveragingHolder(Judge):
    """Holds a graph of its own.

    Args:
        session: of this party.
        graph: its own data.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self._job = averaging(session.settings)
        self._own = Own.of(graph, session.dtype)
        self._sums = 0

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph = self.session, self.graph
        mine = Hello(
            job=session.settings.hash(),
            features=graph.num_features,
            classes=(graph.num_classes or 0) if graph.labels is not None else 0,
            checkpoints=list(held),
            restarts=session.restarts,
            nonce=session.nonce(),
            refuses=session.refuses,
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos)
        self._classes = common_classes({holder: hellos[holder] for holder in session.holders})
        self._network = AveragedNetwork(
            self._job.model, graph.num_features, self._classes, session.streams, session.dtype, session.custom
        )
        self._rule = self._job.averaging.rule.build(len(self._network.vector()), self._job.train.learning_rate)
        signatures = Signatures.agree(session.link, session.holders, session.secrets, round_=_SIGNING)
        group = Group(start.session, session.holders, self._job.threshold)
        rounding = SecretRounding(session.rounding_key)
        self._summing = SummingHolder(session.link, group, signatures, session.secrets, rounding)
        self._network.take(self._told(0, len(self._network.vector()), session.dtype))
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None:
            self._evaluate()
            return
        mine = summand(
            self._job,
            self._rule,
            self._network,
            self._own,
            lambda number: self.session.streams.generator("dropout", epoch, number),
        )
        self._add(mine, UPDATE_BITS, "weights")
        weights, self.loss = heard(self._told(self._sums, len(mine), self.session.dtype))
        self._network.take(weights)

    def _evaluate(self) -> None:
        with torch.no_grad():
            self.logits = self._network(self._own.features, self._own.adjacency, None)
        own = tally(self.graph, self.logits, self._classes).flat()
        self._add(own, TALLY_BITS, "scores")
        self._scores = Tally.of_flat(self._told(self._sums, len(own), torch.float64), self._classes).scores()

    def _add(self, values: Tensor, bits: int, what: str) -> None:
        self._sums += 1
        if not self._summing.add(self._sums, values, bits, what, REMEDY):
            _log.warning("%s was left out of sum %d (%s): it came too late", self.session.link.party, self._sums, what)

    def _told(self, number: int, size: int, dtype: torch.dtype) -> Tensor:
        return receive_as(self.session.link, SERVER, Tag(Kind.AVERAGED, number), (size,), dtype)

    @override
    def backward(self, step: int) -> None:
        """The forward pass of a round is all of it."""

    @override
    def trained(self) -> list[nn.Parameter]:
        """None: the server's rule moves the weights."""
        return []

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Over the labels of all holders that were counted; all learn the same."""
        if everything:
            return self._scores
        selects = self.session.settings.train.select_by == "f1"
        return replace(self._scores, val_f1=self._scores.val_f1 if selects else None, test_f1=None)

    @property
    @override
    def reports(self) -> bool:
        return self.session.link.party == self.session.settings.data.label_party

    @override
    def audience(self) -> list[PartyId]:
        """All holders judge alike; one tells the server."""
        return [SERVER] if self.reports else []

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"network": self._network}
