"""The semi-honest server: dealer, COMBINE and the deep layers (VFGNN CG2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

from torch import Tensor
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.product import Dealer, Direction
from veilgraph.nn.layers import handed
from veilgraph.paradigms.vertical.network import ServerNetwork
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.agreement import Hello, Point, Start, agreed_start
from veilgraph.protocol.bounds import agree_within_bounds
from veilgraph.protocol.cut import ServerCut, gradient_of, leaf
from veilgraph.protocol.role import PartyModel, Role, RoleContext

P = ParamSpec("P")


class Background:
    """What the server does beside its passes, one piece of work after another on a thread of its own."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="dealer")
        self._unfinished: list[Future[object]] = []

    def submit(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Has ``work`` done when all that was given before is."""
        self._unfinished.append(self._executor.submit(work, *args, **kwargs))

    def check(self) -> None:
        """Raises the error of a piece of work that has failed since the last check, the first of several."""
        finished = [future for future in self._unfinished if future.done()]
        self._unfinished = [future for future in self._unfinished if future not in finished]
        for future in finished:
            future.result()

    def close(self) -> None:
        """Waits for all that was given."""
        self._executor.shutdown(wait=True)


class Server(Role):
    """Sees combined (or, where the job says so, single) embeddings and their gradients; deals masks it never uses."""

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        job = vertical(session.settings)
        self._model, combine = job.model, job.model.combine
        holders, dtype = len(session.holders), session.dtype
        network = ServerNetwork(self._model, holders, session.streams, dtype, job.left_divisor)
        self._network = network.to(session.device)
        self.model = PartyModel(session, {"server": self._network})
        self._cut = ServerCut(
            session.link,
            session.holders,
            masked=combine.is_masked,
            bits=combine.bits,
            dtype=session.dtype,
            device=session.device,
        )
        self._weight_total: Tensor | None = None
        self._publishes_once = job.publishes_once
        self._pieces: list[list[Tensor]] = []
        self._sent: list[Tensor] = []
        self._dealer: Dealer | None = None
        self._background = Background()

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session = self.session
        mine = Hello(
            job=session.settings.hash(),
            checkpoints=list(held),
            restarts=session.restarts,
            nonce=session.nonce(),
            alignment=session.alignment,
        )
        hellos = agree_within_bounds(session, mine)
        start = agreed_start(session.link.party, hellos)
        self.allow_steps(hellos)
        self.nodes = nodes = hellos[session.holders[0]].nodes
        if self._network.combine.needs_weight:
            self._weight_total = self._cut.weight_total(nodes).clamp_min(1e-12)
        if self._model.initial.method == "collaborative":
            features = {holder: hellos[holder].features for holder in session.holders}
            dim = self._model.dim
            self._dealer = Dealer(session.link, features, nodes, dim, session.secrets, device=session.device)
            self._dealer.send_seeds()
            self._deal(Direction.FORWARD, 0)
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        has_changed = self._embeds_now()
        self._deal_ahead(has_changed=has_changed)
        generator = self._dropout(epoch)
        rounds, weight_total = self._model.rounds, self._weight_total
        self._shape = (self.nodes, self._model.dim)
        if self.batch is not None:
            self._shape = (len(self.batch.rows), self._model.dim)
            weight_total = None if weight_total is None else weight_total[self.batch.rows]
        is_new, before = has_changed or not self._publishes_once, self._pieces
        self._pieces, self._sent = [], []
        for round_ in range(1, rounds + 1):
            published = self._published(step, round_) if is_new else before[round_ - 1]
            pieces = [leaf(piece) for piece in published]
            self._pieces.append(pieces)
            combined = self._network.merge(pieces, weight_total)
            if round_ < rounds:
                if is_new:
                    self._cut.send_combined(step, round_, combined)
            else:
                combined = self._network.deep(combined, generator)
                self._cut.send_combined(step, round_, combined, to=[self.session.settings.data.label_party])
            self._sent.append(combined)

    def _published(self, step: int, round_: int) -> list[Tensor]:
        if self._network.combine.linear:
            return [self._cut.total(step, round_, self._shape)]
        return self._cut.each(step, round_, self._shape)

    @override
    def backward(self, step: int) -> None:
        label_party = self.session.settings.data.label_party
        shape = tuple(self._sent[-1].shape)
        gradient = receive_as(self.session.link, label_party, Tag(Kind.GRADIENT, step), shape, self.session.dtype)
        gradient = gradient.to(self.session.device)
        for round_ in range(self._model.rounds, 0, -1):
            if round_ < self._model.rounds:
                gradient = self._cut.gradient_total(step, round_, self._shape)
            backward(handed([self._sent[round_ - 1]], [gradient]))
            self._cut.send_gradients(step, round_, [gradient_of(piece) for piece in self._pieces[round_ - 1]])
        self._changed()

    @override
    def close(self) -> None:
        self._background.close()

    def _deal_ahead(self, *, has_changed: bool) -> None:
        """While the holders use one product, deals the backward product of this step and the next forward one."""
        self._background.check()
        if has_changed and self._learns:
            self._deal(Direction.BACKWARD, self.embed_step)
            self._deal(Direction.FORWARD, self.embed_step + 1)

    def _deal(self, direction: Direction, step: int) -> None:
        if self._dealer is not None:
            self._background.submit(self._traced_deal, self._dealer, direction, step)

    def _traced_deal(self, dealer: Dealer, direction: Direction, step: int) -> None:
        with self.session.trace.span(f"deal {direction.name.lower()}", step=step):
            dealer.deal(direction, step)
