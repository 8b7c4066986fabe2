"""The parties of a sealed job run one program: holders, one of them with the labels, and the dealer at the server.

Of named nodes every party counts for itself, before anything of a prediction is opened, and takes part in no more than
the job says: what the label holder learns in all is so many classes, or rows of margins, however it chooses
nodes, and whatever it changes between two predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.secrets import SEED_BYTES
from veilgraph.core.tensor_file import Keeper, Kept
from veilgraph.core.types import SERVER, Kind, PartyId, Tag
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import broadcast, gather
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.cut_and_choose import Dealing, checked_link, dealer_of, failed_check_reason
from veilgraph.mpc.sealed.machine import DealerMachine, HolderMachine, Machine
from veilgraph.mpc.sealed.permutations import shuffled
from veilgraph.nn.calibration import Calibration
from veilgraph.paradigms.sealed.boosting import Examples
from veilgraph.paradigms.sealed.evidence import LabelKnowledge, with_votes
from veilgraph.paradigms.sealed.inputs import (
    examples_of,
    max_degree_of,
    most_right,
    own_data,
    plan_of,
    slots_of,
    stated_neighbours,
    with_labels,
    with_scores,
)
from veilgraph.paradigms.sealed.plan import BOOSTING, Context, OwnData, Sizes, epsilon_of
from veilgraph.paradigms.sealed.program import OUTSIDE, Program, SealedProgram, certain_logits, logits_of
from veilgraph.paradigms.sealed.records.home import Home, with_residuals
from veilgraph.paradigms.sealed.records.program import program_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.stacking import Stacking, fit_best_stacking
from veilgraph.protocol.agreement import Hello, Point, Start, agreed_start
from veilgraph.protocol.bounds import agree_and_check_bounds
from veilgraph.protocol.figures import CLASS_MEASURES, Scores
from veilgraph.protocol.judge import Judge, Objective, Predicted
from veilgraph.protocol.role import PartyModel, Role, RoleContext

_KEPT: Final = "named"
_COUNT: Final = "nodes"
_OPENED, _PREPARED = "opened", "prepared"


class NamedNodes:
    """One party's saved count, or one for each naming holder, of the run's ``named_nodes`` that are used up."""

    def __init__(self, job: SealedJob, keeper: Keeper) -> None:
        self._job, self._keeper = job, keeper

    def left(self, party: PartyId) -> int:
        """Number of nodes that a holder may still name; raises ``RunError``: the saved count is damaged."""
        kept = self._keeper.get(_KEPT)
        try:
            used = 0 if kept is None else int(kept.facts[self._count_name(party)])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self._keeper.place(_KEPT)}: damaged ({error}); restore it, for it counts what was predicted"
            ) from error
        return max(0, (self._job.named_nodes or 0) - used)

    def _count_name(self, party: PartyId) -> str:
        return _COUNT if self._job.is_aligned else party

    def refusal(self, party: PartyId, named: int, least: int = 1) -> str:
        """Why a holder may not name ``named`` nodes: fewer than ``least``, or more than are left; empty if it may."""
        if named < least:
            return (
                f"named_nodes={self._job.named_nodes}: the label holder has named no node for this prediction; let it "
                "name some (veilgraph predict RUN --nodes or --ids, across organisations with --ask)"
            )
        if named > (left := self.left(party)):
            return (
                f"named_nodes={self._job.named_nodes}: {named} nodes are named, and {left} are left for this run; "
                "name fewer, or train a new one"
            )
        return ""

    def agreed(self, party: PartyId, named: int, *, trains: bool, nodes: int, least: int = 1) -> int | None:
        """Check the number of nodes that ``party`` states, and return it; None if the job predicts all N ``nodes``.

        Raises ``ProtocolError``: it states more than it may name, fewer than ``least``, or any in a training.
        """
        if not self._job.outcome.predicts_named:
            return None
        online = self._job.online  # then all are picked, in the label holder's order, and counted when opened
        low, most = (0, 0) if trains or online else (least, min(self.left(party), nodes))
        if not low <= named <= most:
            allowed = f"from {low} to {most}" if low <= most else "no more"
            raise ProtocolError(
                f"{party} states asked={named} in its hello, and named_nodes={self._job.named_nodes} allows {allowed} "
                f"in this session; ask {party} what it runs",
                code="stated",
                key="asked",
                value=named,
                party=party,
            )
        return nodes if online and not trains else named

    def use(self, named: Mapping[PartyId, int]) -> None:
        """Add holder → number of named nodes to the saved counts; to call before anything of them is opened."""
        most = self._job.named_nodes or 0
        used = {self._count_name(party): most - self.left(party) + count for party, count in named.items()}
        self._keeper.put(_KEPT, {}, used)

    def opened(self, prepared: str) -> Tensor:
        """Positions of the kept shares ``prepared``, a session's name, that were opened: int64 [used], sorted."""
        kept = self._keeper.get(_KEPT)
        if kept is None or kept.facts.get(_PREPARED) != prepared:
            return torch.empty(0, dtype=torch.int64)
        return kept.tensors[_OPENED]

    def open(self, party: PartyId, prepared: str, positions: Tensor) -> None:
        """Count positions of kept shares before they are opened; those opened before count no more.

        Raises ``ProtocolError``, and counts nothing: more are new than ``party`` may still open.
        """
        before, left = self.opened(prepared), self.left(party)
        opened = torch.from_numpy(np.union1d(before.numpy(), positions.numpy()))
        new = len(opened) - len(before)
        if new > left:
            raise ProtocolError(
                f"{party} opens {new} nodes more, and named_nodes={self._job.named_nodes} leaves {left}; ask {party} "
                "what it runs, or train a new run",
                code="used-up",
                key="named_nodes",
                value=new,
                party=party,
            )
        if new:
            used = (self._job.named_nodes or 0) - left + new
            self._keeper.put(_KEPT, {_OPENED: opened}, {self._count_name(party): used, _PREPARED: prepared})


