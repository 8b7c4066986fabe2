"""An attack, as another package has it: docs/guides/extending.md says how."""

import numpy as np

from veilgraph.audit.attack import Attack, AuditContext
from veilgraph.audit.finding import Outcome
from veilgraph.core.types import PartyId
from veilgraph.protocol.evidence import Evidence


def cosines(evidence: Evidence, case: AuditContext, adversary: PartyId, target: PartyId) -> Outcome:
    """Linked nodes point the same way."""
    rows, asked = evidence.matrix, case.links(target, adversary)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    scores = (units[asked.pairs[:, 0]] * units[asked.pairs[:, 1]]).sum(axis=1)
    return Outcome(np.asarray(scores, dtype=np.float64), asked.truth, note="A toy's.")


COSINES = Attack("edges", ("embedding",), cosines, blind=True)
