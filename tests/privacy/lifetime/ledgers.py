"""Small lifetime ledgers."""

from collections.abc import Iterable
from pathlib import Path

from veilgraph.privacy.event import Event, GaussianEvent
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_costs import Keys
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime

NODES = [f"customer {number}" for number in range(20)]
EVENT = GaussianEvent(5.0)
RUN = "ab" * 32


def ledger(folder: Path, budget: Budget | None = None, party: str = "A") -> Lifetime:
    return Lifetime(folder, party, budget or Budget(), Marks(folder.parent / "marks"))


def charge(
    of: Lifetime,
    event: Event = EVENT,
    count: int = 1,
    ids: Iterable[str] = NODES,
    delta: float | None = 1e-5,
    content: str = "",
    keys: Keys | None = None,
) -> None:
    whose = of.keys(ids) if keys is None else keys
    of.charge(event, "embeddings", count, whose, delta=delta, run=RUN, job="job", content=content)


def count_of(of: Lifetime) -> int:
    """Releases that are in it."""
    with of.lines.held():
        return sum(entry.count for entry in of.lines.entries)
