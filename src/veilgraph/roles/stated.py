"""What a party may state of itself in a job: agreement, and then every number held to what the job allows.

Others set memory aside, choose scales and count steps by these numbers. Whoever states one that the job does not allow
is named with it, by every party alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from veilgraph.core.config import JobSettings
from veilgraph.core.errors import ProtocolError
from veilgraph.core.model_settings import MAX_DETECTED_BITS
from veilgraph.core.types import SERVER, PartyId
from veilgraph.roles.agreement import Hello, agree
from veilgraph.roles.role import Session
from veilgraph.roles.unread import unread_bytes

MAX_FEATURES: Final = 2**20
MAX_CLASSES: Final = 2**12
"""Every evaluation of a horizontal job opens C² numbers."""
MAX_RELEASES_APART: Final = 2**20
"""How far a holder's release can be ahead of all others': they count up by one, from the largest that anyone states."""

_RELEASES: Final = 4
"""Round of the agreement on perturbed features; that on the rest is 0."""

_MAX_NODES: Final = 2**32
_MAX_STEPS: Final = 2**32
_NONE: Final = (0, 0)

Range = tuple[int, int]


def agree_within(session: Session, mine: Hello, *, releases: bool = False) -> dict[PartyId, Hello]:
    """As ``agree``, over what a job allows.

    Args:
        session: of this party.
        mine: what this party states.
        releases: whether this is about perturbed features, which is agreed on before the rest.

    Raises:
        ProtocolError: a party states what the job does not allow; it names the party, the field and the value.
        VeilgraphError: as ``agree``.
    """
    hellos = agree(session.link, session.holders, mine, _RELEASES if releases else 0)
    check_stated(session.settings, hellos, releases=releases)
    if session.settings.paradigm != "horizontal":
        session.link.expect(unread_bytes(session.settings, hellos))
    return hellos


def check_stated(job: JobSettings, hellos: Mapping[PartyId, Hello], *, releases: bool = False) -> None:
    """Holds every party to what a job allows.

    Args:
        job: of all parties.
        hellos: of all parties.
        releases: whether they are about perturbed features.

    Raises:
        ProtocolError: as ``agree_within``.
    """
    for party, hello in hellos.items():
        for field, (low, high) in _allowed(job, party, releases=releases).items():
            value = getattr(hello, field)
            if value is not None and not low <= value <= high:
                raise _refused(party, field, value, f"from {low} to {high}" if low < high else f"{low}")
        if hello.steps is not None and not _counts_steps(job, party, releases=releases):
            raise _refused(party, "steps", hello.steps, "null")
        newest = max((epoch for _, epoch, _ in hello.checkpoints), default=0)
        if newest > job.train.epochs:
            raise _refused(party, "checkpoints", newest, f"at most train.epochs={job.train.epochs}")
        ahead = abs(hello.release) - max(abs(other.release) for name, other in hellos.items() if name != party)
        if ahead > MAX_RELEASES_APART:
            raise _refused(party, "release", hello.release, f"at most {MAX_RELEASES_APART} above every other party's")


def _allowed(job: JobSettings, party: PartyId, *, releases: bool) -> dict[str, Range]:
    """Field → smallest and largest number that the party may state."""
    fields = dict.fromkeys(("nodes", "features", "classes", "feature_bits", "release", "steps"), _NONE)
    if party == SERVER:
        return fields
    once = job.privacy is not None and job.privacy.once
    fields["steps"] = (0, _MAX_STEPS)
    if releases or once:
        fields["release"] = (-_MAX_NODES, _MAX_NODES)
    if job.paradigm == "horizontal":
        return {**fields, "features": (1, MAX_FEATURES), "classes": (0, MAX_CLASSES)}
    fields["nodes"] = (1, _MAX_NODES)
    if releases:
        private = job.local.labels
        if party in job.releasing:
            fields["features"] = (1, MAX_FEATURES)
        if private is not None and party == private.holder:
            fields["classes"] = (2, MAX_CLASSES)
    elif job.model.initial.is_joint and not once:
        fields["features"] = (1, MAX_FEATURES)
        if job.model.initial.method == "collaborative":
            bits = job.feature_bits
            fields["feature_bits"] = (0, MAX_DETECTED_BITS) if bits is None else (bits, bits)
    return fields


def _counts_steps(job: JobSettings, party: PartyId, *, releases: bool) -> bool:
    """Whether the party pays for what it sends, and so knows how often it can."""
    if releases:
        return party in job.releasing
    return job.privacy is not None and party in job.publishing


def _refused(party: PartyId, field: str, value: int, allowed: str) -> ProtocolError:
    return ProtocolError(
        f"{party} states {field}={value} in its hello, and this job allows {allowed}; ask {party} what it runs"
    )
