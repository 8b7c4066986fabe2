"""Before work, all parties tell each other the public facts of the job, and refuse together when one must.

Nothing else has been sent by then. What others state is read as a stranger's text: bounded, printable, one line.

A training goes on from a checkpoint. That is a point: its epoch, and which training session saved it, for shares of two
sessions do not fit each other. All parties tell each other the points they would go on from, and the newest that all
tell is taken. A party tells no point behind one that it knows all to have. Where there is none in common the job would
go back or begin again, and what was trained would be replaced: a party that has trained something refuses that, unless
its own people have said that it may be.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError, LinkTimeout, ProtocolError, RunError
from veilgraph.core.settings import Exact
from veilgraph.core.types import SERVER, Kind, Link, PartyId, Tag
from veilgraph.core.validation import rule_of
from veilgraph.graph.federation import check_aligned
from veilgraph.link.collectives import exchange, tensor_text, text_tensor
from veilgraph.protocol.limits import REASON_CHARACTERS
from veilgraph.protocol.party_settings import MAX_APPROVAL_WAIT_S

MOST_POINTS: Final = 100
MOST_SESSIONS: Final = 2**32
NONCE_BYTES: Final = 16

WAY_OUT: Final = (
    "restore its part of the run, or let what was trained be replaced: limits.restart: true in a holder's party file, "
    "veilgraph net join KIT --restart at the server, or, with all parties on this machine, veilgraph resume RUN "
    "--restart"
)


class Point(NamedTuple):
    """A checkpoint, ordered by age: the session's number from 0, the epoch (0: its beginning), the session's id."""

    number: int
    epoch: int
    session: str


BEGINNING: Final = Point(0, 0, "")  # where a training begins that goes on from nothing


class Start(NamedTuple):
    """Where a session begins: from a point, ``BEGINNING`` for none; ``number`` and ``session`` are its own.

    ``behind`` are holders that lack the point, which another gives them.
    """

    point: Point
    number: int
    session: str
    behind: tuple[PartyId, ...] = ()

    @property
    def epoch(self) -> int:
        """The epoch from which the session goes on; 0 for a fresh start."""
        return self.point.epoch


def newest_common(points: Mapping[PartyId, Sequence[Point]]) -> Point | None:
    """The newest point that every party would go on from; None where there is none."""
    return max(set.intersection(*(set(some) for some in points.values())), default=None)


def left_behind(points: Mapping[PartyId, Sequence[Point]], enough: int) -> tuple[Point, tuple[PartyId, ...]] | None:
    """Find the newest point that the server and ``enough`` holders have, and the parties behind it; None without one.

    Nobody goes back. A party without any point may have lost its record of survivors, and is never among those behind.
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
    """Where this session begins, the same at all parties, from every party's points, ``restarts`` and nonces.

    ``enough`` is how many holders must have a checkpoint that they give the others; None: none is given. Raises
    ``RunError``: a party has trained something, does not let it be replaced, and there is no common point.
    """
    point, behind = newest_common(points), tuple[PartyId, ...]()
    if point is None and enough is not None and (found := left_behind(points, enough)) is not None:
        point, behind = found
    before = [one for some in points.values() for one in some]
    if point is None:
        _check_restart(party, points, restarts)
    newest = point or max(before, default=BEGINNING)
    return Start(point or BEGINNING, min(1 + newest.number, MOST_SESSIONS), session_name(nonces), behind)


def session_name(nonces: Sequence[str]) -> str:
    """Return the session's id, 32 hexadecimal digits: a hash of all parties' nonces, in an order that all share."""
    return hashlib.sha256("/".join(nonces).encode()).hexdigest()[:32]


def start_alone(points: Sequence[Point], nonce: str) -> Start:
    """Return the start of a party that trains alone: its newest point, else a fresh start."""
    return start_of("", {"": points}, {"": True}, [nonce])


