"""Our attacks, held to what all of them promise."""

from __future__ import annotations

from veilgraph_testing.attack import AttackConformance

from veilgraph.protocol.job import ATTACKS

OF_A_RUN = {
    "link-influence": "it asks the trained network; tests/audit/test_twin.py",
    "known-weights": "it computes initial weights anew; tests/audit/attacks/test_known_weights.py",
    "reconstruction": "opened h0 span the features or do not; tests/audit/attacks/test_reconstruction.py",
    "feature-similarity": "it takes steps and updates of h0; tests/audit/attacks/test_reconstruction.py",
    "attribute-release": "it reads messages; tests/audit/test_audit_paradigms.py",
    "membership-lira-online": "it knows what models say of members; tests/audit/attacks/test_online_lira.py",
}
"""Attacks on what only a run has, which a leak that is made up would not be like."""
GRANTED = {"link-supervised": 0.65}
"""Half of the pairs are known, which tells whose nodes have many links."""

for name in ATTACKS.own:
    if name not in OF_A_RUN:
        words = "".join(part.title() for part in name.split("-"))
        said = {"name": name, "sort": ATTACKS[name].sorts[0], "granted": GRANTED.get(name, 0.5)}
        globals()[f"Test{words}"] = type(f"Test{words}", (AttackConformance,), said)
