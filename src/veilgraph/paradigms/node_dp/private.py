"""What a job of paradigm node-dp with ``privacy`` lets its learner know of its own edges: noisy sums, made once.

Without it the learner computes over its edges as they are, and its model, predictions and embeddings may tell of them.
With it nothing is computed over an edge but, for k = 1 … K,

    Y_k = A·X_{k−1} + noise,   A of ``privacy.aggregation.pair_matrix``, rows of X_{k−1} of length 1,

where X_{k−1} is what the learner takes each node for: its label where it learns from that, else the probabilities that
a network gives it, which was trained on what nodes released, on the learner's own columns and labels, and on Y_1, …,
Y_{k−1}. All else that the learner computes follows from these and from nothing of an edge (Sajadmanesh & Gatica-Perez,
"ProGAP: Progressive graph neural networks with differential privacy guarantees", WSDM 2024, whose rows are encodings).

*Sensitivity.* X_0 is made of no edge, and X_k of X_0's data and of earlier releases, so all rows are the same in both
worlds: ``hop_sensitivity`` with public rows. *One edge*: √(2K), whatever the degrees are. *One node's edges*: √(K·(D +
B²)) absent and √(K·(2D + 4B²)) replaced. The unit ``node-edges`` is about a node's columns at the learner as well, so
these are then not used at all. Labels are the same in both worlds: no ε here is about them.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from veilgraph.core.types import PartyId
from veilgraph.privacy.hop_sensitivity import rows_moved, sensitivity_of
from veilgraph.privacy.plan import Plan

if TYPE_CHECKING:
    from veilgraph.paradigms.node_dp.settings import NodeDpJob


def release_plan(job: NodeDpJob, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What the learner is given of its own edges; None without noise on these, and at all other parties.

    Args:
        job: validated.
        party: a holder, or the server.
        nodes: common to all holders, where that is known.
    """
    privacy = job.privacy
    if privacy is None or privacy.aggregation is None or party not in job.summing:
        return None
    rows, moved = rows_moved(privacy), sensitivity_of(privacy, public_rows=True)
    return Plan(
        party,
        privacy,
        MappingProxyType({}),
        1,
        0,
        rows,
        nodes=nodes,
        hops=privacy.aggregation.hops,
        moved=moved,
        own_rows=False,
        single="sums",
    )
