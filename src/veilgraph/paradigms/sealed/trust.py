"""Words for reports on who deals in a job, and who with whom could read what the others have."""

from __future__ import annotations

from typing import Final

from veilgraph.core.text import listed
from veilgraph.paradigms.sealed.settings import SealedJob

PART: Final = ", and deals random numbers"
"""What a holder does as well that deals."""


def is_by_nobody(job: SealedJob) -> bool:
    """Whether two holders make together what others are dealt."""
    return job.trust == "nobody"


def is_by_holder(job: SealedJob) -> bool:
    """Whether a holder deals, and no outsider is trusted."""
    return job.trust == "majority"


def dealing(job: SealedJob) -> str:
    """Say who deals, and with whom that party must not collude."""
    if is_by_nobody(job):
        return (
            f"Nobody deals: {listed(job.data.names)} make by encryption what others are dealt, and neither needs to "
            "trust that the server works with no other"
        )
    if is_by_holder(job):
        return (
            f"{job.dealing_party} deals random numbers for {listed(job.computing)}, and sees nothing of what they send "
            "each other. It must not collude with one of them, nor may these all collude. The server deals nothing"
        )
    return "The server deals random numbers, sees no message between holders, and must not collude with one of them"


def collusion(job: SealedJob) -> str:
    """Say which parties together could read what the others have."""
    if is_by_nobody(job):
        return "The server learns nothing more with either holder, and no holder anything by itself."
    if is_by_holder(job):
        first, second = job.computing[:2]
        pair = f"{first} and {second} together, its edges and which nodes it chooses" if len(job.computing) > 2 else ""
        return (
            f"{job.dealing_party}, which deals, and one other holder together could read everything of all others; "
            f"{listed(job.computing)} together, everything of {job.dealing_party}{'; ' * bool(pair)}{pair}. The server "
            "learns nothing more with any of them, and no holder anything by itself."
        )
    return (
        "Whoever deals the random numbers and one holder together could read everything of all others. All holders "
        "but one together, without it, learn nothing but what they had and are told."
    )


def against(job: SealedJob) -> str:
    """Say against whom ε holds."""
    if is_by_holder(job):
        return f"every other holder by itself, not for who works with {job.dealing_party}, which deals"
    everybody = f"{job.data.label_party} and all other holders together, without the dealer"
    return everybody if job.records is not None else f"{everybody}, which draws the noise"


def dealer_of_noise(job: SealedJob) -> str:
    """Say who draws the noise on votes and knows it."""
    return f"{job.dealing_party}, which deals," if is_by_holder(job) else "the dealer"


def without_bound(job: SealedJob) -> list[str]:
    """Say which parties together no ε bounds."""
    knows = "all masks" if job.records is not None else "the noise"
    limits = [f"Whoever deals knows {knows}: with it, a holder that works together with the dealer has no bound."]
    if is_by_holder(job):
        limits.append(
            f"{listed(job.computing)} together read what {job.dealing_party} has: against all of them it has no bound."
        )
    return limits