def check_learning(job: SealedJob, party: PartyId, stated: Hello) -> None:
    """Raise ``ProtocolError`` if a label holder states no training rows or, where steps are judged, no validation."""
    for name in ("training", *(("validation",) if job.passes.evaluates else ())):
        if not getattr(stated, name):
            raise ProtocolError(
                f"{party} states {name}=0 in its hello of a training; ask {party} what it runs",
                code="stated",
                key=name,
                value=0,
                party=party,
            )


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
        self._named = {holder: block.asked for holder, block in context.learners.items()}
        machine = self.machine(lambda machine: self._rehearse(machine, context, start))
        self._start, self._classes = start.session, sizes.classes
        own = replace(context, data=self.data(sizes, start.session))
        self._program = program_of(machine, own, lambda _: session.secrets)
        self.model = self.shares(self._program)
        return start

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
        """Run on ``machine`` the passes that ``runtime.session`` will make in this session, if no step is judged."""
        role = SealedRole(self.session)
        role._program = program_of(machine, context, lambda _: self.session.secrets)
        role._trains, role._asked = self._trains, self._asked
        role.model = Shares(self.session, role._program)
        if start.epoch:
            role.model.load_state({})
        if self._trains:
            for epoch in range(start.epoch + 1, self._job.train.epochs + 1):
                role.forward(0, epoch)
        role.model.load_weights({})
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
            self.program.enter(trains=epoch is not None)
            self._entered = True
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

    def judge(self, found: Tensor | None) -> None:
        """Hook for what ``Program.score`` reveals: right validation nodes, at a holder with labels, else None."""

    def catch_up(self, epoch: int | None) -> None:
        """Hook before an epoch, None: after the last, that keeps the dealer's checkpoints in step with the holders'."""

    def tell_checkpoint(self, epoch: int | None, others: Collection[PartyId]) -> None:
        """Tell ``others`` that this party has saved the checkpoint just before ``epoch``, if it has."""
        if epoch is not None and self.follows_checkpoint(epoch):
            saved = torch.ones(1, dtype=torch.uint8)
            broadcast(self.session.link, sorted(others), _checkpoint_tag(epoch), saved)

    def await_checkpoint(self, epoch: int | None, others: Sequence[PartyId]) -> None:
        """Before a checkpoint, and at the end (None), wait until ``others`` have all saved the previous one."""
        if self.follows_checkpoint(epoch):
            self._unheard = epoch
        if self._unheard is not None and (epoch is None or epoch % self._job.train.checkpoint_every == 0):
            gather(self.session.link, others, _checkpoint_tag(self._unheard), (1,), torch.uint8)
            self._unheard = None

    def follows_checkpoint(self, epoch: int | None) -> bool:
        """Whether this session has saved a checkpoint just before ``epoch``."""
        return epoch is not None and self._first is not None and (epoch - 1) % self._job.train.checkpoint_every == 0

    @override
    def backward(self, step: int) -> None:
        """Do nothing: a step of the program has both passes."""


_DATA = "data"
_EXAMPLES = "boosting"
_STACKED = "stacking"
_TAKEN = "taken"
_NOISE = "noise-id"
_TABLES = "tables"
SHARES: Final = "answers"
"""Name of kept shares: "share" int64 [N, 1 or C − 1] and, at the label holder, "order" int64 [N], its rows in order."""


def _byte_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _checkpoint_tag(epoch: int) -> Tag:
    """Tag of the message that a holder has saved the checkpoint before ``epoch``."""
    return Tag(Kind.READY, epoch, 1)


class _OneNumber(Scores):
    """Scores of a training step with one known number: the share of right validation nodes, or of ranked pairs."""

    @override
    def record(self) -> dict[str, float | None]:
        return dict(self.values)


