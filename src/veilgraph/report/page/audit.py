"""What an audit found: who attacks whose secret with what, how well, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from veilgraph.audit.finding import Finding
from veilgraph.audit.statistics import Interval
from veilgraph.core.words import counted
from veilgraph.report.page.audit_file import read_audit
from veilgraph.report.page.audit_rows import WIDTH, Row, row_of
from veilgraph.report.page.charts import Axis, Tick, axis_ticks
from veilgraph.report.page.found import Found
from veilgraph.report.page.strongest import strongest, worst

_INSET: Final = 8.0
_FEW: Final = 8
"""With more findings the strongest of each adversary on each secret come first, and all of them can be unfolded."""


@dataclass(frozen=True)
class Table:
    """Findings with one measure: its name, the ticks of the common axis, rows."""

    name: str
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Audit:
    """The section.

    Attributes:
        verdict: passed, failed, no limits set or not audited.
        tone: of the verdict: ``bad``, ``good`` or ``plain``.
        worst: the worst findings, a sentence each.
        summary: a sentence on all findings together.
        strongest: of many findings the strongest of each adversary on each secret.
        tables: all, AUC first; none where there is nothing.
        skipped: who, which attack, why.
        notes: what must be said beside the figures.
    """

    verdict: str
    tone: str
    worst: tuple[str, ...]
    summary: str
    strongest: tuple[Row, ...]
    tables: tuple[Table, ...]
    skipped: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


def audit(found: Found) -> Audit:
    """The audit of a run, if there is one.

    Raises:
        RunError: its file is damaged.
    """
    report = read_audit(found.path)
    if report is None:
        return Audit("not audited", "plain", (), _unaudited(found), (), (), (), ())
    failed = [finding for finding in report.findings if finding.passed is False]
    held = [finding for finding in report.findings if finding.passed is not None]
    aucs, epsilons, claims = (
        [finding for finding in report.findings if finding.measure == measure]
        for measure in ("auc", "epsilon", "p-value")
    )
    tables = []
    if aucs:
        tables.append(_table("AUC", aucs, _axis(aucs)))
    if epsilons:
        highest = max(max(finding.value.high, finding.limit or 0.0) for finding in epsilons)
        tables.append(_table("ε, a lower bound from the attack", epsilons, _within(0.0, 1.1 * highest or 1.0)))
    if claims:
        tables.append(_table("What the run claims: p-values of what was seen", claims, _within(0.0, 1.0)))
    notes = []
    if (report.job, report.paradigm) != (found.settings.name, found.settings.paradigm):
        notes.append(f"This audit is of another job, {report.job} ({report.paradigm}): audit the run again.")
    if any(not finding.permitted for finding in report.findings):
        notes.append(
            "Attacks on evidence that must tell nothing are tested together, so that with no leak at all one is "
            f"reported in at most {100 * report.false_alarm_rate:g} % of audits."
        )
    limited = any(finding.limit is not None or finding.rates for finding in held) or bool(report.untested)
    summary = "" if limited else " No limit was set for what parties are meant to see: whether it is too much is open."
    if report.untested:
        names = ", ".join(dict.fromkeys(each.attack for each in report.untested))
        summary += f" Nothing was held to the limits on {names}: the audit does not pass."
    fails = bool(failed or report.untested)
    return Audit(
        "failed" if fails else "passed" if limited else "no limits set",
        "bad" if fails else "good" if limited else "plain",
        tuple(worst(report.findings)),
        f"{counted(len(report.findings), 'attack')} mounted. Of {len(held)} that had a limit to keep or had to tell "
        f"nothing, {len(failed)} did not.{summary}",
        tuple(row_of(each, _axis(aucs)) for each in strongest(aucs)) if len(aucs) > _FEW else (),
        tuple(tables),
        tuple((skipped.adversary, skipped.attack, skipped.why) for skipped in report.skipped),
        tuple(notes),
    )


def _unaudited(found: Found) -> str:
    """That there was no audit, and how there would be one."""
    if found.is_part:
        return "Not audited: an administrator may ask for it with veilgraph net submit JOB.yaml --work audit."
    keeps = any(found.path.glob("parties/*/view/*.messages"))
    first = "" if keeps or not found.sent else ", after training again with --record-views"
    return f"Not audited: run veilgraph audit {found.path.name}{first}."


def _axis(aucs: Sequence[Finding]) -> Axis:
    lowest = min(0.45, *(interval.low for finding in aucs for interval in _intervals(finding)))
    return _within(max(lowest - 0.02, 0.0), 1.0)


def _within(low: float, high: float) -> Axis:
    return Axis(low, high, _INSET, WIDTH - _INSET)


def _table(name: str, findings: Sequence[Finding], axis: Axis) -> Table:
    return Table(name, axis_ticks(axis, 6), tuple(row_of(finding, axis) for finding in findings))


def _intervals(finding: Finding) -> list[Interval]:
    return [each for each in (finding.value, finding.without, finding.pooled) if each is not None]
