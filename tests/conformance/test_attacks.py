"""Our attacks, held to what all of them promise."""

from veilgraph_testing.attack import AttackConformance

from veilgraph.protocol.job import ATTACKS

OF_A_RUN = {
    "link-influence": "it asks the trained network; tests/audit/test_twin.py",
    "known-weights": "it computes initial weights anew; tests/audit/attacks/test_known_weights.py",
    "reconstruction": "opened h0 span the features or do not; tests/audit/attacks/test_reconstruction.py",
    "feature-similarity": "it takes steps and updates of h0; tests/audit/attacks/test_reconstruction.py",
    "attribute-release": "it reads messages; tests/audit/test_audit_paradigms.py",
    "label-symbol": "it reads which edges symbols are of; tests/audit/test_symbols.py",
    "membership-symbol": "likewise; tests/audit/test_symbols.py",
    "membership-lira-online": "it knows what models say of members; tests/audit/attacks/test_membership.py",
}
"""Attacks on what only a run has, which a leak that is made up would not be like."""
GRANTED = {"link-supervised": 0.65}
"""Half of the pairs are known, which tells whose nodes have many links."""
MORE = {"link-combination": ("propagation",)}
"""Sorts of evidence beside the first that an attack reads in another way."""

for name in ATTACKS.own:
    for sort in (ATTACKS[name].sorts[0], *MORE.get(name, ())) if name not in OF_A_RUN else ():
        words = "".join(part.title() for part in (*name.split("-"), *((sort,) if sort in MORE.get(name, ()) else ())))
        said = {"name": name, "sort": sort, "granted": GRANTED.get(name, 0.5)}
        globals()[f"Test{words}"] = type(f"Test{words}", (AttackConformance,), said)
