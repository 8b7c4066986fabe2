"""What the findings of an audit come to: held against limits, judged together, and kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from veilgraph.audit.finding import AuditResult, Finding, Skipped
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.settings import unsettled
from veilgraph.protocol.audit_settings import ATTACKS, AttackLimit, Limits
from veilgraph.protocol.job import JobSettings

AUDIT_FILE: Final = "audit.json"
FALSE_ALARM_RATE: Final = 0.01
"""Of all tests of evidence that must say nothing, together."""
NOTHING: Final = "it has nothing for that"

_NOBODY: Final = "nobody was asked to, or has anything to mount it on"


def limits_of(of_job: Mapping[str, AttackLimit], asked: Mapping[str, float | AttackLimit]) -> dict[str, AttackLimit]:
    """The job's, figure by figure replaced by those that are asked for."""
    chosen("limits", tuple(asked), tuple(ATTACKS))
    found = dict(of_job)
    try:
        for name, limit in TypeAdapter(Limits).validate_python(dict(asked)).items():
            before = found[name].figures() if name in found else {}
            found[name] = AttackLimit(**before | limit.figures())
    except ValidationError as error:
        raise unsettled(error, "limits") from error
    return found


def concluded(
    settings: JobSettings,
    seed: int,
    findings: Sequence[Finding],
    skipped: Sequence[Skipped],
    limits: Mapping[str, AttackLimit],
) -> AuditResult:
    """All findings judged, and every limit that nothing was held to among what was skipped."""
    tried = {finding.attack for finding in findings}
    left = [_held(each, limits, tried) for each in skipped]
    named = {each.name for each in left if each.limited}
    left += [Skipped("no adversary", name, _NOBODY, name, limited=True) for name in limits if name not in tried | named]
    tests = sum(not finding.permitted for finding in findings)
    level = FALSE_ALARM_RATE / max(1, tests)
    judged = tuple(_judged(finding, limits, level) for finding in findings)
    return AuditResult(settings.name, settings.paradigm, seed, FALSE_ALARM_RATE, judged, tuple(left))


def save_audit(folder: Path, result: AuditResult) -> None:
    """Writes ``audit.json`` into the directory of a run."""
    write_whole(folder / AUDIT_FILE, json.dumps(result.record(), indent=1, allow_nan=False, default=str).encode())


def _held(skipped: Skipped, limits: Mapping[str, AttackLimit], tried: Collection[str]) -> Skipped:
    """Whether a limit would have been held to it; not where there was nothing to attack, and others attacked."""
    idle = skipped.why == NOTHING and skipped.name in tried
    return replace(skipped, limited=(skipped.name in limits and not idle) or (skipped.limited and bool(limits)))


def _judged(finding: Finding, limits: Mapping[str, AttackLimit], level: float) -> Finding:
    return finding.judged(limits.get(finding.attack), FALSE_ALARM_RATE if finding.permitted else level)


def chosen(name: str, asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """What is asked for, each once; None: all.

    Raises:
        ConfigError: something is not known.
    """
    unknown = [each for each in asked or () if each not in known]
    if unknown:
        raise ConfigError(f"{name}={unknown[0]!r} is not one of {', '.join(known)}; choose of these")
    return tuple(known) if asked is None else tuple(dict.fromkeys(asked))
