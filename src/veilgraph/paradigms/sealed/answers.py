"""A session that opens, node by node, what a prediction of an ``online`` job kept shares of; the dealer has no part.

That prediction picked all nodes' outputs in an order that the label holder drew, so a position says nothing to anybody
else (``mpc.sealed.picks.Pick``). The label holder asks for positions; every other holder counts them against
``named_nodes``, and then sends its share of their rows. A share of a wire is its mask's, uniform by itself: an answer
opens what ``Machine.reveal`` would have, of these rows alone.

What has been opened the label holder keeps, and asks for no more. A position that was counted is sent again at no cost,
for either end may have been killed between the count and the answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from threading import Condition
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError, LinkTimeout, ProtocolError, RunError
from veilgraph.core.types import SERVER, Kind, Tag
from veilgraph.link.collectives import broadcast, gather, receive_as
from veilgraph.link.mailbox import SLACK_BYTES
from veilgraph.mpc.sealed.correlations import sum_parts
from veilgraph.mpc.sealed.permutations import inverse
from veilgraph.paradigms.sealed.named_nodes import NamedNodes
from veilgraph.paradigms.sealed.program import certain_logits, logits_of
from veilgraph.paradigms.sealed.roles import SHARES
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.protocol.agreement import Hello, Point, Start, agree, agreed_start
from veilgraph.protocol.judge import ANSWERED, Answers, Predicted
from veilgraph.protocol.role import Role, RoleContext

MOST_POSITIONS: Final = 256
"""Of one message."""
_LOOK_S: Final = 1.0
_WAY_OUT: Final = "let the parties predict anew (--work predict)"


class AnsweringDealer(Role):
    """Agrees on the session, and has no part in it."""

    trains = False

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        return _agree(self.session, "", 0, "")

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Do nothing."""

    @override
    def backward(self, step: int) -> None:
        """Do nothing: nothing is learned."""


class AnsweringHolder(AnsweringDealer):
    """Sends its shares of the positions that the label holder asks for: each ``forward`` answers one message.

    Raises ``RunError``: the kept shares, or the count of what was opened, are damaged.
    """

    trains = True

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self._job = sealed(session.settings)
        self._naming, self._learner = NamedNodes(self._job, session.keeper), session.settings.data.label_party
        self._messages, self._prepared = 0, ""
        self._share = torch.empty((0, 1), dtype=torch.int64)
        if (kept := session.keeper.get(SHARES)) is not None:
            self._share, self._prepared = kept.tensors["share"], str(kept.facts["prepared"])

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        """Agree on the prediction whose shares are opened; ``RunError`` where holders kept those of different ones."""
        refuses = "" if self._prepared else f"it has kept no shares of a prediction; {_WAY_OUT}"
        self.session.link.expect(SLACK_BYTES)
        return _agree(self.session, self._prepared, len(self._share), refuses)

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        link, learner = self.session.link, self._learner
        self._messages += 1
        tag = Tag(Kind.POSITIONS, self._messages)
        while not link.comes(learner, tag, _LOOK_S):
            pass
        positions = receive_as(link, learner, tag, (None,), torch.int64)
        self._check(positions)
        self._naming.open(learner, self._prepared, positions)  # on the disk before anything leaves
        link.send(learner, Tag(Kind.SHARE, self._messages), self._share[positions])

    def _check(self, positions: Tensor) -> None:
        """Raise ``ProtocolError`` unless these are some different positions of the order."""
        asked, nodes = positions.tolist(), len(self._share)
        fits = len(set(asked)) == len(asked) and all(0 <= position < nodes for position in asked)
        if not fits or not 1 <= len(asked) <= MOST_POSITIONS:
            raise ProtocolError(
                f"{self._learner} asks for {len(asked)} positions, and a message has 1 to {MOST_POSITIONS} different "
                f"ones from 0 to {nodes - 1}; ask {self._learner} what it runs",
                code="positions",
                value=len(asked),
                party=self._learner,
            )