def check_restart_allowed(restarts: Mapping[PartyId, bool], without: Sequence[PartyId], what: str) -> None:
    """Raise ``RunError`` where a party does not let what it trained be replaced (False in ``restarts``).

    The message names the parties ``without`` the thing, ``what``, for lack of which the job would replace it.
    """
    unwilling = ", ".join(party for party, willing in restarts.items() if not willing)
    if unwilling:
        lacking = ", ".join(without)
        words = (
            f"{lacking}: without {what}, so that the job would go back or begin again and replace what {unwilling} "
            f"trained; {WAY_OUT}"
        )
        raise RunError(words, code="restart", party=lacking)


def _check_restart(party: PartyId, points: Mapping[PartyId, Sequence[Point]], restarts: Mapping[PartyId, bool]) -> None:
    """Call ``check_restart_allowed``, naming parties that share no point with a judge; all name the same if possible.

    The judge is the unwilling party that shares points with most others; among equals ``party`` itself.
    """
    unwilling = [other for other, willing in restarts.items() if not willing]
    sharing = {one: [other for other in points if set(points[one]) & set(points[other])] for one in points}
    most = max((len(sharing[one]) for one in unwilling if points[one]), default=0)
    judges = [one for one in unwilling if points[one] and len(sharing[one]) == most] or unwilling or [party]
    judge = party if party in judges else judges[0]
    others = [other for other in points if other != judge]
    without = [other for other in others if other not in sharing[judge]]
    check_restart_allowed(restarts, without or others, f"the checkpoints that {judge} has")


PROTOCOL_VERSION: Final = 21
MAX_HELLO_BYTES: Final = 1 << 16

MOST_PACKAGES: Final = 32

TELL_EVERY_S: Final = 5.0
_SHOWN: Final = 12  # characters of a hash that a message names

Answer = Callable[[float], str | None]

log = logging.getLogger("veilgraph")


def one_line(text: str) -> str:
    """Return ``text``; raise ``ValueError`` for characters that cannot be shown on one line (a field's validator)."""
    if not text.isprintable():
        raise ValueError("characters that cannot be printed on one line")
    return text


_Count = Annotated[int, Field(ge=0, le=2**32)]
_Number = Annotated[int, Field(ge=0, le=MOST_SESSIONS)]
_Epoch = Annotated[int, Field(ge=0, lt=2**63)]
_Line = Annotated[str, Field(max_length=64), AfterValidator(one_line)]
_Hash = Annotated[str, Field(max_length=128, pattern=r"^[0-9a-z]*$")]


