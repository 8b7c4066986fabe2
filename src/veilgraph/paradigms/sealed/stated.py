"""What a label holder states is held to the job: rows to train on, and how many nodes it names in a run.

Of named nodes every party counts for itself, before anything of a prediction is opened, and takes part in no more than
the job says: what the label holder learns in all is so many classes, or rows of probabilities, however it chooses
nodes, and whatever it changes between two predictions.
"""

from __future__ import annotations

from typing import Final

from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.keeper import Keeper
from veilgraph.core.types import PartyId
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.protocol.agreement import Hello

_KEPT: Final = "named"
_COUNT: Final = "nodes"


class NamedNodes:
    """One party's count.

    Args:
        job: whose ``named_nodes`` is the most; None: nodes are not named, and nothing is counted.
        keeper: of the party's part of the run.
    """

    def __init__(self, job: SealedJob, keeper: Keeper) -> None:
        self._job, self._keeper = job, keeper

    @property
    def left(self) -> int:
        """How many nodes may still be named.

        Raises:
            RunError: what was kept of the count is damaged.
        """
        kept = self._keeper.get(_KEPT)
        try:
            used = 0 if kept is None else int(kept.facts[_COUNT])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{self._keeper.place(_KEPT)}: damaged ({error}); restore it, for it counts what was predicted"
            ) from error
        return max(0, (self._job.named_nodes or 0) - used)

    def refusal(self, named: int) -> str:
        """Why the label holder's own program does not ask for so many; empty where it may."""
        if not named:
            return (
                f"named_nodes={self._job.named_nodes}: the label holder has named no node for this prediction; let it "
                "name some (veilgraph predict RUN --nodes or --ids, across organisations with --ask)"
            )
        if named > self.left:
            return (
                f"named_nodes={self._job.named_nodes}: {named} nodes are named, and {self.left} are left for this run; "
                "name fewer, or train a new one"
            )
        return ""

    def agreed(self, party: PartyId, named: int, *, trains: bool, nodes: int) -> int | None:
        """How many nodes are predicted in this session, the same at all parties; None: all.

        Args:
            party: the label holder.
            named: what it states.
            trains: whether the session trains, where none are.
            nodes: N.

        Raises:
            ProtocolError: it states more than the job allows this party to take part in, or none.
        """
        if not self._job.predicts_named:
            return None
        low, most = (0, 0) if trains else (1, min(self.left, nodes))
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
        return named

    def use(self, named: int) -> None:
        """Counts so many, before anything of them is opened."""
        used = (self._job.named_nodes or 0) - self.left + named
        self._keeper.put(_KEPT, {}, {_COUNT: used})


def check_learning(job: SealedJob, party: PartyId, stated: Hello) -> None:
    """Holds a label holder to rows to train on, and to judge by where the job does.

    Raises:
        ProtocolError: it states none.
    """
    for name in ("training", *(("validation",) if job.evaluates else ())):
        if not getattr(stated, name):
            raise ProtocolError(
                f"{party} states {name}=0 in its hello of a training; ask {party} what it runs",
                code="stated",
                key=name,
                value=0,
                party=party,
            )
