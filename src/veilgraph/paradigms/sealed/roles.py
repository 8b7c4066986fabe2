"""The parties of a sealed job run one program: holders, and the dealer at the server.

The holder with the labels is in ``label_holder``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import RunError
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.types import NOBODY, SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import broadcast, gather
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.cut_and_choose import Dealing, checked_link, dealer_of, failed_check_reason
from veilgraph.mpc.sealed.linked import DealerMachine, HolderMachine
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.pair import PairMachine
from veilgraph.paradigms.sealed.abreast import are_abreast
from veilgraph.paradigms.sealed.inputs import (
    max_degree_of,
    own_data,
    plan_of,
    slots_of,
    stated_neighbours,
)
from veilgraph.paradigms.sealed.named_nodes import NamedNodes, check_learning
from veilgraph.paradigms.sealed.plan import Context, OwnData, Sizes
from veilgraph.paradigms.sealed.program import OUTSIDE, TRIAL, Program, SealedProgram, public_trials
from veilgraph.paradigms.sealed.programs import program_of
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.protocol.agreement import Hello, Point, Start, agreed_start
from veilgraph.protocol.bounds import agree_and_check_bounds
from veilgraph.protocol.role import PartyModel, Role, RoleContext

_PREPARED: Final = "prepared"


class Shares(PartyModel):
    """A party's shares of the model: those of all holders add up to the weights, and all but one of them are noise.

    ``saved`` shares are to be restored before the next pass; ``goes_on``: to resume training from them.
    """

    def __init__(self, session: RoleContext, program: Program) -> None:
        super().__init__(session, {})
        self._program = program
        self.saved: dict[str, Tensor] | None = None
        self.goes_on = False

    @override
    def weights(self) -> dict[str, Tensor]:
        return {name: share for name, share in self.state().items() if name.startswith("weight") or name == OUTSIDE}

    @override
    def state(self) -> dict[str, Tensor]:
        return self._program.shares() if self.saved is None else self.saved

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self.saved, self.goes_on = dict(saved), False

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self.saved, self.goes_on = dict(saved), True


class SealedRole(Role):
    """Base of all parties of a sealed job: runs one ``Program`` through set-up, training and prediction."""

    model: Shares

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self._job = sealed(session.settings)
        self._naming = NamedNodes(self._job, session.keeper)
        self._trains = True
        self._asked: int | None = None
        self._named: Mapping[PartyId, int] = {}
        self._program: Program | None = None
        self._data: dict[PartyId, OwnData] = {}
        self._entered = self._begun = False
        self._first: int | None = None
        self._unheard: int | None = None
        self._last = 0
        self._start, self._classes = "", 0

    def hello(self) -> Hello:
        """The sizes and identities that this party states to all others."""
        session = self.session
        return Hello(job=session.settings.hash(), restarts=session.restarts, alignment=session.alignment)

    def machine(self, dealing: Dealing) -> Machine:
        """The machine on which this party runs the program; ``dealing`` rehearses all that this session computes."""
        raise NotImplementedError

    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        """What this party puts in, in the session ``name``: itself → its data; empty at the dealer."""
        return {}

    def shares(self, program: Program) -> Shares:
        """Make the model of this party: its shares of a program's weights."""
        return Shares(self.session, program)

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
        hellos = agree_and_check_bounds(session, stated)
        start = agreed_start(session.link.party, hellos)
        sizes = self.sizes({holder: hellos[holder] for holder in session.holders})
        self.nodes, self._asked = sizes.nodes, sizes.asked
        context = Context(sizes, plan_of(self._job, sizes), session.settings.data.label_party, {})
        if not start.epoch and are_abreast(context):
            self.in_lockstep = False  # a step that is made already needs nobody, so it does not show what others have
        self._named = {holder: block.asked for holder, block in context.learners.items()}
        machine = self.machine(lambda machine: self._rehearse(machine, context, start))
        self._start, self._classes = start.session, sizes.classes
        self._data = dict(self._witnessed(self.data(sizes, start.session), held, start))
        self._program = program_of(machine, replace(context, data=self._data), lambda _: session.secrets)
        self.model = self.shares(self._program)
        return start

    def _witnessed(
        self, data: Mapping[PartyId, OwnData], held: Sequence[Point], start: Start
    ) -> Mapping[PartyId, OwnData]:
        """Commit to what this party puts in where the job has a witness, and return what the session uses."""
        if (witness := self.session.witness) is None:
            return data
        found = witness.put_in(data[self.session.link.party].tensors() if data else {}, held, start)
        return {party: OwnData.of(found) for party in data}

    def sizes(self, hellos: Mapping[PartyId, Hello]) -> Sizes:
        """Public sizes of the job from what holders state; ``ProtocolError`` where one states what it may not."""
        label_party = self.session.settings.data.label_party
        stated, nodes = hellos[label_party], next(iter(hellos.values())).nodes
        if self._trains:
            check_learning(self._job, label_party, stated)
        return Sizes(
            nodes,
            stated.training,
            stated.classes,
            {holder: hello.features for holder, hello in hellos.items()},
            {holder: hello.edges for holder, hello in hellos.items()},
            max_degree_of(self._job, (hello.neighbours for hello in hellos.values())),
            stated.validation,
            self._naming.agreed(label_party, stated.asked, trains=self._trains, nodes=nodes),
        )

    def _rehearse(self, machine: Machine, context: Context, start: Start) -> None:
        """Run on ``machine`` the passes that ``runtime.session`` will make in this session.

        Of judged steps it is not known which will be best, so all trials together predict, which takes most.
        """
        role, job = SealedRole(self.session), self._job
        role._program = program_of(machine, context, lambda _: self.session.secrets)
        role._trains, role._asked = self._trains, self._asked
        role.model = Shares(self.session, role._program)
        known = {} if self._program is None else public_trials(self._program.shares())
        if start.epoch:
            role.model.load_state(known)
        if self._trains:
            for epoch in range(start.epoch + 1, job.train.epochs + 1):
                role.forward(0, epoch)
                if job.passes.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
                    role.forward(0, None)
                    role.model.best = role.model.weights()
            known = {TRIAL: torch.arange(len(context.plan.trials))}
        role.model.load_weights(known)
        role.infer_only()
        role.forward(0, None)

    @property
    def program(self) -> Program:
        """This party's program; raises ``RunError`` before ``setup``."""
        if self._program is None:
            raise RunError("a sealed role computes nothing before it is set up")
        return self._program

    @override
    def keep(self) -> None:
        """Count the named nodes of this prediction as used, if it opens them."""
        if self._asked and not self._job.online:
            self._naming.use(self._named)

    @property
    def _releases(self) -> bool:
        return self._trains and self._job.release == "holders"

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Run training step ``epoch``; with None score the last step or, after training, release and predict."""
        if epoch is None and not self._learns and self._asked == 0 and not self._releases:
            self.catch_up(None)
            return
        if not self._entered:
            self._enter(trains=epoch is not None)
        if self.model.saved is not None:
            self.program.restore(self.model.saved, training=self.model.goes_on)
            self.model.saved, self._begun = None, self._begun or self.model.goes_on
        if epoch is None and self._learns:
            self.judge(self.program.score(self._last))
            return
        if epoch is None:
            self.catch_up(None)
            if self._releases:
                self.get(self.program.release())
            if self._asked != 0:
                self.pay()
                if self._job.online:
                    assert isinstance(self.program, SealedProgram)  # other programs are of jobs with noise
                    self.keep_shares(*self.program.kept_output())
                else:
                    self.learn(self.program.predict())
            return
        self.catch_up(epoch)
        self._first = self._first or epoch
        if not self._begun:
            self.program.begin()
            self._begun = True
        self.program.step(epoch - 1, self.model.best)
        self._last = epoch
        if self._job.privacy is not None and epoch == self._job.train.epochs:
            self.voted()

    def _enter(self, *, trains: bool) -> None:
        if isinstance(self.program, SealedProgram):
            self.program.enter(trains=trains, let_go=self.drop_columns)
        else:
            self.program.enter(trains=trains)
        self._entered = True

    def drop_columns(self) -> None:
        """Let go of columns that have been put in: they take as much memory as what was made of them."""
        self._data.update({party: replace(own, columns={}) for party, own in self._data.items()})

    def voted(self) -> None:
        """Hook at a holder, after votes were counted with new noise."""

    def pay(self) -> None:
        """Hook at a holder to pay from its budget, before anything is opened that depends on its data under noise."""

    def learn(self, found: Tensor | None) -> None:
        """Hook for what ``Program.predict`` reveals: at a holder with labels, else None."""

    def keep_shares(self, share: Tensor, bits: int) -> None:
        """Hook at a holder to save its share of what a prediction would open, with ``bits`` fractional bits."""

    def get(self, found: Mapping[PartyId, dict[str, Tensor]]) -> None:
        """Hook for released weights: holder → name → weights, a holder's own only."""

    @property
    def waiting(self) -> PartyId:
        """The party beside the server that waits for others' checkpoints: who deals or, of two holders, the first."""
        return self._job.dealing_party or self._job.computing[0]

    def judge(self, found: Tensor | None) -> None:
        """Hook for what ``Program.score`` reveals: right validation nodes, at a holder with labels, else None."""

    def catch_up(self, epoch: int | None) -> None:
        """Hook before an epoch, None: after the last, that keeps the dealer's checkpoints in step with the holders'."""

    def tell_checkpoint(self, epoch: int | None, others: Collection[PartyId]) -> None:
        """Tell ``others`` that this party has saved the checkpoint just before ``epoch``, if so; they tell as well."""
        if epoch is not None and self.follows_checkpoint(epoch):
            self._unheard = epoch
            saved = torch.ones(1, dtype=torch.uint8)
            broadcast(self.session.link, sorted(others), _checkpoint_tag(epoch), saved)

    def await_checkpoint(self, epoch: int | None, others: Sequence[PartyId]) -> None:
        """At a checkpoint, and at the end (None), wait until ``others`` have all saved the previous one."""
        if self._unheard is not None and (epoch is None or epoch % self._job.train.checkpoint_every == 0):
            gather(self.session.link, others, _checkpoint_tag(self._unheard), (1,), torch.uint8)
            self._unheard = None

    def follows_checkpoint(self, epoch: int | None) -> bool:
        """Whether this session has saved a checkpoint just before ``epoch``."""
        return epoch is not None and self._first is not None and (epoch - 1) % self._job.train.checkpoint_every == 0

    @override
    def backward(self, step: int) -> None:
        """Do nothing: a step of the program has both passes."""

    @override
    def close(self) -> None:
        """Let go of the program, and with it of seeds, masks and shares; nobody can promise that memory is wiped."""
        self._program = None
        self.__dict__.pop("model", None)


