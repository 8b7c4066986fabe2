"""The parties of a sealed job: holders, one of them with the labels, and the dealer at the server."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import gather
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.mpc.sealed.holder import HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.entering import own_data, plan_of, slots_of, with_labels
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.stated import NamedNodes, check_learning
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.judge import Judge
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.scores import Objective, Scores
from veilgraph.protocol.stated import agree_within

_SURE = 30.0
"""The logit of a class that alone is known."""
_ROUNDING = "rounding"
_DATA = "data"


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _passed(epoch: int) -> Tag:
    """Of the message that a holder has saved the checkpoint before an epoch."""
    return Tag(Kind.READY, epoch, 1)


class Counted(Scores):
    """Of a step, of which the label holder knows but how many validation nodes are right."""

    @override
    def record(self) -> dict[str, float | None]:
        return {"val_accuracy": self.val_accuracy}


class Untold(Scores):
    """Of a model that has predicted none of the label holder's nodes, or named ones alone."""

    @override
    def summary(self) -> dict[str, float | None]:
        return dict.fromkeys(super().summary())


class SealedRole(Role):
    """What all parties of a sealed job have in common: they run one program."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._job = sealed(session.settings)
        self._naming = NamedNodes(self._job, session.keeper)
        self._trains = True
        self._asked: int | None = None
        self._program: SealedProgram | None = None
        self._entered = self._begun = False
        self._first: int | None = None
        self._last = 0
        self._saved: dict[str, Tensor] | None = None
        self._goes_on = False

    def hello(self) -> Hello:
        """What this party states."""
        session = self.session
        return Hello(job=session.settings.hash(), restarts=session.restarts, alignment=session.alignment)

    def machine(self) -> Machine:
        """On which this party runs the program."""
        raise NotImplementedError

    def data(self) -> Mapping[PartyId, OwnData]:
        """What this party puts in."""
        return {}

    def declines(self) -> str:
        """Why this party takes no part in this session, told to all; empty when it does."""
        return ""

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        self._trains = self._learns
        session = self.session
        stated = self.hello().model_copy(
            update={"checkpoints": list(held), "nonce": session.nonce(), "refuses": session.refuses or self.declines()}
        )
        hellos = agree_within(session, stated)
        start, label_party = agreed_start(session.link.party, hellos), session.settings.data.label_party
        self.nodes = hellos[session.holders[0]].nodes
        if self._trains:
            check_learning(self._job, label_party, hellos[label_party])
        self._asked = self._naming.agreed(label_party, hellos[label_party].asked, trains=self._trains, nodes=self.nodes)
        sizes = Sizes(
            self.nodes,
            hellos[label_party].training,
            hellos[label_party].classes,
            {holder: hellos[holder].features for holder in session.holders},
            {holder: hellos[holder].edges for holder in session.holders},
            self._job.model.max_degree,
            hellos[label_party].validation,
            self._asked,
        )
        self._program = SealedProgram(self.machine(), Context(sizes, plan_of(self._job), label_party, self.data()))
        return start

    @property
    def program(self) -> SealedProgram:
        """Once it is set up."""
        if self._program is None:
            raise RunError("a sealed role computes nothing before it is set up")
        return self._program

    @override
    def keep(self) -> None:
        """Counts the nodes that are going to be predicted, where they are named."""
        if self._asked:
            self._naming.use(self._asked)

    @property
    def _releases(self) -> bool:
        return self._trains and self._job.release == "holders"

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        if epoch is None and not self._learns and self._asked == 0 and not self._releases:
            self.catch_up(None)
            return
        if not self._entered:
            self.program.enter(trains=epoch is not None)
            self._entered = True
        if self._saved is not None:
            self.program.restore(self._saved, training=self._goes_on)
            self._saved, self._begun = None, self._begun or self._goes_on
        if epoch is None and self._learns:
            self.judge(self.program.score(self._last))
            return
        if epoch is None:
            self.catch_up(None)
            if self._releases:
                self.get(self.program.release())
            if self._asked != 0:
                self.learn(self.program.predict())
            return
        self.catch_up(epoch)
        self._first = self._first or epoch
        if not self._begun:
            self.program.begin()
            self._begun = True
        self.program.step(epoch - 1)
        self._last = epoch

    def learn(self, found: Tensor | None) -> None:
        """What is told of nodes, at the label holder."""

    def get(self, found: Mapping[PartyId, dict[str, Tensor]]) -> None:
        """What is told of the weights, at a holder."""

    def judge(self, found: Tensor | None) -> None:
        """How many validation nodes are right, at the label holder."""

    def catch_up(self, epoch: int | None) -> None:
        """Before an epoch, None: after the last. A dealer that runs ahead keeps a checkpoint that all holders have."""

    def follows_checkpoint(self, epoch: int | None) -> bool:
        """Whether this session has saved one just before an epoch."""
        return epoch is not None and self._first is not None and (epoch - 1) % self._job.train.checkpoint_every == 0

    @override
    def backward(self, step: int) -> None:
        """The program's step is both."""

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {}

    @override
    def weights(self) -> dict[str, Tensor]:
        """This party's shares: those of all holders add up to the weights, and all but one of them are noise."""
        return {name: share for name, share in self.state().items() if name.startswith("weight")}

    @override
    def state(self) -> dict[str, Tensor]:
        return self._saved if self._saved is not None else self.program.shares()

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), False

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), True


