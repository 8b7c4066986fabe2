"""The roles of an averaging job: holders train on their graphs, the server makes the next weights of masked sums."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import MemoryKeeper, Record
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import gather, receive_as
from veilgraph.link.view import RecordedLink
from veilgraph.mpc import ring
from veilgraph.mpc.mask import SecretRounding
from veilgraph.nn.calibration import Calibration
from veilgraph.nn.layers import FACT_BITS
from veilgraph.paradigms.horizontal.roles import REMEDY, joint_and_alone_scores
from veilgraph.protocol.agreement import Hello, Point, Start
from veilgraph.protocol.bounds import agree_on_start
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.judge import Predicted, SharedJudge
from veilgraph.protocol.releases import learned_graph
from veilgraph.protocol.role import BEGINNING, PartyModel, Role, RoleContext
from veilgraph_averaging import training
from veilgraph_averaging import twin as baselines
from veilgraph_averaging.aggregation.keys import PairSecrets, Signatures
from veilgraph_averaging.aggregation.summing import GONE, Group, SummingHolder, SummingServer
from veilgraph_averaging.aggregation.survivors import RecordedSum, SumId, SurvivorRecord
from veilgraph_averaging.at_home import AtHome, at_home
from veilgraph_averaging.private.sampled import SampledPublisher
from veilgraph_averaging.settings import averaging
from veilgraph_averaging.tasks import Public, Task

_log = logging.getLogger("veilgraph")

RECORDS: Final = Tag(Kind.CONTROL, 0, 4)
"""Of a holder's record of survivors, before the sums of a session that goes on from another."""
_DRAWN = 1  # round of the note of who is in a sum
_SIGNING, _PAIRS = 2, 3  # rounds of signing keys and of pairs' secrets; keys of masks are new in every sum


class _AveragingRole(Role):
    """Common part of holder and server: the task, the network, and the numbering of sums."""

    _task: Task[Any, Any]

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self._job = averaging(session.settings)
        self._sums, self._epoch = 0, 0
        self._record: SurvivorRecord | None = None

    def _agree_on_public(self, hellos: Mapping[PartyId, Hello]) -> Public:
        """Combine holders' hellos into what all know before round 1, and set the task from it."""
        session = self.session
        features = {holder: hellos[holder].features for holder in session.holders}
        stated = {holder: hellos[holder].classes for holder in session.holders}
        known = training.public(self._job, features, stated, session.custom)
        self._task = known.task.kind(known)
        return known

    def _make_network(self) -> None:
        self._network = self._task.network(self.session.streams)
        self._network.keep_home(self._job.averaging.personal)
        self._network.keep_facts(sum(self._task.sums_before.sizes))

    def _id_of_scores(self) -> SumId:
        """Return the id of an evaluation's sum: of this epoch in training; of the weights alone after it."""
        return SumId.of("scores", self._epoch if self._learns else None, self._network.vector())

    @override
    def backward(self, step: int) -> None:
        """Do nothing: ``forward`` runs the whole round."""


