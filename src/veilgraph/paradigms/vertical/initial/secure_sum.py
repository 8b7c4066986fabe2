"""One h^0 of all holders by a masked sum."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import Kind, Tag
from veilgraph.mpc.mask import sum_among
from veilgraph.paradigms.vertical.initial.individual import Individual
from veilgraph.paradigms.vertical.initial.method import EmbeddingSession, init_std, init_weight
from veilgraph.paradigms.vertical.initial.ranges import SUM_BITS, SUM_REMEDY, check_sum


class SecureSum(Individual):
    """h^0 = Σ_i x^i·W^i by a masked sum; each W^i stays in plaintext at its holder.

    Only the sum, and on the way back the sum of the gradients, is opened among the holders. With two holders each
    can subtract its own part: see docs/threat-model.md.
    """

    def __init__(self, session: EmbeddingSession) -> None:
        super().__init__(session)
        self._session = session
        std = init_std(session.settings, sum(session.features.values()), session.dim)
        party = session.link.party
        check_sum(party, session.matrix, len(session.features), std)
        weight = init_weight(session.streams, party, session.features[party], session.dim, std)
        self.weight.data.copy_(weight.to(session.dtype))

    @override
    def embed(self, step: int, *, learns: bool) -> Tensor:
        return self._sum(super().embed(step, learns=learns), Tag(Kind.MASKED, step), "h0")

    @override
    def learn(self, step: int, gradient: Tensor) -> None:
        super().learn(step, self._sum(gradient, Tag(Kind.MASKED_GRADIENT, step), "h0 gradient"))

    def _sum(self, own: Tensor, tag: Tag, purpose: str) -> Tensor:
        session = self._session
        return sum_among(
            session.link, session.others, session.masks, own, tag, bits=SUM_BITS, purpose=purpose, remedy=SUM_REMEDY
        )
