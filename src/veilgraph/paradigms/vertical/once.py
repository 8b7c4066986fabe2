"""``privacy.schedule: once``: every other holder releases its rows a single time, and the label holder learns alone.

Where the job says so they also give it their columns, as which it then has them.

Nothing leaves the label holder. What it was given is kept, so that later sessions on the same data release nothing:
every holder numbers its releases, and a new alignment has a new one. No value of its data decides it.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import BudgetSpent
from veilgraph.core.types import PartyId
from veilgraph.graph.features import choose_rows
from veilgraph.graph.ordered import in_order
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.mask import PairwiseMasks
from veilgraph.nn.combine.strategy import build_combine
from veilgraph.paradigms.vertical.released import (
    embedding_to_release,
    off_the_ring,
    sums_to_release,
)
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.degree import too_many_neighbours
from veilgraph.protocol.agreement import Hello, check_new_release, room_said
from veilgraph.protocol.columns import send_columns
from veilgraph.protocol.cut import HolderCut, ServerCut
from veilgraph.protocol.releases import KeptRelease
from veilgraph.protocol.resumption import Point, Start, alone
from veilgraph.protocol.role import IdleRole, Session
from veilgraph.protocol.stated import agree_within

ROUND: Final = 1
"""Of the one release."""


class OnceRole(IdleRole, ABC):
    """A party of such a job.

    Attributes:
        release_number: of the release that this session worked with, known once set up.
        is_new: whether that release was made in this session.
    """

    def __init__(self, session: Session, graph: PartyGraph | None) -> None:
        super().__init__(session)
        self._kept = None
        if graph is not None:
            graph.validate()
            self._kept = KeptRelease(session.keeper, session.alignment, graph)
        self.release_number = 0
        self.is_new = False
        job = session.settings
        self._strategy = build_combine(vertical(job).model.combine)
        self._width = self._strategy.output_dim(vertical(job).released_dim, len(job.publishing))

    def _agree(self, nodes: int, affordable: int | None = None, refuses: str = "") -> dict[PartyId, Hello]:
        """Nobody states checkpoints: only the label holder has any, and how far it came depends on its labels."""
        session = self.session
        mine = Hello(
            job=session.settings.hash(),
            nodes=nodes,
            features=self._stated_columns(),
            alignment=session.alignment,
            refuses=session.refuses or refuses,
            steps=room_said(affordable),
            release=self._newest(),
            restarts=session.restarts,
        )
        hellos = agree_within(session, mine)
        numbers = {hellos[holder].release for holder in session.holders}
        held = numbers.pop() if len(numbers) == 1 else 0
        self.is_new = held <= 0
        if self.is_new:
            check_new_release(hellos)
        self.release_number = held if held > 0 else 1 + max(abs(hellos[holder].release) for holder in session.holders)
        spent = [holder for holder in session.settings.publishing if hellos[holder].steps == 0]
        if self.is_new and spent:
            raise BudgetSpent(
                f"a new release is needed and the budget of {', '.join(spent)} has no room for one; allow a larger "
                "privacy.epsilon_total in a new run, or leave room for predictions with privacy.predictions; or, where "
                "it is what was ever released (veilgraph budget JOB --party), a larger limits.max_epsilon there, or "
                "protect what that is about (privacy.unit)",
                code="no-room",
            )
        return hellos

    def _newest(self) -> int:
        """Number of its newest release, negative if that is of another alignment, 0 for none."""
        return 0 if self._kept is None else self._kept.number

    def _stated_columns(self) -> int:
        """How many columns it would give the label holder."""
        return 0

    @override
    def keep(self) -> None:
        if self.is_new and self._kept is not None:
            self._kept.replace(self.release_number, self._given())

    def _given(self) -> Mapping[str, Tensor]:
        """What the party was given of the release."""
        return {}


class ReleasingHolder(OnceRole):
    """Projects its features with fixed random weights, propagates over its own edges, and releases the rows.

    Args:
        session: of this party, with its publisher.
        graph: its own data, validated.
    """

    trains = False

    def __init__(self, session: Session, graph: PartyGraph) -> None:
        super().__init__(session, graph)
        self.graph = graph

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, job = self.session, self.session.settings
        refuses = too_many_neighbours(job.degree_rule(session.link.party), self.graph) or off_the_ring(job, self.graph)
        self._agree(self.graph.common, session.publisher.affordable_releases(), refuses)
        if not self.is_new:
            return alone([], session.nonce())
        if vertical(job).gives_columns:
            features = choose_rows(self.graph.features, torch.arange(self.graph.common)).to(session.dtype)
            send_columns(session.link, job.data.label_party, features)
        masks = None
        if job.is_masked:
            masks = PairwiseMasks.agree(
                session.link, job.publishing, session.secrets, rounding_key=session.rounding_key
            )
        cut = HolderCut(session.link, masks, vertical(job).model.combine.bits, session.dtype, session.publisher)
        graph, places = self._ordered()
        if job.privacy is not None and job.privacy.aggregation is not None:
            released = cut.release_sums(*sums_to_release(graph, session), self.graph.common)[places]
        else:
            rows = embedding_to_release(graph, session)[places]
            release = cut.release(0)
            released = rows if release is None else release(rows)
        cut.publish(0, ROUND, released / vertical(job).sent_divisor)
        return alone([], session.nonce())

    @override
    def _stated_columns(self) -> int:
        return self.graph.num_features if vertical(self.session.settings).gives_columns else 0

    def _ordered(self) -> tuple[PartyGraph, Tensor]:
        """The graph in the publisher's order of the nodes, so that the same data are the same bits in every job.

        Returns:
            The graph, and Tensor[C] int64, where in it the common nodes are.
        """
        order, graph = self.session.publisher.order, self.graph
        if order is None:
            return graph, torch.arange(graph.common)
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        return in_order(graph, order), places[: graph.common]


class ReleaseServer(OnceRole):
    """Adds up, or joins, what the holders released, and passes it on."""

    trains = False

    def __init__(self, session: Session) -> None:
        super().__init__(session, None)

    @override
    def setup(self, held: Sequence[Point]) -> Start:
        session, job = self.session, self.session.settings
        hellos = self._agree(0)
        if self.is_new:
            shape = (hellos[session.holders[0]].nodes, vertical(job).released_dim)
            cut = ServerCut(
                session.link,
                job.publishing,
                masked=job.is_masked,
                bits=vertical(job).model.combine.bits,
                dtype=session.dtype,
            )
            linear = self._strategy.linear
            pieces = [cut.total(0, ROUND, shape)] if linear else cut.each(0, ROUND, shape)
            combined = self._strategy.merge(pieces) / vertical(job).left_divisor
            cut.send_combined(0, ROUND, combined, to=[job.data.label_party])
        return alone([], session.nonce())