class AveragingHolder(_AveragingRole, SharedJudge):
    """A holder: trains on its own graph, and adds its part to masked sums; ``label_privacy``: on perturbed labels."""

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        task = self._job.averaging.task
        task.check_graph(graph)
        self._private = None if self._job.averaging.privacy is None else training.PrivateTraining(self._job, graph)
        self._home: AtHome | None = None

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, graph, self._predicts = self.session, self.graph, not self._learns
        refuses = "" if self._private is None else self._private.refuses
        hellos, start = agree_on_start(
            session,
            held,
            self._job.gives_checkpoints,
            features=graph.num_features,
            classes=self._job.averaging.task.kind.subject.stated(graph),
            refuses=session.refuses or refuses or session.publisher.refusal(),  # before anybody pays for its rounds
            steps=session.publisher.affordable_steps(),
        )
        self.allow_steps(hellos)
        if session.settings.label_privacy is not None and graph.labels is not None:
            graph, _ = learned_graph(session, graph)
        known = self._agree_on_public(hellos)
        self._own = self._task.own(graph, session.streams)
        self._make_network()
        given = self._job.averaging.at_home
        if given is not None:
            self._home = at_home(given, self._own, known.stated, session.streams, session.dtype, self._network)
        networks: dict[str, nn.Module] = {"network": self._network}
        if self._home is not None:
            networks["at_home"] = self._home
        self.model = PartyModel(session, networks, trained=())  # the server's rule moves the weights
        signatures = Signatures.agree(session.link, session.holders, session.secrets, round_=_SIGNING)
        pairs = PairSecrets.agree(session.link, session.holders, session.secrets, round_=_PAIRS)
        group = Group(start.session, session.holders, self._job.threshold)
        if self._job.records_survivors:
            self._record = SurvivorRecord(session.link.party, session.holders, session.keeper, session.alignment)
            if start.number > 1:
                session.link.send(SERVER, RECORDS, self._record.rows())
        rounding = SecretRounding(session.rounding_key)
        self._summing = SummingHolder(session.link, group, signatures, pairs, session.secrets, rounding)
        self._network.take(self._receive_result(len(self._network.vector()), session.dtype))
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None:
            self._run_evaluation()
            return
        if not self._network.has_facts:
            self._compute_facts()
        self._epoch, sum_id = epoch, SumId.of("weights", epoch, self._network.vector())
        if not self.session.restarts:
            RecordedSum(self._record, sum_id).check_weights()
        mine = self._make_summand(step, epoch)
        self._note_private_sum()
        self._sum(mine, training.update_bits(self._job), sum_id)
        weights, self.loss = training.unpack_result(self._receive_result(len(mine), self.session.dtype))
        self._network.take(weights)
        if self.loss is None and not self._task.examples(self._own):
            RecordedSum(self._record, sum_id).forget()

    def _make_summand(self, step: int, epoch: int) -> Tensor:
        if self._private is not None:
            return self._private.summand(self._network, self.session.publisher, step)
        streams = self.session.streams
        return training.summand(
            self._job, self._task, self._network, self._own, lambda number: streams.generator("dropout", epoch, number)
        )

    def _note_private_sum(self) -> None:
        """Note in a recorded view which terms are in a private training's sum and, with canaries, the noiseless sum."""
        link, publisher = self.session.link, self.session.publisher
        if not isinstance(publisher, SampledPublisher) or not isinstance(link, RecordedLink):
            return
        link.note(Tag(Kind.GRADIENT, self._sums + 1, _DRAWN), lambda: publisher.drawn)
        if publisher.watched is not None:
            link.note(Tag(Kind.GRADIENT, self._sums + 1), lambda: publisher.clean)

    def _compute_facts(self) -> None:
        """Run the task's sums before the first round, and keep their results in the network."""

        def summed(size: int, known: Tensor) -> Tensor:
            self._sum(self._task.sums_before.part(self._own, known), FACT_BITS, SumId.of("facts", None, known))
            return self._receive_result(size, torch.float64)

        self._network.gather(self._task.sums_before.sizes, summed)

    def _run_evaluation(self) -> None:
        task = self._task
        with torch.no_grad():
            self.logits = task.judging.output(self._network, self._own)
            if self._home is not None:  # after the last round: nobody hears of it
                self._home.learn(self.logits)
                self.logits = self._home(self.logits)
            if self._predicts:  # of other tables than were trained on, scores would show a single holder's change
                return
            own = task.judging.tally(self._network, self._own, self.logits)
        if self._private is not None:  # of its own nodes, and nobody else hears of it
            self._scores = task.judging.scores(self._network, own)
            return
        self._sum(own, task.judging.tally_bits, self._id_of_scores())
        self._scores = task.judging.scores(self._network, self._receive_result(task.judging.tally_size, torch.float64))

    def _sum(self, values: Tensor, bits: int, sum_id: SumId) -> None:
        self._sums, what = self._sums + 1, sum_id.what
        is_in = self._summing.add(self._sums, values, bits, what, REMEDY, RecordedSum(self._record, sum_id))
        self.in_lockstep = self._summing.had_all
        if not is_in:
            _log.warning("%s was left out of sum %d (%s): it came too late", self.session.link.party, self._sums, what)

    def _receive_result(self, size: int, dtype: torch.dtype) -> Tensor:
        return receive_as(self.session.link, SERVER, Tag(Kind.AVERAGED, self._sums), (size,), dtype)

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Return the scores over all counted holders, the same at all; in private training over its own nodes."""
        return self._scores if everything else self._scores.of_epoch(self._job.train.select_by)

    @override
    def predictions(self) -> Predicted:
        with torch.no_grad():
            found: Predicted = self._task.judging.predictions(self._network, self._own, self.logits)
        return found

    @override
    def alone(self) -> Record | None:
        job, task = self._job, self._task
        if self._private is not None or job.label_privacy is not None or job.inputs.is_custom:
            return None
        found = baselines.alone(job, self.graph, lambda _: None, self.session.streams)
        with torch.no_grad():
            mine = task.judging.scores(self._network, task.judging.tally(self._network, self._own, self.logits))
        return joint_and_alone_scores(mine, found)

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Fit a calibration on the holder's own validation nodes, for its own predictions; it stays there."""
        found: Calibration | None = self._task.judging.calibration(self._network, self._own, probabilities)
        return found


