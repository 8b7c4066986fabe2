"""What a party sent, in words: to whom, what it was, what protects it, what it cost, and what it reveals.

The words are about the receiver; how the wire is protected from everybody else is the link's business.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from veilgraph.core.chain import digest
from veilgraph.core.errors import ProtocolError
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.recorded import TrafficEntry
from veilgraph.privacy.publisher import Spent
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.revealed import rows_of
from veilgraph.protocol.rows import Protection

Work = Literal["align", "train", "predict", "audit"]
"""A piece of work: one session of all parties."""


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
    """Puts into words what a party sent. What it received is its senders' to disclose, and left out.

    Args:
        settings: of the job.
        entries: traffic of one party in one piece of work.
        spent: what the party's releases come to; None where it has published nothing with a price.

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

    Args:
        settings: of the job.
        work: what was done.
        found: as ``disclosures`` gives them.
        time: when it ended, with a time zone.
        whole: False for what a killed party had sent when it last took note.
        previous: SHA-256 of the last line that is there; empty where there is none.
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
    """Of one message. What nodes perturb is of two kinds, each with an ε of its own, which ``spent`` has together."""
    features, labels = settings.feature_release, settings.label_release
    if kind is Kind.PERTURBED_FEATURES and features is not None:
        return features.epsilon
    if kind is Kind.PERTURBED_LABELS and labels is not None:
        return labels.epsilon
    return spent.epsilon_release


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
