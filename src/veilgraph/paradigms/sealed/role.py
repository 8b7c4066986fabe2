"""What all parties of a sealed job do: agree on sizes, and run one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.cut_and_choose import Dealing
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.entering import plan_of
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import OUTSIDE, SealedProgram
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.stated import NamedNodes, check_learning
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.stated import agree_within


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

    def machine(self, dealing: Dealing) -> Machine:
        """On which this party runs the program.

        Args:
            dealing: all that it computes in this session.
        """
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
        context = Context(sizes, plan_of(self._job, self.nodes), label_party, {})
        machine = self.machine(lambda machine: self._rehearse(machine, context, start))
        self._program = SealedProgram(machine, replace(context, data=self.data()))
        return start

    def _rehearse(self, machine: Machine, context: Context, start: Start) -> None:
        """The passes of this session, as ``run.fitting`` and ``run.computing`` make them where no step is judged."""
        role = SealedRole(self.session)
        role._program, role._trains, role._asked = SealedProgram(machine, context), self._trains, self._asked
        if start.epoch:
            role.load_state({})
        if self._trains:
            for epoch in range(start.epoch + 1, self._job.train.epochs + 1):
                role.forward(0, epoch)
        role.load_weights({})
        role.infer_only()
        role.forward(0, None)

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
                self.pay()
                self.learn(self.program.predict())
            return
        self.catch_up(epoch)
        self._first = self._first or epoch
        if not self._begun:
            self.program.begin()
            self._begun = True
        self.program.step(epoch - 1)
        self._last = epoch
        if self._job.privacy is not None and epoch - 1 == self._job.train.epochs // 2:
            self.voted()

    def voted(self) -> None:
        """What a holder keeps of votes that were just counted with noise."""

    def pay(self) -> None:
        """At a holder, before anything is opened that depends on its data under noise."""

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
        return {name: share for name, share in self.state().items() if name.startswith("weight") or name == OUTSIDE}

    @override
    def state(self) -> dict[str, Tensor]:
        return self._saved if self._saved is not None else self.program.shares()

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), False

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._saved, self._goes_on = dict(saved), True
