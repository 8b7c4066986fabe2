"""A run's events for a SIEM: one JSON object or one line of CEF each, from what the run and its kit record."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from veilgraph.core import __version__
from veilgraph.core.files import run_errors
from veilgraph.core.text import printable
from veilgraph.core.types import PartyId
from veilgraph.deploy.kit import Kit
from veilgraph.privacy.event import to_json
from veilgraph.privacy.ledger import read_payments
from veilgraph.protocol.consent import Entry, Journal
from veilgraph.protocol.job import CHECKS
from veilgraph.report.audit import read_audit
from veilgraph.report.run_data import RunData
from veilgraph.runtime.session.preparation import read_drift
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.records import read_evidence
from veilgraph.runtime.store.run_directory import PartyStore
from veilgraph.runtime.store.session_log import software_records

_HEADER: Final = str.maketrans({"\\": r"\\", "|": r"\|"})
_VALUE: Final = str.maketrans({"\\": r"\\", "=": r"\=", "\n": r"\n", "\r": r"\r"})
_JSON: Final = json.JSONEncoder(allow_nan=False, default=str).encode
_APART: Final = {"time", "party", "previous"}


@dataclass(frozen=True)
class EvidenceEvent:
    """One event: its ``time`` (ISO 8601, UTC; None where the record has none), whose it is, its kind and its facts.

    Kinds: disclosure, release, session, statement, countersignature, prediction, drift, consent; of audits finding,
    check and skipped.
    """

    time: str | None
    party: PartyId
    event: str
    fields: Mapping[str, Any]


def exported(found: RunData, form: str) -> bytes:
    """Return a run's events as lines of ``form``, ``jsonl`` or ``cef``, the oldest first, those without a time last.

    Raises ``VeilgraphError``: a record, or the kit in which the run lies, is damaged.
    """
    written = cef_line if form == "cef" else lambda each: _JSON(asdict(each))
    with run_errors(found.path, "restore its records from a copy", "a record is damaged"):
        events = sorted(_events(found), key=lambda each: each.time or "9999")
        return "".join(f"{written(each)}\n" for each in events).encode()


def cef_line(event: EvidenceEvent) -> str:
    """Return an event as a line of CEF:0, with the party as ``suser`` and facts in extensions of our own names.

    The severity is 8 of what did not pass, 6 of a person's refusal, else 1. In the header backslash and pipe are
    escaped; in a value backslash, equals sign and line breaks. Source: ArcSight Common Event Format, "Character
    encoding".
    """
    severity = "8" if event.fields.get("passed") is False else "6" if event.fields.get("what") == "refused" else "1"
    words = ("veilgraph", "veilgraph", __version__, event.event, f"Record of {event.event}", severity)
    header = "|".join(printable(each).translate(_HEADER) for each in words)
    facts: dict[str, object] = {"suser": event.party}
    if event.time is not None:
        facts["rt"] = f"{1000 * datetime.fromisoformat(event.time).timestamp():.0f}"
    facts |= {f"veilgraph{re.sub('[^A-Za-z0-9]', '', key.title())}": value for key, value in event.fields.items()}
    return f"CEF:0|{header}|{' '.join(f'{key}={_value(each)}' for key, each in facts.items() if each is not None)}"


def _value(value: object) -> str:
    """A fact as an extension's value: JSON of what is no text; of control characters line breaks alone stay."""
    text = value if isinstance(value, str) else _JSON(value)
    return re.sub(r"[^\r\n]+", lambda part: printable(part[0]), text).translate(_VALUE)


def consents(found: RunData) -> list[tuple[PartyId, Entry]]:
    """Return what a site's journal has of this job: counted, approved, refused; empty where the run is in no kit."""
    kit = Kit.of_run(found.path)
    if kit is None or not kit.consent.is_dir():
        return []
    return [(kit.name, each) for each in Journal(kit.consent).entries_of(found.settings.hash())]


def _events(found: RunData) -> Iterator[EvidenceEvent]:
    for sent in found.sent:
        yield _event(sent.time, sent.party, "disclosure", sent.model_dump(mode="json", exclude=_APART))
    for party, folder in found.folders.items():
        yield from _party_events(party, folder)
    for party, each in consents(found):
        yield _event(each.time, party, "consent", each.model_dump(mode="json", exclude=_APART))
    if (audit := read_audit(found.path)) is not None:
        for one in audit.findings:
            facts = {key: value for key, value in asdict(one).items() if key not in ("adversary", "roc", "figures")}
            yield _event("", one.adversary, "check" if one.attack in CHECKS else "finding", facts)
        for left in audit.skipped:
            yield _event("", left.adversary, "skipped", {"attack": left.attack, "why": left.why, "raised": left.raised})


def _party_events(party: PartyId, folder: Path) -> Iterator[EvidenceEvent]:
    for paid in read_payments(folder / LEDGER):
        facts = {"channel": paid.channel, "step": paid.step, "count": paid.count, "epsilon_total": paid.total}
        yield _event(paid.time, party, "release", {**facts, "content": paid.content, "of": to_json(paid.event)})
    for stated in software_records(folder):
        yield _event(stated.time, party, "session", {"work": stated.work, "software": stated.software})
    if (signed := read_evidence(folder)) is not None:
        for own in signed.own:
            facts = {"number": own.number, "lines": [each.lines for each in own.extents], "signed": bool(own.signature)}
            yield _event(own.time, party, "statement", facts)
        for by in signed.countersignatures:
            facts = {"of": by.party, "number": by.number, "signed": bool(by.signature)}
            yield _event(by.time, by.by, "countersignature", facts)
    if (folder / "predictions.safetensors").is_file():
        made = load_predictions(PartyStore(folder))
        facts = {"model_version": made.model_version, "predictions": len(made.nodes)}
        yield _event(made.made_at, party, "prediction", facts)
    if moved := read_drift(folder):
        facts = {"compared": moved["compared"], "moved": [each["name"] for each in moved["moved"]]}
        yield _event(moved["made_at"], party, "drift", facts)


def _event(time: datetime | str, party: PartyId, event: str, facts: Mapping[str, object]) -> EvidenceEvent:
    """Make an event; ``time`` is empty where the record has none."""
    when = datetime.fromisoformat(time) if isinstance(time, str) and time else time
    return EvidenceEvent(when.astimezone(UTC).isoformat() if isinstance(when, datetime) else None, party, event, facts)
