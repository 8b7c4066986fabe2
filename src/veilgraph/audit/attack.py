"""An attack: what an adversary makes of one kind of evidence.

``ATTACKS`` finds one by its name. A package adds its own, an ``Attack``, by an entry point of
the group ``veilgraph.attacks``; ``veilgraph.testing.attack`` holds it to what all of them promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from veilgraph.audit.case import Case
from veilgraph.audit.evidence import Evidence, Sort
from veilgraph.audit.finding import Outcome, Secret
from veilgraph.core.registry import Registry
from veilgraph.core.types import PartyId
from veilgraph.protocol.audit_settings import ATTACKS as _REGISTERED

Mount = Callable[[Evidence, Case, PartyId, PartyId], Outcome]
"""(evidence, case, adversary, target) → what the attack says; ``DataError`` where there is too little to say it."""


@dataclass(frozen=True)
class Attack:
    """An attack on what a party is meant to have.

    Attributes:
        secret: what it is after.
        sorts: of evidence that it is mounted on.
        mount: mounts it.
        of_labels: whether the target must have labels.
        blind: whether its scores need nothing but the view, so that it can be mounted where no truth is.
        of_all_pairs: whether it compares each node with each, which takes few nodes.
    """

    secret: Secret
    sorts: tuple[Sort, ...]
    mount: Mount
    of_labels: bool = False
    blind: bool = False
    of_all_pairs: bool = False


ATTACKS: Final[Registry[Attack]] = _REGISTERED
"""The attacks by name. Settings check names against the same registry, which they hold untyped to import no audit."""
