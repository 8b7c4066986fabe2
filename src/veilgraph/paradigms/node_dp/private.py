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
from veilgraph.privacy.settings import PrivacySettings

if TYPE_CHECKING:
    from veilgraph.paradigms.node_dp.settings import NodeDpJob


def check_private(job: NodeDpJob, privacy: PrivacySettings) -> None:
    """Refuses what such a job has no noise for, or would not use.

    Raises:
        ValueError: it names the setting, its value, the rule and the way out.
    """
    model = type(job.model).model_fields
    rules = (
        ("privacy.schedule", privacy.schedule, "once", "sums over the learner's edges are noised a single time"),
        ("privacy.canaries", privacy.canaries, 0, "nothing is sent of the learner's edges that an audit could read"),
        ("model.hops", job.model.hops, model["hops"].default, "hops over edges are privacy.aggregation.hops"),
        ("model.aggregate", job.model.aggregate, model["aggregate"].default, "neighbours are added up, and noised"),
    )
    for name, value, needed, why in rules:
        if value != needed:
            raise ValueError(f"{name}={value!r} with privacy in a job of paradigm node-dp: {why}; leave it out")
    if privacy.unit not in ("edge", "node-edges"):
        raise ValueError(
            f"privacy.unit={privacy.unit!r} in a job of paradigm node-dp, where noise is on the learner's edges: "
            "choose edge or node-edges (what others' nodes release has its ε in release.features)"
        )
    if job.release.labels is not None:
        raise ValueError(
            "release.labels with privacy in a job of paradigm node-dp: labels that were perturbed are averaged over "
            "the learner's edges, which would have no noise; leave one of both out"
        )
    if privacy.aggregation is None:
        raise ValueError(
            "privacy.aggregation=null in a job of paradigm node-dp: its noise is in every hop; set privacy.aggregation "
            "to {}"
        )
    privacy.aggregation.check_opinions("a job of paradigm node-dp")


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
