"""What a sealed job with ``privacy`` releases: noisy votes over other holders' edges, and nothing else of these edges.

The label holder's own edges, and everybody's columns, are computed on as they are. Of the other holders' edges nothing
is used but votes: with y_u the class that the model, trained until then without these edges, takes node u for,

    H = Σ_i A_i·Y + noise,   Y = one-hot rows of y,   A_i(v, u) = 1 where holder i records an edge from u to v, else 0,

summed over all holders i but the label holder, noise N(0, σ²) on each of the N·C entries, drawn by the dealer. What is
trained and predicted after that is computed from H, from columns, from labels and from the label holder's edges.

*One edge* is everything that one holder i records between two nodes a and b: added, removed or replaced. Y depends on
no edge of holder i, so it is the same. A_i differs at (a, b) and (b, a) alone, each by 1 at most, so H differs in row a
by at most row y_b and in row b by at most row y_a, and these have length 1: in the Frobenius norm by **√2** at most,
whatever the degrees are. That is one hop of aggregation perturbation (Sajadmanesh, Shamsabadi, Bellet & Gatica-Perez
2023, GAP) over rows that are exactly one-hot, and ``hop_sensitivity.aggregation_sensitivity`` of one hop. What others
record of the same two nodes is other data, theirs, and paid for by them.

The label holder is the only one that anything is opened to, so its own edges need no noise against it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from veilgraph.core.types import PartyId
from veilgraph.privacy.hop_sensitivity import rows_moved, sensitivity_of
from veilgraph.privacy.plan import Plan

if TYPE_CHECKING:
    from veilgraph.paradigms.sealed.settings import SealedJob

_SHRINKS: Final = 0.1
"""Of votes without noise, beside columns of rows of length 1."""


def release_plan(job: SealedJob, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What is released of a holder's edges; None without differential privacy, and at the server.

    Args:
        job: validated.
        party: a holder, or the server. The label holder's edges are told to nobody, so it pays for nothing.
        nodes: common to all holders, where that is known.
    """
    privacy = job.privacy
    if privacy is None or party not in job.data.names:
        return None
    pays = party != job.data.label_party
    rows, moved = rows_moved(privacy), sensitivity_of(privacy)
    return Plan(
        party, privacy, MappingProxyType({}), int(pays), 0, rows, nodes=nodes, hops=1, moved=moved, own_rows=False
    )


def deviation_of(job: SealedJob, nodes: int | None) -> float | None:
    """σ of the noise on one count of votes; 0: there is none, None: nor are there votes."""
    plans = (release_plan(job, party, nodes) for party in job.publishing)
    return next((plan.multiplier * plan.settings.clip for plan in plans if plan is not None), None)


def shrink(deviation: float) -> float:
    """What votes are multiplied by before they are trained on, so that noise does not outweigh columns.

    0.1/(1 + σ/2)²: chosen by validation accuracy on Cora; it depends on the noise alone, which is public.
    """
    return _SHRINKS / (1 + deviation / 2) ** 2