_DATA = "data"
_NOISE = "noise-id"
_TABLES = "tables"
SHARES: Final = "answers"
"""Name of kept shares: "share" int64 [N, 1 or C − 1] and, at the label holder, "order" int64 [N], its rows in order."""


def _byte_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _checkpoint_tag(epoch: int) -> Tag:
    """Tag of the message that a holder has saved the checkpoint before ``epoch``."""
    return Tag(Kind.READY, epoch, 1)


class SealedDealer(SealedRole):
    """The server: deals randomness, unless a holder does; no message to it depends on anybody's data."""

    in_lockstep = False  # it is ahead of the holders
    _epoch: int | None = None

    @override
    def catch_up(self, epoch: int | None) -> None:
        """Tell of the newest checkpoint; at the end wait until all holders have saved the previous one."""
        self.tell_checkpoint(epoch, {self.waiting} - {SERVER})
        self._epoch = epoch
        if epoch is None:
            self.await_checkpoint(None, self.session.holders)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Deal for a step or a prediction; where a holder deals, only keep checkpoints in step with the holders'."""
        if self._job.dealing_party == self.session.link.party:
            super().forward(step, epoch)
        elif epoch is not None or not self._learns:
            self.catch_up(epoch)
            self._first = self._first or epoch

    @override
    def backward(self, step: int) -> None:
        """Before a checkpoint wait until all holders have saved the previous one.

        Not before the step: what is dealt for it is on its way while holders compute those before it. They cannot pass
        the checkpoint that comes next, for nothing is dealt behind it before it is saved here.
        """
        self.await_checkpoint(self._epoch, self.session.holders)

    @override
    def machine(self, dealing: Dealing) -> Machine:
        link, holders, secrets = self.session.link, self.session.holders, self.session.secrets
        if self._job.dealing_party != link.party:
            return CountingMachine(holders, self._job.dealing_party)
        if self._job.dealer_checks:
            return dealer_of(link, holders, secrets, dealing)
        return DealerMachine(link, holders, secrets)

    @override
    def shares(self, program: Program) -> Shares:
        """The dealer's model: public trial numbers, but no shares, for what it draws is of one session."""
        return _DealerShares(self.session, program)


