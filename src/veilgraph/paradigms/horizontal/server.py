"""The semi-honest server of a horizontal job: aggregates over holders, updates globally, deals for secure maxima."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.autograd import backward
from typing_extensions import override

from veilgraph.core.types import Kind, Tag
from veilgraph.link.collectives import receive_as
from veilgraph.mpc.compare import MaxServer
from veilgraph.nn.fixed_input import FixedInput
from veilgraph.nn.handed import handed
from veilgraph.paradigms.horizontal.network import (
    LayeredServer,
    first_is_fixed,
    layer_widths,
    learning_layers,
    published_layers,
)
from veilgraph.paradigms.horizontal.node_lists import receive_nodes, send_places, settle_edges
from veilgraph.paradigms.horizontal.pooling import total
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.unread import unread_bytes_by_rows
from veilgraph.paradigms.vertical.dealing import Background
from veilgraph.protocol.agreement import Hello, agreed_start
from veilgraph.protocol.cut import gradient_of, leaf
from veilgraph.protocol.resumption import Point, Start
from veilgraph.protocol.role import Role, Session
from veilgraph.protocol.stated import agree_within


class HorizontalServer(Role):
    """Sees which hashed nodes each holder knows, and its local embeddings of them or, with ``secure-max``, the maximum.

    Args:
        session: of the server.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._settings = horizontal(session.settings).model
        self._secure: MaxServer | None = None
        self._background = Background()
        self._dealt_steps = 0
        self._first: FixedInput | None = None

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, settings = self.session, self._settings
        mine = Hello(
            job=session.settings.hash(), checkpoints=list(held), restarts=session.restarts, nonce=session.nonce()
        )
        hellos = agree_within(session, mine)
        start = agreed_start(session.link.party, hellos)
        features = hellos[session.holders[0]].features
        self._widths = layer_widths(settings, features)
        self._network = LayeredServer(settings, features, session.streams, session.dtype)
        self._places = receive_nodes(session.link, session.holders)
        largest = max(len(rows) for rows in self._places.rows.values())
        session.link.expect(unread_bytes_by_rows(horizontal(session.settings), largest, self._widths))
        if settings.edges == "deduplicate":
            settle_edges(session.link, session.holders)
        rows, nodes = self._places.rows, self._places.num_nodes
        self._degrees: Tensor | None = None
        if settings.aggregate == "mean":
            tag = Tag(Kind.EMBEDDING, 0, 0)
            degrees = [
                receive_as(session.link, holder, tag, (len(at), 1), session.dtype) for holder, at in rows.items()
            ]
            self._degrees = total(degrees, list(rows.values()), nodes)
        if settings.combine == "secure-max":
            self._order = send_places(session.link, self._places, session.secrets)
            self._secure = MaxServer(session.link, session.holders, session.secrets, session.dtype)
            self._secure.send_seeds()
            self._deal(until=0)
        return start

    @override
    def forward(self, step: int, epoch: int | None) -> None:
        self._background.check()
        self._deal(until=step + 1 if self._learns else step)
        generator = self.dropout(epoch)
        self._pieces: dict[int, list[Tensor]] = {}
        self._sent: list[Tensor] = []
        for index in range(len(self._widths)):
            layer = self._network.layer(index)
            output = layer.update(self._input(step, index), generator)
            self._sent.append(output)
            for holder, at in self._places.rows.items():
                self.session.link.send(holder, Tag(Kind.COMBINED, step, index + 1), output.detach().index_select(0, at))

    def _input(self, step: int, index: int) -> Tensor | FixedInput:
        """What a layer's global update is of: the aggregate over the holders, kept where it is fixed."""
        if index == 0 and self._first is not None:
            return self._first
        combined = self._combined(step, index)
        if index == 0 and first_is_fixed(self._settings):
            self._first = FixedInput.compacted(combined, self.session.dtype)
            return self._first
        return combined

    def _combined(self, step: int, index: int) -> Tensor:
        rows, nodes, width = self._places.rows, self._places.num_nodes, self._widths[index].sent
        if self._secure is not None:
            maximum = leaf(self._secure.receive((nodes, width), step, index + 1)[self._order])
            self._pieces[index] = [maximum]
            return maximum
        tag = Tag(Kind.EMBEDDING, step, index + 1)
        pieces = [
            leaf(receive_as(self.session.link, holder, tag, (len(at), width), self.session.dtype))
            for holder, at in rows.items()
        ]
        self._pieces[index] = pieces
        return self._network.layer(index).combine(pieces, list(rows.values()), nodes, self._degrees)

    @override
    def backward(self, step: int) -> None:
        rows = self._places.rows
        for index in reversed(range(len(self._sent))):
            width = self._sent[index].shape[1]
            tag = Tag(Kind.GRADIENT, step, index + 1)
            gradients = [
                receive_as(self.session.link, holder, tag, (len(at), width), self.session.dtype)
                for holder, at in rows.items()
            ]
            gradient = total(gradients, list(rows.values()), self._places.num_nodes)
            output = self._sent[index]
            if output.requires_grad:
                backward(handed([output], [gradient]))
            if index in learning_layers(self._settings):
                self._send_gradients(tag, self._pieces[index])

    def _send_gradients(self, tag: Tag, pieces: list[Tensor]) -> None:
        for number, (holder, at) in enumerate(self._places.rows.items()):
            piece = (
                gradient_of(pieces[0]).index_select(0, at) if self._secure is not None else gradient_of(pieces[number])
            )
            self.session.link.send(holder, tag, piece.contiguous())

    def _deal(self, until: int) -> None:
        """Deals in the background for every step up to ``until`` that was not dealt for."""
        if self._secure is None:
            return
        for step in range(self._dealt_steps, until + 1):
            for index in published_layers(self._settings, step):
                shape = (self._places.num_nodes, self._widths[index].sent)
                self._background.submit(self._secure.deal, shape, step, index + 1)
        self._dealt_steps = max(self._dealt_steps, until + 1)

    @override
    def modules(self) -> dict[str, nn.Module]:
        return {"server": self._network}

    @override
    def close(self) -> None:
        self._background.close()
