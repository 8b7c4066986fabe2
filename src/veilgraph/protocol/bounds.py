"""What a party may state of itself in a job: agreement, and then every number held to what the job allows.

Others set memory aside, choose scales and count steps by these numbers. Whoever states one that the job does not allow
is named with it, by every party alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.agreement import Hello, Point, Start, agree, agreed_start
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import NO_NUMBERS, paradigm_of
from veilgraph.protocol.role import RoleContext

# How far a holder's release can be ahead of all others': they count up by one, from the largest that anyone states.
MAX_RELEASES_APART: Final = 2**20

_RELEASES: Final = 4  # round of the agreement on perturbed features; that on the rest is 0


def agree_and_check_bounds(session: RoleContext, mine: Hello, *, releases: bool = False) -> dict[PartyId, Hello]:
    """Exchange hellos by ``agree``, and check their numbers; ``releases``: the agreement on perturbed features.

    Raises ``ProtocolError``, which names party, field and value, where a party states what the job does not allow.
    """
    hellos = agree(session.link, session.holders, mine, _RELEASES if releases else 0)
    check_bounds(session.settings, hellos, releases=releases)
    unread = paradigm_of(session.settings).session.unread_bytes(session.settings, hellos)
    if unread is not None:
        session.link.expect(unread)
    return hellos


def agree_on_start(
    session: RoleContext,
    held: Sequence[Point],
    enough: int | None = None,
    **facts: Any,  # noqa: ANN401 - fields of a hello
) -> tuple[dict[PartyId, Hello], Start]:
    """Exchange hellos, this party's with ``facts``; gives all, and the session's start by ``agreed_start``."""
    hello = Hello(
        job=session.settings.hash(), checkpoints=list(held), restarts=session.restarts, nonce=session.nonce(), **facts
    )
    hellos = agree_and_check_bounds(session, hello)
    return hellos, agreed_start(session.link.party, hellos, enough)


def check_bounds(job: JobSettings, hellos: Mapping[PartyId, Hello], *, releases: bool = False) -> None:
    """Hold the numbers in every party's hello to what a job allows; errors as ``agree_and_check_bounds``."""
    for party, hello in hellos.items():
        own = {} if party == SERVER else paradigm_of(job).session.stated(job, party, releases=releases)
        for field, (low, high) in {**NO_NUMBERS, **own}.items():
            value = getattr(hello, field)
            if value is not None and not low <= value <= high:
                raise _misstated(party, field, value, f"from {low} to {high}" if low < high else f"{low}")
        if hello.steps is not None and not _counts_steps(job, party, releases=releases):
            raise _misstated(party, "steps", hello.steps, "null")
        newest = max((epoch for _, epoch, _ in hello.checkpoints), default=0)
        if newest > job.train.epochs:
            raise _misstated(party, "checkpoints", newest, f"at most train.epochs={job.train.epochs}")
        ahead = abs(hello.release) - max(abs(other.release) for name, other in hellos.items() if name != party)
        if ahead > MAX_RELEASES_APART:
            raise _misstated(party, "release", hello.release, f"at most {MAX_RELEASES_APART} above every other party's")


def _counts_steps(job: JobSettings, party: PartyId, *, releases: bool) -> bool:
    """Whether a party may state ``steps``: it pays for what it sends, and so knows how often it can."""
    if releases:
        return party in (*job.duties.releasing, *job.duties.summing)
    return job.training_plan is not None and party in job.duties.publishing


def _misstated(party: PartyId, field: str, value: int, allowed: str) -> ProtocolError:
    """Build the error of a party whose hello has a number that the job does not allow."""
    return ProtocolError(
        f"{party} states {field}={value} in its hello, and this job allows {allowed}; ask {party} what it runs",
        code="stated",
        key=field,
        value=value,
        party=party,
    )
