"""From which checkpoint a training goes on, and by whose leave it begins again where the parties have none in common.

A checkpoint is a point: its epoch, and which training session saved it. Shares of two sessions do not fit each other,
so that an epoch alone does not say which checkpoint is meant. All parties tell each other the points they would go on
from. The newest that all tell is where the job goes on. A party tells no point behind one that it knows all to have.
Where there is none in common the job would go back or begin again, and what was trained would be replaced: a party that
has trained something refuses that, unless its own people have said that it may be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from veilgraph.core.errors import RunError
from veilgraph.core.types import SERVER, PartyId

MOST_POINTS: Final = 100
MOST_SESSIONS: Final = 2**32
NONCE_BYTES: Final = 16

_ID_CHARACTERS: Final = 32
WAY_OUT: Final = (
    "restore its part of the run, or let what was trained be replaced: limits.restart: true in a holder's party file, "
    "veilgraph net join KIT --restart at the server, or, with all parties on this machine, veilgraph resume RUN "
    "--restart"
)


class Point(NamedTuple):
    """A checkpoint of a session that all parties took part in; points are in the order in which they were saved.

    Attributes:
        number: of the session: higher than that of the session before it; 0 for the first beginning.
        epoch: 0 for the beginning of the session itself.
        session: its id; empty for what releases before saved, whose sessions had none.
    """

    number: int
    epoch: int
    session: str


BEGINNING: Final = Point(0, 0, "")  # where a training begins that goes on from nothing


class Start(NamedTuple):
    """Where a session begins.

    Attributes:
        point: from which it goes on; ``BEGINNING`` for none.
        number: of the session that now begins.
        behind: holders that lack the point, which another gives them.
    """

    point: Point
    number: int
    session: str
    behind: tuple[PartyId, ...] = ()

    @property
    def epoch(self) -> int:
        """From which it goes on; 0 for a fresh start."""
        return self.point.epoch


def newest_common(points: Mapping[PartyId, Sequence[Point]]) -> Point | None:
    """The newest point that every party would go on from; None where there is none."""
    return max(set.intersection(*(set(some) for some in points.values())), default=None)


def left_behind(points: Mapping[PartyId, Sequence[Point]], enough: int) -> tuple[Point, tuple[PartyId, ...]] | None:
    """The newest point that ``enough`` holders beside the server have and all others are behind, with these; or None.

    Nobody goes back: whoever lacks the point has older ones alone. A party without any point may have lost its record
    of survivors, and is never among those behind.
    """
    for point in sorted({one for some in points.values() for one in some}, reverse=True):
        behind = tuple(party for party, some in points.items() if point not in some)
        if SERVER in behind or len(points) - 1 - len(behind) < enough:
            continue
        if all(points[party] and max(points[party]) < point for party in behind):
            return point, behind
    return None


def start_of(
    party: PartyId,
    points: Mapping[PartyId, Sequence[Point]],
    restarts: Mapping[PartyId, bool],
    nonces: Sequence[str],
    enough: int | None = None,
) -> Start:
    """Where this session begins, the same at all parties.

    Args:
        party: this one.
        points: party → those it would go on from.
        restarts: party → whether it would begin again from nothing.
        nonces: of all parties, in any order that all have.
        enough: how many holders must have a checkpoint that they give the others; None: nobody is given any.

    Raises:
        RunError: a party has trained something, does not let it be replaced, and there is no common point.
    """
    point, behind = newest_common(points), tuple[PartyId, ...]()
    if point is None and enough is not None and (found := left_behind(points, enough)) is not None:
        point, behind = found
    if point is None:
        _check_leave(party, points, restarts)
        point = BEGINNING
        number = 1 + max((one.number for some in points.values() for one in some), default=0)
    else:
        number = 1 + point.number
    return Start(point, min(number, MOST_SESSIONS), session_name(nonces), behind)


def session_name(nonces: Sequence[str]) -> str:
    """What a session is called, by the nonces of all parties, in any order that all have."""
    return hashlib.sha256("/".join(nonces).encode()).hexdigest()[:_ID_CHARACTERS]


def alone(points: Sequence[Point], nonce: str) -> Start:
    """Where the session of a party begins that learns alone."""
    return start_of("", {"": points}, {"": True}, [nonce])


def check_leave(restarts: Mapping[PartyId, bool], without: Sequence[PartyId], what: str) -> None:
    """Refuse what would have a party that has trained something begin again without its leave (``restarts``).

    Raises:
        RunError: names who is ``without`` it, and ``what`` they are without.
    """
    unwilling = [party for party, willing in restarts.items() if not willing]
    if unwilling:
        raise RunError(
            f"{', '.join(without)}: without {what}, so that the job would go back or begin again and replace what "
            f"{', '.join(unwilling)} trained; {WAY_OUT}",
            code="restart",
            party=", ".join(without),
        )


def _check_leave(party: PartyId, points: Mapping[PartyId, Sequence[Point]], restarts: Mapping[PartyId, bool]) -> None:
    """Names the parties that differ from most, the same at all parties where there are any such.

    Where as many agree with this party as with any other, what it holds is what it judges the others by; with nothing
    of its own, it takes another's word.
    """
    unwilling = [other for other, willing in restarts.items() if not willing]
    holding = [other for other in unwilling if points[other]]
    agreeing = {one: sum(bool(set(points[one]) & set(some)) for some in points.values()) for one in holding}
    judges = [one for one in holding if agreeing[one] == max(agreeing.values())] or unwilling or [party]
    judge = party if party in judges else judges[0]
    mine = set(points[judge])
    others = [other for other in points if other != judge]
    without = [other for other in others if not mine & set(points[other])]
    check_leave(restarts, without or others, f"the checkpoints that {judge} has")
