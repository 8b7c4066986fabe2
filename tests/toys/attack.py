"""An attack, as another package has it: docs/architecture.md says how."""

from __future__ import annotations

import numpy as np

from veilgraph.audit.attack import Attack
from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.mounts.edges import rows_of
from veilgraph.core.types import PartyId


def cosines(evidence: Evidence, case: Case, adversary: PartyId, target: PartyId) -> Outcome:
    """Linked nodes point the same way."""
    rows, asked = rows_of(evidence), case.links(target, adversary)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    scores = (units[asked.pairs[:, 0]] * units[asked.pairs[:, 1]]).sum(axis=1)
    return Outcome(np.asarray(scores, dtype=np.float64), asked.truth, note="A toy's.")


COSINES = Attack("edges", ("embedding",), cosines, blind=True)