class _Versioned(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    version: int


class Hello(Exact):
    """Public facts that a party states: no more than the job's initial method needs; the server states no shapes."""

    version: _Count = PROTOCOL_VERSION
    job: _Hash
    """SHA-256 of the settings."""
    alignment: _Hash = ""
    """Identity of the alignment that gave the rows their order, empty where there was none; optional at the server."""
    nodes: _Count = 0
    """Rows of the tables: the nodes common to all holders."""
    rows: _Count = 0
    """Of the sender's own nodes, rounded up; left out where all holders have the same nodes."""
    features: _Count = 0
    edge_columns: _Count = 0
    """Features of an edge; left out where there are none."""
    edges: _Count = 0
    """Of the sender's graph, rounded up."""
    neighbours: _Count = 0
    """The most of any node there, rounded up; left out where a job says its bound."""
    training: _Count = 0
    """Nodes that are trained on."""
    validation: _Count = 0
    """Nodes that a model is judged on, where others are to know how many."""
    classes: Annotated[int, Field(ge=0, le=2**32)] = 0
    """Of the labels, where several holders may have some."""
    feature_bits: Annotated[int, Field(ge=0, le=64)] = 0
    checkpoints: Annotated[list[tuple[_Number, _Epoch, _Hash]], Field(max_length=MOST_POINTS)] = Field(
        default_factory=list
    )
    """Checkpoints that the party would go on from, each as the number of its session, its epoch, and its session; the
    newest that all name is where the job goes on."""
    restarts: bool = True
    """Whether the party would begin again from nothing: it has trained nothing, or lets it be replaced."""
    nonce: _Hash = ""
    """Fresh in every session that may train: all of them together name the session."""
    steps: _Count | None = None
    """Training steps that the party's privacy budget still allows; if one release, as ``stated_releases`` has it;
    null without a budget."""
    release: Annotated[int, Field(ge=-(2**32), le=2**32)] = 0
    """Number of the newest release, where there is a single one, that the holder made or was given; negative where it
    is of another alignment, 0 for none."""
    refuses: Annotated[str, Field(max_length=REASON_CHARACTERS), AfterValidator(one_line)] = ""
    """Why the party does not take part; empty when it does."""
    waits: bool = False
    """Whether a person at the party has still to approve the job: all agree again, one step later."""
    ids: _Count = 0
    """That the holder brings to an alignment, but for known ones; it is held to that number."""
    asked: _Count = 0
    """Nodes that the label holder names in a prediction of named ones; left out where there are none."""
    mark: _Hash = ""
    """The same again where the party runs the same job on the same tables; left out where it has none."""

    work: Annotated[str, Field(max_length=16, pattern=r"^[a-z]*$")] = ""
    """What was submitted to the party: align, train, predict, answer or audit; left out on one machine."""
    resume: bool = False
    """Whether the party was asked to go on with a run; left out where it was not."""
    software: Annotated[dict[_Line, _Line], Field(max_length=MOST_PACKAGES)] = Field(default_factory=dict)
    """Package → its version at the party: veilgraph, torch, and packages that add parts; left out on one machine."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, all_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        stated: dict[str, Any] = all_of(self)
        # Of a hello while they are empty.
        left_out = ("asked", "edge_columns", "mark", "neighbours", "rows", "work", "resume", "software")
        return {key: value for key, value in stated.items() if value or key not in left_out}


def agree(link: Link, holders: Sequence[PartyId], mine: Hello, round_: int = 0, step: int = 0) -> dict[PartyId, Hello]:
    """Exchange hellos among all parties; one that refuses sends its own as well, so that all know why.

    Parties may agree again in a session (``round_``), and in a round (``step``). Gives party → its hello, its own
    included.

    Raises:
        ConfigError: another version of the protocol, another job or work, or a party that refuses this one.
        DataError: the holders' alignments or node counts differ.
        ProtocolError: a hello cannot be understood.
    """
    others = [party for party in (*holders, SERVER) if party != link.party]
    texts = exchange(link, others, Tag(Kind.HELLO, step, round_), text_tensor(mine.model_dump_json()), shape=(None,))
    received = {party: _parse_hello(link.party, party, text) for party, text in texts.items()}
    hellos = {party: received.get(party, mine) for party in (*holders, SERVER)}
    _check_same_job(link.party, hellos)
    if refusals := [f"{party} refuses the job: {hello.refuses}" for party, hello in hellos.items() if hello.refuses]:
        raise ConfigError("; ".join(refusals), code="refused")
    alignments = {p: hello.alignment for p, hello in hellos.items() if p in holders or hello.alignment}
    if len(set(alignments.values())) > 1:
        listed = ", ".join(f"{party} has {identity[:_SHOWN] or 'none'}" for party, identity in alignments.items())
        raise DataError(
            f"the tables are not of one alignment ({listed}); row v must be the same node at every holder, so align "
            "them again, all together",
            code="other-alignment",
            key="alignment",
        )
    check_aligned({holder: hellos[holder].nodes for holder in holders})
    return hellos


def agreed_start(party: PartyId, hellos: Mapping[PartyId, Hello], enough: int | None = None) -> Start:
    """Return where the session begins, the same at all parties, by ``start_of`` from their hellos."""
    points = {other: [Point(*point) for point in hello.checkpoints] for other, hello in hellos.items()}
    restarts = {other: hello.restarts for other, hello in hellos.items()}
    return start_of(party, points, restarts, [hello.nonce for hello in hellos.values()], enough)


def agree_with_people(
    link: Link, holders: Sequence[PartyId], mine: Hello, answer: Answer, timeout_s: float, round_: int = 0
) -> dict[PartyId, Hello]:
    """As ``agree``, and again for as long as a party waits for a person: so nobody waits in silence, or for long.

    A person is asked only once no party refuses. ``mine`` has ``waits`` where one is to be asked; ``answer`` asks, and
    waits for so many seconds: a refusal, empty for approval, or None while there is no answer.

    Raises:
        ConfigError: as ``agree``; a person refused, at every party with the same reason.
        LinkError: another party stopped.
    """
    step, told, wait_for = 0, set[PartyId](), set[PartyId]()
    deadline = time.monotonic() + MAX_APPROVAL_WAIT_S
    while time.monotonic() < deadline:
        hellos = agree(link, holders, mine, round_, step)
        wait_for = {party for party, hello in hellos.items() if hello.waits}
        if not wait_for:
            return hellos
        for party in sorted(wait_for - told - {link.party}):
            log.info("%s waits for a person there to approve the job", party)
        told |= wait_for
        if mine.waits and (found := answer(min(TELL_EVERY_S, timeout_s / 4))) is not None:
            mine = mine.model_copy(update={"waits": False, "refuses": found})
        step += 1
    raise LinkTimeout(
        f"nobody at {', '.join(sorted(wait_for))} approved the job in {MAX_APPROVAL_WAIT_S:g} s; submit it again when "
        "somebody is there"
    )


def same_count(what: str, values: Mapping[PartyId, int]) -> int:
    """Return the number that all holders state; raises ``DataError`` where they differ."""
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{holder} has {count}" for holder, count in values.items())
        raise DataError(f"holders: {what} differ ({listed}), and they must be the same; mend one")
    return next(iter(values.values()))


def stated_releases(releases: int | None) -> int | None:
    """Cut the number of releases that a budget allows to 0 or 1, as a party states it; None without a budget.

    How many more there are tells what it released in other jobs, and of which of its nodes.
    """
    return None if releases is None else min(releases, 1)


def fewest_steps(hellos: Mapping[PartyId, Hello]) -> int | None:
    """Training steps that every party's privacy budget allows; None where no party has one."""
    return min((hello.steps for hello in hellos.values() if hello.steps is not None), default=None)


def _parse_hello(party: PartyId, sender: PartyId, received: Tensor) -> Hello:
    """Parse another party's hello, its version first; ``ConfigError``: another version; ``ProtocolError``: no hello."""
    if received.numel() > MAX_HELLO_BYTES:
        raise ProtocolError(
            f"{party} got a hello of {received.numel()} bytes from {sender}, and at most {MAX_HELLO_BYTES} are "
            "allowed; install the same release of veilgraph at every party",
            code="hello-size",
            value=received.numel(),
            party=sender,
        )
    text = tensor_text(received)
    try:
        version = _Versioned.model_validate_json(text).version
        if version == PROTOCOL_VERSION:
            return Hello.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        known = ".".join(str(part) for part in problem["loc"] if isinstance(part, int) or part in Hello.model_fields)
        raise ProtocolError(
            f"{party} cannot understand the hello of {sender}: {known or 'its form'}: {rule_of(problem)}; install the "
            "same release of veilgraph at every party",
            code="not-understood",
            key=known or None,
            party=sender,
        ) from error
    raise ConfigError(
        f"{sender} speaks protocol version {str(version)[:_SHOWN]} and {party} {PROTOCOL_VERSION}; install the same "
        "release of veilgraph at every party",
        code="version",
        value=version,
        party=sender,
    )


def _check_same_job(party: PartyId, hellos: Mapping[PartyId, Hello]) -> None:
    mine = hellos[party]
    for other, hello in hellos.items():
        if (hello.work, hello.resume) != (mine.work, mine.resume):
            theirs, ours = (f"{it.work or 'nothing'}{' --resume' if it.resume else ''}" for it in (hello, mine))
            raise ConfigError(
                f"{other} was asked for {theirs} and {party} for {ours}; submit one job to all parties",
                code="other-work",
                party=other,
            )
        if hello.job != mine.job:
            raise ConfigError(
                f"{other} runs job {hello.job[:_SHOWN]} and {party} {mine.job[:_SHOWN]} (SHA-256 of the settings); "
                "give every party the same job file",
                code="other-job",
                party=other,
            )
