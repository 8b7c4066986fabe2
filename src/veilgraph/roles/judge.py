"""A party that has labels, and so judges how well the others and it are doing."""

from __future__ import annotations

from abc import ABC

from torch import Tensor

from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.roles.role import Role
from veilgraph.roles.scores import Objective, Scores


class Judge(Role, ABC):
    """The label holder of any schedule.

    Attributes:
        graph: its own data.
        logits: Tensor[C, classes] of the last forward pass.
        loss: of the last training pass.
    """

    graph: PartyGraph
    logits: Tensor
    loss: float
    _objective: Objective

    @property
    def reports(self) -> bool:
        """Whether this party writes the metrics and the result down."""
        return True

    def audience(self) -> list[PartyId]:
        """Who has to be told of every judgement."""
        return [party for party in (*self.session.holders, SERVER) if party != self.session.link.party]

    def scores(self, *, everything: bool = False) -> Scores:
        """How the logits of the last forward pass do on each split; AUC and F1 as ``Objective.score`` says."""
        return self._objective.score(self.logits.detach(), everything=everything)