class _DealerShares(Shares):
    """The dealer's model without shares: only the public numbers of the trials whose weights holders have."""

    @override
    def state(self) -> dict[str, Tensor]:
        return public_trials(super().state())


class _HolderShares(Shares):
    """A holder's shares with SHA-256 digests of its data, ``tables`` without labels and ``data`` with them.

    Shares of other data are refused with ``RunError``: to resume training and, with ``privacy``, to predict, as all
    predictions reuse the noise named by ``noise_id``, Tensor[SEED_BYTES] uint8.
    """

    def __init__(self, session: RoleContext, program: Program, tables: Tensor, data: Tensor) -> None:
        super().__init__(session, program)
        self._tables, self._data = tables, data
        self._is_private = session.settings.privacy is not None
        self.noise_id = torch.zeros(SEED_BYTES, dtype=torch.uint8)

    @override
    def weights(self) -> dict[str, Tensor]:
        own = super().weights()
        return {**own, _NOISE: self.noise_id, _TABLES: self._tables} if self._is_private else own

    @override
    def load_weights(self, saved: Mapping[str, Tensor]) -> None:
        self._program.check(saved, training=False)
        if self._is_private:
            self.noise_id = saved[_NOISE]
            if not torch.equal(saved[_TABLES], self._tables):
                raise RunError(
                    f"{self.session.link.party}: its data have changed since the training, whose votes are of the old "
                    "ones: with privacy a run predicts of the data that it was trained on alone; train a new run, "
                    "which is paid for anew",
                    code="data-changed",
                    party=self.session.link.party,
                )
        super().load_weights(saved)

    @override
    def state(self) -> dict[str, Tensor]:
        votes = {_NOISE: self.noise_id} if self._is_private else {}
        return {**super().state(), **votes, _DATA: self._data}

    @override
    def load_state(self, saved: Mapping[str, Tensor]) -> None:
        self._program.check(saved, training=True)
        if not torch.equal(saved[_DATA], self._data):
            raise RunError(
                f"{self.session.link.party}: its data have changed since the checkpoint; begin a new run, for what "
                "was computed of the old ones cannot be gone on with",
                code="data-changed",
                party=self.session.link.party,
            )
        self.noise_id = saved.get(_NOISE, self.noise_id)
        super().load_state({name: share for name, share in saved.items() if name not in (_DATA, _NOISE)})