class AveragingServer(_AveragingRole):
    """The server: opens sums over the holders, and sends the weights that follow to all."""

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, self._predicts = self.session, not self._learns
        hellos, start = agree_on_start(session, held, self._job.gives_checkpoints)
        self.allow_steps(hellos)
        self._agree_on_public(hellos)
        self._make_network()
        self._memory = self._job.averaging.rule.memory(len(self._network.vector()))
        remembered = lambda: {f"rule.{name}": tensor for name, tensor in self._memory.items()}  # noqa: E731
        self.model = PartyModel(session, {"network": self._network}, trained=(), in_training=remembered)
        if (earlier := session.keeper.get(BEGINNING)) is not None:
            self._begin_with(earlier.tensors)
        if self._job.records_survivors:
            self._record = self._merge_records(start.number)
        group = Group(start.session, session.holders, self._job.threshold)
        self._summing = SummingServer(session.link, group, self._job.averaging.patience_s)
        self._tell(self._network.vector())
        return start

    def _merge_records(self, session: int) -> SurvivorRecord:
        """Receive and merge all holders' records of survivors; an empty record in a run's first session."""
        link, holders = self.session.link, self.session.holders
        found = SurvivorRecord(link.party, holders, MemoryKeeper())
        if session > 1:
            for holder, rows in gather(link, holders, RECORDS, (None, found.width), torch.uint8).items():
                found.merge(rows, holder)
        return found

    def _begin_with(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the averaged weights of an earlier run, not its facts; ``RunError``: its network differs."""
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
            self._tell(self._sum(self._task.judging.tally_size, self._task.judging.tally_bits, self._id_of_scores()))
            return
        if not self._network.has_facts:
            self._compute_facts()
        self._epoch, weights = epoch, self._network.vector()
        sum_id = SumId.of("weights", epoch, weights)
        total = training.to_gradients(
            self._job, self._sum(len(weights) + training.EXTRA, training.update_bits(self._job), sum_id), weights
        )
        following, loss = training.apply_rule(self._job, self._memory, weights, total)
        self._network.take(following)
        if loss is None:
            RecordedSum(self._record, sum_id).forget()
        self._tell(training.pack_result(following, loss))

    def _compute_facts(self) -> None:
        """Open the task's sums before the first round, send them to all, and keep them in the network."""

        def summed(size: int, known: Tensor) -> Tensor:
            total = self._sum(size, FACT_BITS, SumId.of("facts", None, known))
            self._tell(total)
            return total

        self._network.gather(self._task.sums_before.sizes, summed)

    def _sum(self, size: int, bits: int, sum_id: SumId) -> Tensor:
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