class SealedDealer(SealedRole):
    """The server: deals randomness, unless a holder does; no message to it depends on anybody's data."""

    in_lockstep = False  # it is ahead of the holders

    @override
    def catch_up(self, epoch: int | None) -> None:
        """Before a checkpoint, and at the end, wait until all holders have saved the previous one."""
        self.tell_checkpoint(epoch, {self._job.dealing_party} - {SERVER})
        self.await_checkpoint(epoch, self.session.holders)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Deal for a step or a prediction; where a holder deals, only keep checkpoints in step with the holders'."""
        if self._job.dealing_party == self.session.link.party:
            super().forward(step, epoch)
        elif epoch is not None or not self._learns:
            self.catch_up(epoch)
            self._first = self._first or epoch

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
        return {name: trials for name, trials in super().state().items() if name.endswith(".trial")}


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
        self.tell_checkpoint(epoch, {SERVER, dealer} - {own})
        if own == dealer:
            self.await_checkpoint(epoch, [*self._job.computing, SERVER])

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
        if rate:
            link = checked_link(link, holders, SERVER, dealing, rate, secrets, self.session.keeper)
        return HolderMachine(link, holders, dealer, secrets)

    @override
    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        return {self.session.link.party: self._own}


class SealedLabelHolder(SealedHolder, Judge):
    """A holder with labels: learns predictions of all or named nodes, and judges steps."""

    _stacking: Stacking
    _taken: int = 0
    _opinions: Tensor | None = None

    def __init__(self, session: RoleContext, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self._examples: Examples | None = None
        self._objective = Objective(self.labelled().common_part(), session.settings.train, torch.float64)
        if self._job.outcome.predicts_named:
            self.predicted = torch.empty(0, dtype=torch.int64) if session.asked is None else session.asked
            self.logits = torch.empty((0, self._objective.classes), dtype=torch.float64)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """Set up with labels for a training, or with the nodes to predict."""
        self._own = self.with_labels() if self._learns else replace(self._own, asked=self.predicted)
        return super().setup(held)

    def with_labels(self) -> OwnData:
        """What it puts in, with training and validation nodes and their labels."""
        common, classes = self.labelled().common_part(), self._objective.classes
        return with_labels(self._own, common, self._job, self.session.streams, classes)

    def labelled(self) -> PartyGraph:
        """Its graph with labels, in the form that trees, stacking and scores use."""
        return self.graph

    @override
    def data(self, sizes: Sizes, name: str) -> Mapping[PartyId, OwnData]:
        """Its data with the boosted trees' scores; a prediction fits trees to the examples that the training saved."""
        seen = self.labelled()
        if self._job.records is not None:
            return {self.session.link.party: self._with_residuals(sizes) if self._learns else self._own}
        if BOOSTING in plan_of(self._job).blocks:
            self._examples = examples_of(self._job, seen) if self._learns else self._kept_examples()
        if self._stacks and not self._learns:
            self._stacking = self._kept_stacking(sizes.classes)
        own = with_scores(self._own, seen, self._job, self._examples, sizes.classes)
        if self._job.online and not self._learns:
            numbers = torch.frombuffer(bytearray(self.session.secrets(8 * sizes.nodes)), dtype=torch.int64)
            self._order = shuffled(numbers)
            own = replace(own, asked=self._order)
        return {self.session.link.party: own}

    def _with_residuals(self, sizes: Sizes) -> OwnData:
        """What it puts in, with what its own model leaves of its training nodes' labels."""
        multiplier = plan_of(self._job, sizes).records
        assert multiplier is not None
        self._opinions = self._home.opinions()
        return with_residuals(self._own, self._opinions, self.labelled().common_part(), multiplier)

    @property
    def _home(self) -> Home:
        return Home(self.labelled().common_part(), self._classes)

    def _kept_examples(self) -> Examples:
        what = f"the training nodes that trees of the block {BOOSTING} were fitted to"
        return Examples(**self._kept(_EXAMPLES, what, lambda kept: set(kept) == {"rows", "labels"}).tensors)

    def _kept_stacking(self, classes: int) -> Stacking:
        names, what = set(Stacking.__dataclass_fields__), f"weights of its own edges, as of {classes} classes,"
        kept = self._kept(_STACKED, what, lambda k: set(k) == names and Stacking(**k).is_of(classes))
        self._taken = int(kept.facts.get(_TAKEN) == 1)
        return Stacking(**kept.tensors)

    def _kept(self, name: str, what: str, sound: Callable[[Mapping[str, Tensor]], bool]) -> Kept:
        """Load what the training saved under ``name``; ``RunError`` if missing or not ``sound``."""
        kept = self.session.keeper.get(name)
        if kept is None or not sound(kept.tensors):
            raise RunError(
                f"{self.session.keeper.place(name)}: {what} are not there; give the files of this party's own run, or "
                "train a new one, as after a run of an earlier release",
                code="lost",
                key=name,
                party=self.session.link.party,
            )
        return kept

    @override
    def keep(self) -> None:
        """Also save the trees' training examples, to which later predictions fit the same trees."""
        super().keep()
        if self._learns and self._examples is not None:
            self.session.keeper.put(_EXAMPLES, vars(self._examples), {})

    @override
    def declines(self) -> str:
        if (why := super().declines()) or self._learns or self.predicted is None or self._job.online:
            return why
        return self._naming.refusal(self.session.link.party, self.predicted.numel())

    @override
    def hello(self) -> Hello:
        own = self._own
        counts = {"training": own.rows, "validation": own.judged, "asked": own.asked}
        stated = {name: 0 if rows is None else rows.numel() for name, rows in counts.items()}
        return super().hello().model_copy(update=stated | {"classes": self._objective.classes})

    @override
    def learn(self, found: Tensor | None) -> None:
        """Keep logits of what was revealed, combined with noisy votes and stacked with own edges where the job does."""
        assert found is not None
        if self._job.records is not None:
            opinions = self._home.opinions() if self._opinions is None else self._opinions
            self.logits = self._home.with_scores(opinions, found, self._objective.weights)
            return
        self.logits = self._opened_logits(found)
        said = [self.logits]
        if self._job.privacy is not None:
            said = [self._with_votes(self.logits), self.logits]
            alone = self._job.output == "classes"
            self.logits = certain_logits(said[0].argmax(1, keepdim=True), self._classes) if alone else said[0]
        if self._stacks:
            self.logits = self._stacked(said)

    @property
    def _stacks(self) -> bool:
        """Whether own edges are stacked on the logits: margins of all nodes are opened, of the job's network."""
        return self._job.output == "margins" and self.predicted is None and self._job.records is None

    def _stacked(self, said: Sequence[Tensor]) -> Tensor:
        """Add what this holder's own edges say to the best of several logits; in training choose, fit and save."""
        graph = self.labelled()
        if self._trains:
            self._taken, self._stacking = fit_best_stacking(said, graph, self._objective.weights)
            self.session.keeper.put(_STACKED, vars(self._stacking), {_TAKEN: self._taken})
        return self._stacking.logits(said[self._taken], graph)

    def _opened_logits(self, found: Tensor) -> Tensor:
        return logits_of(found) if self._job.output == "margins" else certain_logits(found, self._classes)

    def _with_votes(self, scores: Tensor) -> Tensor:
        """Combine the network's logits with the noisy votes that were opened with them."""
        votes, epsilon = self.program.told, epsilon_of(self._job)
        assert votes is not None
        assert epsilon is not None
        known = LabelKnowledge(self.labelled().common_part(), self._classes, self.predicted)
        return with_votes(scores, votes, epsilon, known, classes_alone=self._job.output == "classes")

    @override
    def predictions(self) -> Predicted:
        prepared = "" if self._order is None else self._start
        return replace(super().predictions(), classes_alone=self._job.output == "classes", prepared=prepared)

    @override
    def judge(self, found: Tensor | None) -> None:
        assert found is not None
        assert self._own.judged is not None
        assert self._own.judged_labels is not None
        self._right = int(found) / most_right(self._own.judged_labels, self._job.train.select_by)

    @override
    def calibration(self, probabilities: Tensor) -> Calibration | None:
        """Calibrate where margins are opened; None with ``output: classes``, which say nothing of confidence."""
        judges = self._job.output == "margins" and self._objective.classes
        return super().calibration(probabilities) if judges else None

    @override
    def scores(self, *, everything: bool = False) -> Scores:
        """Scores: in training the one number revealed; else by own labels, rankings only if margins are opened.

        All values are None where only named nodes are predicted, or there are no labels.
        """
        if self._learns:
            name = "val_auc" if self._job.train.select_by == "auc" else "val_accuracy"
            return _OneNumber(CLASS_MEASURES, math.nan, 0.0, {name: self._right})
        names = ["train_accuracy", "val_accuracy", "test_accuracy", "val_f1", "test_f1"] + ["stacked"] * self._stacks
        ranks = [f"{split}_{name}" for name in ("auc", "ap") for split in ("val", "test")]
        if self.predicted is not None or not self._objective.classes:  # named nodes alone, or no labels
            return Scores(CLASS_MEASURES, math.nan, math.nan, dict.fromkeys([*names, *ranks]))
        found = self._objective.score(self.logits.detach(), everything=everything)
        if self._stacks:
            found = replace(found, values={**found.values, "stacked": float(len(self._stacking.weights) > 0)})
        if self._job.output == "margins":
            return found
        return replace(found, values={**found.values, **dict.fromkeys(name for name in ranks if name in found.values)})
