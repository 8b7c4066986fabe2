"""A test of what a run claims, as a finding."""

from __future__ import annotations

from veilgraph.audit.finding import Finding, Secret
from veilgraph.audit.statistics import Interval, Verdict
from veilgraph.core.types import PartyId
from veilgraph.protocol.audit_settings import Check


def claim_finding(
    check: Check, adversary: PartyId, target: PartyId, secret: Secret, evidence: str, p_value: float, note: str
) -> Finding:
    """The level is that of the audit's tests together, and set once all of them are there."""
    judged = Verdict(found=False, auc=0.5, against=0.5, p_value=p_value, level=0.0)
    value = Interval(p_value, p_value, p_value, 0.95)
    return Finding(
        adversary, target, secret, check, evidence,
        permitted=False, measure="p-value", value=value, verdict=judged, note=note,
    )  # fmt: skip
