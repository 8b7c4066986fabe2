"""What a job's rows come to: what it reveals, why and of whom, how bounded; and what a party sent, in words.

The words are about the receiver; how the wire is protected from everybody else is the link's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import permutations
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from veilgraph.core.chain import digest
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.messages import PARADIGMS, MessageSpec, Protection, Revelation

if TYPE_CHECKING:
    from veilgraph.link.view import TrafficEntry
    from veilgraph.privacy.publisher import Spent


def rows_of(job: JobSettings, sender: PartyId, receiver: PartyId) -> list[MessageSpec[Any]]:
    """What a job's messages from one party to another carry."""
    return [row for row in _rows_of(job) if row.ends.fit(job, sender, receiver) and row.of(job)]


def causes(job: JobSettings, party: PartyId | None = None) -> dict[str, str]:
    """Name of what a job's settings make it reveal → these settings, in the order of its paradigm's rows.

    With ``party``, only what tells others something of that party's data.
    """
    true = {told for row in _rows(job) for told in row.reveals}
    found = dict[str, str]()
    for told in _told(_rows_of(job)):
        if told in true and (party is None or party in told.whose(job)) and (cause := told.cause(job)):
            found.setdefault(told.name, cause)
    return found


def bounded(job: JobSettings) -> frozenset[str]:
    """Names of what comes of a job's noised values alone, so that a finite ε bounds what it tells."""
    rows = list(_rows(job))
    bare = {told.name for row in rows if not row.is_bounded for told in row.reveals}
    return frozenset(told.name for row in rows for told in row.reveals) - bare


def wider(job: JobSettings) -> dict[str, str]:
    """Name → that of what tells the same and more, of all that jobs of its paradigm may reveal."""
    return {told.name: told.part_of for told in _told(_rows_of(job)) if told.part_of}


def statements(job: JobSettings) -> dict[str, str]:
    """Name → who learns what, of all that jobs of its paradigm may reveal."""
    return {told.name: told.statement for told in _told(_rows_of(job))}


@cache
def all_revelations() -> Mapping[str, str]:
    """Name → who learns what, of all paradigms that are installed.

    Raises:
        ConfigError: two call different things by one name, or a package cannot be loaded.
    """
    found = dict[str, str]()
    for paradigm in PARADIGMS:
        for told in _told(PARADIGMS[paradigm].rows):
            if found.setdefault(told.name, told.statement) != told.statement:
                raise ConfigError(
                    f"paradigm={paradigm!r} calls something else {told.name!r} than another does, and parties "
                    "accept revelations by name; rename it in that package, or remove the package"
                )
    return MappingProxyType(found)


def _rows_of(job: JobSettings) -> tuple[MessageSpec[Any], ...]:
    rows: tuple[MessageSpec[Any], ...] = PARADIGMS[job.paradigm].rows
    return rows


def _told(rows: Iterable[MessageSpec[Any]]) -> list[Revelation[Any]]:
    return list(dict.fromkeys(told for row in rows for told in row.reveals))


def _rows(job: JobSettings) -> Iterator[MessageSpec[Any]]:
    pairs = list(permutations((*job.data.names, SERVER), 2))
    for row in _rows_of(job):
        if row.of(job) and any(row.ends.fit(job, *pair) for pair in pairs):
            yield row


def _known(name: str) -> str:
    if name not in (known := all_revelations()):
        raise ValueError(f"no paradigm that is installed reveals anything by this name; choose of {', '.join(known)}")
    return name


RevelationName = Annotated[str, AfterValidator(_known)]  # a name that an installed paradigm reveals something by


Work = Literal["align", "train", "predict", "audit"]  # a piece of work: one session of all parties


