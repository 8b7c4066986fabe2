"""What a party file's ``limits`` say of embeddings that are published of its tables.

``max_epsilon``, ``max_delta``, ``epsilon_unit``, ``epsilon_neighbours`` and ``leakage`` are asked about; all others are
of jobs with other parties, which an embedding job has none of.
"""

from __future__ import annotations

from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.embedding.settings import EmbedJob
from veilgraph.privacy.lifetime.ledger import Lifetime
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.run.lifetimes import lifetime_of

_PUBLISHED: Final = "output-embeddings"
"""The name in ``leakage`` of embeddings that whoever is given them predicts from."""


def lifetime_of_job(job: EmbedJob) -> Lifetime | None:
    """The ledger of all that was ever released of the job's tables; None where it pays nothing, or has no party file.

    Raises:
        ConfigError: the party file breaks a rule, or its limits do not allow the job's method.
        RunError: as ``lifetime_of``.
    """
    path = job.data.party
    if path is None:
        return None
    organisation = Organisation(read_party_settings(path), path.absolute().parent)
    check_method(job, organisation.settings.limits)
    return lifetime_of(organisation) if job.method.kind.is_private else None


def check_method(job: EmbedJob, limits: LimitSettings) -> None:
    """Refuses a method of which a limit says no, whatever was released before.

    What a release may cost, and what it is about, is for the ledger to say; what it bounds needs no name in
    ``leakage``, as in jobs with others.

    Raises:
        ConfigError: without noise though ``max_epsilon`` is set; or without ``max_epsilon`` though embeddings are not
            accepted.
    """
    name = job.method.name
    if limits.max_epsilon is None and _PUBLISHED not in limits.leakage:
        raise ConfigError(
            f"limits.leakage=[{', '.join(limits.leakage)}] and method={name!r} publishes an embedding of every node, "
            f"which no max_epsilon bounds: add {_PUBLISHED}, or set limits.max_epsilon and take method noise",
            key="limits.leakage",
            value=limits.leakage,
        )
    if limits.max_epsilon is not None and not job.method.kind.is_private:
        raise ConfigError(
            f"limits.max_epsilon={limits.max_epsilon:g} and method={name!r} bounds nothing of what its embeddings "
            "tell: take method noise, or remove the limit",
            key="limits.max_epsilon",
            value=limits.max_epsilon,
        )
