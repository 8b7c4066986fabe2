"""A holder of an averaging job: trains on its own graph, and adds its part to sums under masks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.tensor_file import Record
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import receive_as
from veilgraph.link.recorded import RecordedLink
from veilgraph.mpc.aggregation.signatures import Signatures
from veilgraph.mpc.aggregation.summing import Group, SummingHolder
from veilgraph.mpc.aggregation.survivors import RecordedSum, SumId, SurvivorRecord
from veilgraph.mpc.secret_rounding import SecretRounding
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.facts import FACT_BITS
from veilgraph.paradigms.averaging import baselines
from veilgraph.paradigms.averaging.at_home import AtHome
from veilgraph.paradigms.averaging.private import PrivateTraining
from veilgraph.paradigms.averaging.settings import averaging
from veilgraph.paradigms.averaging.tasks.task import Task
from veilgraph.paradigms.averaging.training import (
    RECORDS,
    REMEDY,
    heard,
    public,
    summand,
    update_bits,
)
from veilgraph.privacy.publish_sampled import SampledPublisher
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.figures import Judged
from veilgraph.protocol.judge import Predicted, SharedJudge
from veilgraph.protocol.label_release import learned_graph
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Session
from veilgraph.protocol.stated import agree_within

_log = logging.getLogger("veilgraph")
_DRAWN = 1
"""Round of the note of who is in a sum."""
_SIGNING = 2
"""Round of the signing keys; those of masks are new in every sum."""


class AveragingHolder(SharedJudge):
    """Holds a graph of its own.

    With ``label_privacy`` all that it computes of labels is of perturbed ones.

    Args:
        session: of this party.
        graph: its own data.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self._job = averaging(session.settings)
        task = self._job.averaging.task
        task.kind.check_graph(task, graph)
        self._private = None if self._job.averaging.privacy is None else PrivateTraining(self._job, graph)
        self._home: AtHome | None = None
        self._sums, self._epoch = 0, 0

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph, self._predicts = self.session, self.graph, not self._learns
        mine = Hello(
            job=session.settings.hash(),
            features=graph.num_features,
            classes=self._job.averaging.task.kind.stated(graph),
            checkpoints=list(held),
            restarts=session.restarts,
            nonce=session.nonce(),
            refuses=session.refuses
            or ("" if self._private is None else self._private.refuses)
            or session.publisher.refusal(),  # before anybody pays for its rounds
            steps=session.publisher.affordable_steps(),
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos, self._job.gives_checkpoints)
        self.allow_steps(hellos)
        if session.settings.label_privacy is not None and graph.labels is not None:
            graph, _ = learned_graph(session, graph)
        told = {holder: hellos[holder] for holder in session.holders}
        known = public(
            self._job,
            {holder: hello.features for holder, hello in told.items()},
            {holder: hello.classes for holder, hello in told.items()},
            session.custom,
        )
        self._task: Task[Any, Any] = known.task.kind(known)
        self._own = self._task.own(graph, session.streams)
        self._network = self._task.network(session.streams)
        self._network.keep_home(self._job.averaging.personal)
        self._network.keep_facts(sum(self._task.gathers))
        at_home = self._job.averaging.at_home
        if at_home is not None and graph.labels is not None:
            self._home = AtHome(at_home, self._own, known.stated, session.streams, session.dtype)
        self._rule = self._job.averaging.rule.build(len(self._network.vector()), self._job.train.learning_rate)
        signatures = Signatures.agree(session.link, session.holders, session.secrets, round_=_SIGNING)
        group = Group(start.session, session.holders, self._job.threshold)
        rounding = SecretRounding(session.rounding_key)
        self._record = None
        if self._job.records_survivors:
            self._record = SurvivorRecord(session.link.party, session.holders, session.keeper)
            if start.number > 1:
                session.link.send(SERVER, RECORDS, self._record.rows())
        self._summing = SummingHolder(session.link, group, signatures, session.secrets, rounding)
        self._network.take(self._told(0, len(self._network.vector()), session.dtype))
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None:
            self._evaluate()
            return
        if not self._network.has_facts:
            self._gather()
        self._epoch, sum_id = epoch, SumId.of("weights", epoch, self._network.vector())
        if not self.session.restarts:
            RecordedSum(self._record, sum_id).check_weights()
        mine = self._summand(step, epoch)
        self._note()
        self._add(mine, update_bits(self._job), sum_id)
        weights, self.loss = heard(self._told(self._sums, len(mine), self.session.dtype))
        self._network.take(weights)
        if self.loss is None and not self._task.examples(self._own):
            RecordedSum(self._record, sum_id).forget()

    def _summand(self, step: int, epoch: int) -> Tensor:
        if self._private is not None:
            return self._private.summand(self._network, self.session.publisher, step)
        streams = self.session.streams
        return summand(
            self._job,
            self._rule,
            self._task,
            self._network,
            self._own,
            lambda number: streams.generator("dropout", epoch, number),
        )

    def _note(self) -> None:
        """In a recorded view of a private training: who is in this holder's sum.

        With canaries also the sum before the noise, without them and with.
        """
        link, publisher = self.session.link, self.session.publisher
        if not isinstance(publisher, SampledPublisher) or not isinstance(link, RecordedLink):
            return
        link.note(Tag(Kind.GRADIENT, self._sums + 1, _DRAWN), lambda: publisher.drawn)
        if publisher.watched is not None:
            link.note(Tag(Kind.GRADIENT, self._sums + 1), lambda: publisher.clean)

    def _gather(self) -> None:
        def summed(size: int, known: Tensor) -> Tensor:
            self._add(self._task.gathered(self._own, known), FACT_BITS, SumId.of("facts", None, known))
            return self._told(self._sums, size, torch.float64)

        self._network.gather(self._task.gathers, summed)

    def _evaluate(self) -> None:
        task = self._task
        with torch.no_grad():
            self.logits = task.output(self._network, self._own)
            if self._home is not None:  # after the last round: nobody hears of it
                self._home.learn(self.logits)
                self.logits = self._home(self.logits)
            if self._predicts:  # of other tables than were trained on, scores would show a single holder's change
                return
            own = task.tally(self._network, self._own, self.logits)
        if self._private is not None:  # of its own nodes, and nobody else hears of it
            self._scores = task.scores(self._network, own)
            return
        epoch = self._epoch if self._learns else None  # at the end they are of the best round's weights
        self._add(own, task.tally_bits, SumId.of("scores", epoch, self._network.vector()))
        self._scores = task.scores(self._network, self._told(self._sums, task.tally_size, torch.float64))

    def _add(self, values: Tensor, bits: int, sum_id: SumId) -> None:
        self._sums, what = self._sums + 1, sum_id.what
        if not bits:
            is_in = self._summing.add_whole(self._sums, values, what, REMEDY)
        else:
            is_in = self._summing.add(self._sums, values, bits, what, REMEDY, RecordedSum(self._record, sum_id))
        self.in_lockstep = self._summing.had_all
        if not is_in:
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
    def scores(self, *, everything: bool = False) -> Judged:
        """Over all holders that were counted; all learn the same."""
        return self._scores if everything else self._task.each_epoch(self._scores)

    @override
    def predictions(self) -> Predicted:
        with torch.no_grad():
            found: Predicted = self._task.predictions(self._network, self._own, self.logits)
        return found

    @override
    def alone(self) -> Record | None:
        job, task = self._job, self._task
        if self._private is not None or job.label_privacy is not None or job.is_custom:
            return None
        found = baselines.alone(job, self.graph, lambda _: None, self.session.streams)
        if found is None:
            return None
        with torch.no_grad():
            mine = task.scores(self._network, task.tally(self._network, self._own, self.logits))
        return {"together": mine.summary(), "alone": {name: found.summary[name] for name in mine.summary()}}

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """At home: by its own validation nodes, for its own nodes."""
        found: Calibration | None = self._task.calibration(self._network, self._own, probabilities)
        return found

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"network": self._network} | ({} if self._home is None else {"at_home": self._home})
