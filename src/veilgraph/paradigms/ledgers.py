"""A party's privacy ledger in its part of a run: opened for a piece of work, and summed up after it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from veilgraph.core.config import JobSettings
from veilgraph.core.randomness import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.releases import RELEASE
from veilgraph.paradigms.run_directory import PartyStore, Record
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.plan import plan
from veilgraph.privacy.publish import Publisher

LEDGER: Final = "ledger.jsonl"
LEDGER_SUMMARY: Final = "ledger.json"


@contextmanager
def publisher_of(
    store: PartyStore, settings: JobSettings, graph: PartyGraph | None, limit: float | None, *, begun: bool
) -> Iterator[Publisher | None]:
    """A holder's publisher with its ledger open; None in a job without differential privacy, and at the server.

    Args:
        store: of the party.
        settings: the job.
        graph: the party's; None at the server.
        limit: the largest total ε that the party itself accepts, beside the job's budget.
        begun: whether the run has begun before, so that a ledger must be there if anything was kept of it.

    Raises:
        RunError: the ledger is missing, damaged or of another job.
    """
    plan_ = None if graph is None else plan(settings, graph.party, graph.common)
    if plan_ is None:
        yield None
    elif plan_.multiplier == 0 and plan_.releases:  # ε = ∞: nothing that a ledger could hold
        with Publisher(plan_, None, system_secrets) as publisher:
            yield publisher
    else:
        budgets = [budget for budget in (plan_.settings.epsilon_total, limit) if budget is not None]
        trained = begun and bool(store.epochs() or store.model_path.is_file())
        released = (store.path / RELEASE).is_file()  # all that a holder keeps that releases once
        with (
            Ledger.open(
                store.path / LEDGER,
                plan_.settings.delta,
                min(budgets, default=None),
                job=settings.hash(),
                expected=trained or released,
            ) as ledger,
            Publisher(plan_, ledger, system_secrets) as publisher,
        ):
            yield publisher


def spent(publisher: Publisher) -> Record:
    """What a party's releases come to, as JSON; an infinite ε is null."""
    privacy, so_far = publisher.plan.settings, publisher.spent()
    return {
        "releases": dict(so_far.releases),
        "epsilon_release": _finite(so_far.epsilon_release),
        "epsilon_total": _finite(so_far.epsilon_total),
        "delta": privacy.delta,
        "unit": privacy.unit,
        "neighbours": privacy.relation,
        "budget": _finite(publisher.budget),
    }


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
