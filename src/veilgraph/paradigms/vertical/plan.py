"""What one holder of a vertical job will publish."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from veilgraph.core.types import PartyId
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.privacy.hop_sensitivity import rows_moved, sensitivity_of
from veilgraph.privacy.plan import Channel, Plan
from veilgraph.privacy.sensitivity import rows_changed_by_edge, rows_changed_by_node
from veilgraph.privacy.settings import PrivacySettings
from veilgraph.protocol.job import JobSettings

_ANY_NUMBER: Final = 1 << 62
"""Of nodes: a plan does not depend on how many there are."""


def plan(job: JobSettings, party: PartyId, nodes: int | None = None) -> Plan | None:
    """What a holder will publish; None in a job without differential privacy, and at the server, which has no data.

    Every training step publishes, the embeddings of each round and the gradients of each but the last; the label holder
    those of z_L as well. Where h^0 is computed together, every holder's embeddings, and gradients of rounds, depend on
    all holders' features: those of the others count as releases of this holder's data (their noise is as much, and
    drawn by themselves). What others make of z_L does not: it was released. With ``once`` every holder but the label
    holder releases for inference alone: training needs no more. Where noise is made jointly, all add as much as the
    label holder needs, which releases a gradient more in every step.

    Args:
        job: validated.
        party: a holder, or the server.
        nodes: common to all holders, where that is known: no more rows than that can change, and a δ that the job
            leaves open follows from it.
    """
    model, privacy = vertical(job).model, job.privacy
    rounds = model.rounds
    if privacy is None or party not in job.data.names:
        return None
    labelled = party == job.data.label_party
    if privacy.once:
        step, inference, steps, others = dict[Channel, int](), int(not labelled), 0, 0
    else:
        step = {"embeddings": rounds, "gradients": rounds - 1 + int(labelled)}
        if others := len(job.data.names) - 1 if model.initial.is_joint else 0:
            step["others"] = others * (2 * rounds - 1)
        inference, steps = rounds * (1 + others), job.train.epochs
    rows = _rows(privacy, model.local.hops, _ANY_NUMBER if nodes is None else nodes)
    hops, moved = (model.local.hops if privacy.once else None), sensitivity_of(privacy)
    if privacy.aggregation is not None:
        hops = privacy.aggregation.hops
    joint, alone = vertical(job).joint_noise, int(labelled and not privacy.once)
    return Plan(
        party,
        privacy,
        MappingProxyType(step),
        inference,
        steps,
        rows,
        others,
        nodes,
        hops,
        moved,
        joint=joint,
        alone=alone,
        spare=steps * (1 - alone),
        is_summed=vertical(job).sums_releases,
    )


def _rows(privacy: PrivacySettings, hops: int, nodes: int) -> int:
    if privacy.unit == "row":
        return 1
    if privacy.aggregation is not None:
        return rows_moved(privacy)
    count = rows_changed_by_edge if privacy.unit == "edge" else rows_changed_by_node
    return max(1, count(privacy.degree_bound, hops, nodes))