class SealedHolder(SealedRole):
    """Has features and edges, and may deal; raises ``DataError`` where they do not fit the job's public bounds."""

    model: _HolderShares

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session)
        self.in_lockstep = self._job.dealing_party == SERVER  # else no pass needs the server, which may be behind
        graph.validate()
        self.graph = graph
        self._own = self.put_in()
        self._tables = _byte_tensor(self._own.digest())
        self._order: Tensor | None = None

    def put_in(self) -> OwnData:
        """Make what it puts in, without labels, from its graph."""
        return own_data(self._job, self.graph, refuses=bool(self.session.refuses))

    @override
    def hello(self) -> Hello:
        stated = {
            "nodes": self.graph.common,
            "features": self.graph.num_features,
            "edges": slots_of(self._job, self._own.edges.shape[1]),
            "neighbours": stated_neighbours(self._job, self.graph.party, self.graph.most_edges_at_a_node()),
        }
        return super().hello().model_copy(update=stated)

    @override
    def catch_up(self, epoch: int | None) -> None:
        own, dealer = self.session.link.party, self._job.dealing_party
        self.tell_checkpoint(epoch, {SERVER, dealer} - {own, NOBODY})
        if own == self.waiting:  # where nobody deals, holders make each step together, and one waits for the server
            self.await_checkpoint(epoch, [*(self._job.computing if dealer else ()), SERVER])

    @override
    def keep_shares(self, share: Tensor, bits: int) -> None:
        order = {} if self._order is None else {"order": self._order}
        facts = {_PREPARED: self._start, "bits": bits, "classes": self._classes}
        self.session.keeper.put(SHARES, {"share": share, **order}, facts)

    @override
    def get(self, found: Mapping[PartyId, dict[str, Tensor]]) -> None:
        """Keep the weights of its own columns as ``model.opened``, named as by ``Program.release``."""
        self.model.opened = found.get(self.session.link.party, {})

    @override
    def drop_columns(self) -> None:
        super().drop_columns()
        self._own = replace(self._own, columns={})

    @override
    def declines(self) -> str:
        """Why this holder takes no part: an earlier dealer check failed, or the budget cannot pay for a training."""
        failed = failed_check_reason(self.session.keeper) if self._job.dealer_checks else ""
        return failed or (self.session.publisher.refusal() if self._learns and self._is_new else "")

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        self._is_new = not held
        return super().setup(held)

    @override
    def voted(self) -> None:
        """Draw a new ``noise_id``: opening results with this noise has not been paid for."""
        self.model.noise_id = _byte_tensor(self.session.secrets(SEED_BYTES))

    @override
    def pay(self) -> None:
        if self._job.privacy is not None:
            self.session.publisher.pay(self.model.noise_id.numpy().tobytes().hex())

    @override
    def shares(self, program: Program) -> Shares:
        return _HolderShares(self.session, program, self._tables, _byte_tensor(self._own.digest()))

    @override
    def machine(self, dealing: Dealing) -> Machine:
        link, holders, rate = self.session.link, self.session.holders, self._job.dealer_checks
        dealer, secrets = self._job.dealing_party, self.session.secrets
        if dealer == link.party:
            return DealerMachine(link, holders, secrets)
        if dealer == NOBODY:
            from veilgraph.mpc.pair.exchange import Exchange  # noqa: PLC0415 - what it needs is an extra
            from veilgraph.mpc.sealed.pair_counting import PairCountingMachine  # noqa: PLC0415 - likewise

            def foresee() -> list[int]:
                dealing(counting := PairCountingMachine(holders))
                return counting.asked

            return PairMachine(link, holders, Exchange(link, holders, secrets), secrets, foresee)
        if rate:
            link = checked_link(link, holders, SERVER, dealing, rate, secrets, self.session.keeper)
        return HolderMachine(link, holders, dealer, secrets)

    @override
    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        return {self.session.link.party: self._own}