class Disclosure(BaseModel):
    """Messages of one kind that one party sent to one other in a piece of work."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    party: PartyId
    """The sender."""
    to: PartyId
    kind: str
    """Of ``Kind``, in lower case."""
    messages: int = Field(ge=0)
    bytes: int = Field(ge=0)
    """On the wire, headers included."""
    what: str
    protection: Protection
    """Of the least protected thing that messages of this kind carry."""
    why: str
    """Why it may leave the sender or, where nothing protects it, what follows from that."""
    reveals: tuple[str, ...]
    """Names of the revelations that come true by it, together with the other senders' messages."""
    epsilon_release: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of one of the messages by itself, at the job's δ; null: it did not pass the sender's publisher, or ε is ∞."""
    epsilon_total: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Of everything that the sender has published in the run so far, at the same δ; null likewise."""


class DisclosureRecord(Disclosure):
    """A line of ``disclosures.jsonl``."""

    time: AwareDatetime
    """When the piece of work ended, UTC, in whole seconds."""
    work: Work
    job: str
    """SHA-256 of the settings."""
    whole: bool = True
    """False: the party was killed, and this is what it had sent when it last took note; a little more may have gone."""
    previous: str = ""
    """SHA-256 of the line before; empty in the first."""


def disclosures(settings: JobSettings, entries: Sequence[TrafficEntry], spent: Spent | None = None) -> list[Disclosure]:
    """Put into words what a party sent; what it received is for its senders to disclose.

    ``entries`` are one party's traffic in one piece of work; ``spent`` is the price of its releases, if they have one.

    Raises:
        ProtocolError: the job has no such message.
    """
    return [_disclosure(settings, entry, spent) for entry in entries if entry.direction == "sent"]


def disclosure_lines(
    settings: JobSettings,
    work: Work,
    found: Sequence[Disclosure],
    time: datetime,
    *,
    whole: bool = True,
    previous: str = "",
) -> str:
    """The block that a piece of work adds to ``disclosures.jsonl``: one JSON object per line.

    ``time`` is when the work ended; ``whole`` is False for what a killed party had sent when it last took note;
    ``previous`` is the SHA-256 of the last line that is there, or empty.
    """
    when, job = time.astimezone(UTC).replace(microsecond=0), settings.hash()
    lines = []
    for one in found:
        record = DisclosureRecord(**dict(one), time=when, work=work, job=job, whole=whole, previous=previous)
        lines.append(record.model_dump_json())
        previous = digest(lines[-1].encode())
    return "".join(line + "\n" for line in lines)


def _disclosure(settings: JobSettings, entry: TrafficEntry, spent: Spent | None) -> Disclosure:
    rows = [row for row in rows_of(settings, entry.party, entry.peer) if row.kind is entry.kind]
    if not rows:
        raise ProtocolError(
            f"{entry.party} sent {entry.kind.name.lower()} to {entry.peer}, which is no message of this job; give the "
            "settings that the traffic was recorded with",
            code="undisclosed",
            key=entry.kind.name.lower(),
            value=entry.peer,
            party=entry.party,
        )
    cost = spent if any(row.paid for row in rows) else None
    return Disclosure(
        party=entry.party,
        to=entry.peer,
        kind=entry.kind.name.lower(),
        messages=entry.messages,
        bytes=entry.bytes,
        what="; ".join(row.what for row in rows),
        protection="none" if any(row.protection == "none" for row in rows) else rows[0].protection,
        why=" ".join(dict.fromkeys(row.why for row in rows)),
        reveals=tuple(dict.fromkeys(told.name for row in rows for told in row.reveals)),
        epsilon_release=None if cost is None else _finite(_epsilon_of_one(settings, entry.kind, cost)),
        epsilon_total=None if cost is None else _finite(cost.epsilon_total),
    )


def _epsilon_of_one(settings: JobSettings, kind: Kind, spent: Spent) -> float:
    """The ε of one message. What nodes perturb is of two kinds, each with an ε of its own, which ``spent`` has
    together.
    """
    features, labels = settings.noise.feature_release, settings.noise.label_release
    if kind is Kind.PERTURBED_FEATURES and features is not None:
        return features.epsilon
    if kind is Kind.PERTURBED_LABELS and labels is not None:
        return labels.epsilon
    return spent.epsilon_release


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