class AskingHolder(AnsweringHolder, Answers):
    """The label holder: ``ask`` opens nodes' predictions, by the ``forward`` of another thread."""

    def __init__(self, session: RoleContext) -> None:
        super().__init__(session)
        self._bits, self._classes, self._order = 0, 0, torch.empty(0, dtype=torch.int64)
        if (kept := session.keeper.get(SHARES)) is not None:
            self._bits, self._classes = int(kept.facts["bits"]), int(kept.facts["classes"])
            self._order = kept.tensors["order"]
        self._places = inverse(self._order).tolist()
        self._asks = Condition()
        self._wanted: dict[int, None] = {}
        self._failure: BaseException | None = None
        self._counted = set(self._naming.opened(self._prepared).tolist())
        self._left = self._naming.left(self._learner)
        self._nodes = torch.empty(0, dtype=torch.int64)
        self._probabilities = torch.empty((0, self._classes), dtype=torch.float64)
        answered = session.keeper.get(ANSWERED)
        if answered is not None and answered.facts["prepared"] == self._prepared:
            self._nodes, self._probabilities = answered.tensors["nodes"], answered.tensors["probabilities"]
        self._rows = {node: row for row, node in enumerate(self._nodes.tolist())}

    @override
    def ask(self, prepared: str, nodes: Sequence[int], wait_s: float) -> Predicted:
        if prepared != self._prepared:
            words = "there is a newer prediction than the one asked for, or an older one; ask again"
            raise RunError(words, code="other-prediction", value=prepared)
        if unknown := [node for node in nodes if not 0 <= node < len(self._places)]:
            words = f"nodes: {unknown[0]} is not a row of the prediction; give 0 to {len(self._places) - 1}"
            raise ConfigError(words, key="nodes", value=unknown[0])
        deadline = time.monotonic() + wait_s
        with self._asks:
            places = {self._places[node]: None for node in nodes if node not in self._rows}
            new = (self._wanted.keys() | places.keys()) - self._counted
            if len(new) > self._left and not places.keys() <= self._counted | self._wanted.keys():
                refusal = self._naming.refusal(self._learner, len(new))
                raise RunError(refusal, code="used-up", key="named_nodes", value=len(new), party=self._learner)
            self._wanted |= places
            self._asks.notify_all()
            opened = self._asks.wait_for(
                lambda: self._failure is not None or all(node in self._rows for node in nodes),
                deadline - time.monotonic(),
            )
            if self._failure is not None:
                raise RunError(f"the session that opens kept shares has ended: {self._failure}", code="ended")
            if not opened:
                raise LinkTimeout(f"not all holders have answered in {wait_s:g} s; ask again", value=wait_s)
            found = self._probabilities[[self._rows[node] for node in nodes]]
            alone = self._job.output == "classes"
            return Predicted(found, nodes=torch.tensor(list(nodes)), classes_alone=alone, prepared=self._prepared)

    @override
    def fail(self, error: BaseException) -> None:
        with self._asks:
            self._failure = error
            self._asks.notify_all()

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        """Open what is wanted, in one message to each other holder; where nothing is, look whether all are there."""
        with self._asks:
            self._asks.wait_for(lambda: self._wanted or self._failure, _LOOK_S)
            # Sorted: in which order callers asked is nobody else's business.
            positions = torch.tensor(sorted(islice(self._wanted, MOST_POSITIONS)), dtype=torch.int64)
        link, others = self.session.link, [each for each in self.session.holders if each != self._learner]
        width, dtype = self._share.shape[1], self._share.dtype
        if not len(positions):
            for other in others:
                if link.comes(other, Tag(Kind.SHARE, self._messages + 1), 0.0):  # it has failed, or breaks the protocol
                    gather(link, [other], Tag(Kind.SHARE, self._messages + 1), (0, width), dtype)
            return
        self._messages += 1
        broadcast(link, others, Tag(Kind.POSITIONS, self._messages), positions)
        self._naming.open(self._learner, self._prepared, positions)  # while the others do
        with self._asks:
            self._counted |= set(positions.tolist())
            self._left = self._naming.left(self._learner)
        tag = Tag(Kind.SHARE, self._messages)
        for other in others:
            while not link.comes(other, tag, _LOOK_S):  # those who ask give up before
                pass
        shares = gather(link, others, tag, (len(positions), width), dtype)
        self._keep(positions, sum_parts([self._share[positions], *shares.values()]))

    def _keep(self, positions: Tensor, values: Tensor) -> None:
        """Give what was opened to those who asked for it, and save it: a killed session asks again, at no count."""
        found, opened = values.to(torch.float64) * 2.0**-self._bits, self._order[positions]
        logits = logits_of(found) if self._job.output == "margins" else certain_logits(found, self._classes)
        nodes, probabilities = torch.cat([self._nodes, opened]), torch.cat([self._probabilities, logits.softmax(1)])
        with self._asks:
            self._rows |= {node: row for row, node in enumerate(opened.tolist(), len(self._nodes))}
            self._nodes, self._probabilities = nodes, probabilities
            for position in positions.tolist():
                self._wanted.pop(position)
            self._asks.notify_all()
        kept = {"nodes": nodes, "probabilities": probabilities}
        self.session.keeper.put(ANSWERED, kept, {"prepared": self._prepared})


def _agree(session: RoleContext, prepared: str, nodes: int, refuses: str) -> Start:
    """Agree with all parties on whose shares are opened: those kept in the session ``prepared``, of so many nodes."""
    mine = Hello(job=session.settings.hash(), alignment=prepared, nodes=nodes, nonce=session.nonce(), refuses=refuses)
    try:
        hellos = agree(session.link, session.holders, mine)
    except DataError as error:
        raise RunError(f"holders have kept shares of different predictions; {_WAY_OUT}", code="not-prepared") from error
    return agreed_start(session.link.party, hellos)


def answering_role(session: RoleContext) -> Role:
    """Make this party's role in a session that opens kept shares."""
    if session.link.party == SERVER:
        return AnsweringDealer(session)
    asks = session.link.party == session.settings.data.label_party
    return (AskingHolder if asks else AnsweringHolder)(session)
