"""How many nodes a label holder may still name: counted by every party for itself, before a prediction is opened.

A party takes part in no more than the job says: what the label holder learns in all is so many classes, or rows of
margins, however it chooses nodes, and whatever it changes between two predictions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.tensor_file import Keeper
from veilgraph.core.types import PartyId
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.agreement import Hello

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
