"""A party's privacy ledger where it trains privately (``averaging.privacy``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publish_sampled import SampledPublisher
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.privacy.sampled_settings import SampledPlan
from veilgraph.protocol.job import JobSettings
from veilgraph.run.lifetimes import Lasting
from veilgraph.run.run_directory import PartyStore


@contextmanager
def sampled_publisher_of(
    store: PartyStore,
    path: Path,
    settings: JobSettings,
    plan: SampledPlan,
    graph: PartyGraph | None,
    limit: float | None,
    lasting: Lasting | None,
    *,
    begun: bool,
) -> Iterator[Publisher]:
    """Of a holder that trains privately; an open door where there are no labels, which releases nothing.

    Args:
        store: of the party.
        path: of the ledger.
        settings: the job.
        plan: of the job.
        graph: the party's; None at the server.
        limit: the largest total ε that the party itself accepts.
        lasting: what the party has beyond the run: its ledger of all jobs, which is paid first; None for none.
        begun: whether the run has begun before.

    Raises:
        RunError: the ledger is missing, damaged or of another job.
    """
    if graph is None or graph.labels is None:
        yield OPEN
        return
    delta = plan.delta
    budgets = [budget for budget in (plan.settings.epsilon_total, limit) if budget is not None]
    with Ledger.open(
        path,
        delta,
        min(budgets, default=None),
        job=settings.hash(),
        expected=begun and bool(store.epochs() or store.model_path.is_file()),
    ) as ledger:
        account = None if lasting is None else lasting.account(settings, delta)
        yield SampledPublisher(plan, ledger, system_secrets, account)
