"""An audit for the terminal: what every adversary's attacks found, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from veilgraph.audit.finding import AuditResult, Finding, Skipped
from veilgraph.audit.statistics import Interval

_NOTHING = "–"


def audit_table(result: AuditResult, findings: Sequence[Finding] | None = None, title: str = "Audit") -> Table:
    """A row for every finding.

    Args:
        result: of the audit.
        findings: those to show; None: all.
        title: of the table.
    """
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.caption = (
        "AUC: 0.5 is guessing, 1 is certainty; epsilon: a lower bound. In brackets the 95 % interval. Without: the "
        "same adversary without what it saw. Pooled: with everybody's plaintext features."
    )
    for heading in ("adversary", "whose", "secret", "attack", "from"):
        table.add_column(heading, overflow="fold")
    for heading in ("found", "without", "pooled", "limit"):
        table.add_column(heading, justify="right")
    table.add_column("verdict")
    for finding in result.findings if findings is None else findings:
        table.add_row(
            Text(finding.adversary),
            Text(finding.target),
            finding.secret,
            finding.attack,
            Text(finding.evidence),
            _interval(finding.value),
            _NOTHING if finding.without is None else f"{finding.without.value:.3f}",
            _NOTHING if finding.pooled is None else f"{finding.pooled.value:.3f}",
            _NOTHING if finding.limit is None else f"{finding.limit:.4g}",
            verdict_words(finding),
            style="bold red" if finding.passed is False else None,
        )
    return table


def verdict_words(finding: Finding) -> str:
    """What a finding comes to, in a few words."""
    found = finding.verdict
    if finding.measure == "epsilon":
        if finding.limit is None:
            return "the ledger has no bound"
        return "above the ledger" if finding.passed is False else "within the ledger"
    if not finding.permitted:
        return "LEAK" if finding.passed is False else "says nothing"
    if finding.passed is False:
        return "above the limit"
    if found is None or not found.found:
        return "no more than without" if finding.without is not None else "no more than guessing"
    return "more than without" if finding.without is not None else "more than guessing"


def skipped_lines(skipped: Sequence[Skipped]) -> list[str]:
    """What was not mounted, a line each."""
    return [f"{each.adversary}: {each.attack} was not mounted: {each.why}" for each in skipped]


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