class SealedDealer(SealedRole):
    """Deals randomness; no message to it depends on anybody's data."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._unheard: int | None = None

    @override
    def catch_up(self, epoch: int | None) -> None:
        """Before it saves a checkpoint it waits until all holders have saved the one before."""
        if self.follows_checkpoint(epoch):
            self._unheard = epoch
        if self._unheard is not None and (epoch is None or epoch % self._job.train.checkpoint_every == 0):
            gather(self.session.link, self.session.holders, _passed(self._unheard), (1,), torch.uint8)
            self._unheard = None

    @override
    def machine(self) -> Machine:
        session = self.session
        self._dealing = DealerMachine(session.link, session.holders, session.secrets)
        return self._dealing

    @override
    def state(self) -> dict[str, Tensor]:
        return {_ROUNDING: _bytes(self._dealing.rounding)}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._dealing.rounding = saved[_ROUNDING].numpy().tobytes()
        super().load_state({})


class SealedHolder(SealedRole):
    """Has features and edges.

    Raises:
        DataError: they do not fit the job's public bounds.
    """

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session)
        graph.validate()
        self.graph = graph
        self._released: dict[str, Tensor] = {}
        self._own = own_data(self._job, graph)

    @override
    def hello(self) -> Hello:
        stated = {
            "nodes": self.graph.common,
            "features": self._own.features.shape[1],
            "edges": slots_of(self._job.model, self._own.edges.shape[1]),
        }
        return super().hello().model_copy(update=stated)

    @override
    def catch_up(self, epoch: int | None) -> None:
        if epoch is not None and self.follows_checkpoint(epoch):
            self.session.link.send(SERVER, _passed(epoch), torch.ones(1, dtype=torch.uint8))

    @override
    def get(self, found: Mapping[PartyId, dict[str, Tensor]]) -> None:
        self._released = found[self.session.link.party]

    @override
    def opened_weights(self) -> dict[str, Tensor]:
        """Weights of its own columns in the first layer, as ``SealedProgram.release`` names them."""
        return self._released

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self.program.check(saved)
        super().load_weights(saved)

    @override
    def state(self) -> dict[str, Tensor]:
        return {**super().state(), _DATA: _bytes(self._own.digest())}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.program.check(saved)
        if not torch.equal(saved[_DATA], _bytes(self._own.digest())):
            raise RunError(
                f"{self.session.link.party}: its data have changed since the checkpoint; begin a new run, for what "
                "was computed of the old ones cannot be gone on with",
                code="data-changed",
                party=self.session.link.party,
            )
        super().load_state({name: share for name, share in saved.items() if name != _DATA})

    @override
    def machine(self) -> Machine:
        return HolderMachine(self.session.link, self.session.holders)

    @override
    def data(self) -> Mapping[PartyId, OwnData]:
        return {self.session.link.party: self._own}


class SealedLabelHolder(SealedHolder, Judge):
    """Has labels as well, and learns what the job says of every node."""

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        common = graph.common_part()
        self._objective = Objective(common, session.settings.train, torch.float64)
        if self._job.predicts_named:
            self.predicted = torch.empty(0, dtype=torch.int64) if session.asked is None else session.asked
            self.logits = torch.empty((0, self._objective.classes), dtype=torch.float64)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """A training needs its labels, and states how many rows it trains on and judges by; a prediction does not."""
        if self._learns:
            common, classes = self.graph.common_part(), self._objective.classes
            self._own = with_labels(self._own, common, self._job, self.session.streams, classes)
        else:
            self._own = replace(self._own, asked=self.predicted)
        return super().setup(held)

    @override
    def declines(self) -> str:
        if self._learns or self.predicted is None:
            return ""
        return self._naming.refusal(self.predicted.numel())

    @override
    def hello(self) -> Hello:
        own = self._own
        counts = {"training": own.rows, "validation": own.judged, "asked": own.asked}
        stated = {name: 0 if rows is None else rows.numel() for name, rows in counts.items()}
        return super().hello().model_copy(update=stated | {"classes": self._objective.classes})

    @override
    def learn(self, found: Tensor | None) -> None:
        assert found is not None
        if self._job.output == "probabilities":
            self.logits = found.clamp_min(2.0**-16).log()
            return
        classes = found[:, 0].round().to(torch.int64)
        self.logits = _SURE * nn.functional.one_hot(classes, self._objective.classes).to(torch.float64)

    @override
    def judge(self, found: Tensor | None) -> None:
        assert found is not None
        assert self._own.judged is not None
        self._right = int(found) / self._own.judged.numel()

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """While training the one number that is known; of classes alone no ranking can be made."""
        if self._learns:
            return Counted(math.nan, 0.0, math.nan, self._right, None)
        if self.predicted is not None:
            return Untold(math.nan, math.nan, math.nan, math.nan, None)
        found = super().scores(everything=everything)
        return found if self._job.output == "probabilities" else replace(found, val_auc=None, test_auc=None)
