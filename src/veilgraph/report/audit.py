"""An audit for the terminal: what every adversary's attacks found, and what failed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from veilgraph.audit.finding import AuditResult, Finding, Skipped
from veilgraph.audit.statistics import Interval
from veilgraph.core.words import counted


def audit_table(result: AuditResult, findings: Sequence[Finding] | None = None) -> Table:
    """A row for every finding.

    Args:
        result: of the audit.
        findings: those to show; None: all.
    """
    table = Table(title="Audit", title_justify="left", caption_justify="left")
    table.caption = (
        "AUC: 0.5 is guessing, 1 is certainty; epsilon: a lower bound; of what a run claims: a p-value. In brackets "
        "the 95 % interval. Without: the same adversary without what it saw. Pooled: with everybody's plaintext "
        "features. Below: how many targets are what is asked for, and how many are not."
    )
    table.add_column("who, on whose", overflow="fold")
    table.add_column("attack, from", overflow="fold")
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("verdict", min_width=12)
    for finding in result.findings if findings is None else findings:
        what = {"nothing": "anything"}.get(finding.secret, finding.secret)
        table.add_row(
            Text(f"{finding.adversary}\non {finding.target}'s\n{what}"),
            Text(f"{finding.attack}\n{finding.evidence}"),
            _figures(finding),
            verdict_words(finding),
            style="bold red" if finding.passed is False else None,
            end_section=True,
        )
    return table


def row_words(finding: Finding) -> str:
    """A finding in a line, before it is known whether it passes."""
    value = finding.value
    return (
        f"{finding.adversary} on {finding.target}'s {finding.secret}: {finding.attack} {value.value:.3f} "
        f"[{value.low:.3f}, {value.high:.3f}]"
    )


def verdict_words(finding: Finding) -> str:
    """What a finding comes to, in a few words."""
    found = finding.verdict
    if finding.measure == "epsilon":
        if finding.limit is None:
            return "the ledger has no bound"
        return "above the ledger" if finding.passed is False else "within the ledger"
    if not finding.permitted:
        leak, none = ("LEAK", "says nothing") if finding.measure == "auc" else ("not as claimed", "as claimed")
        return leak if finding.passed is False else none
    if finding.passed is False:
        return limit_words(finding)
    if found is None or not found.found:
        return "no more than without" if finding.without is not None else "no more than guessing"
    return "more than without" if finding.without is not None else "more than guessing"


def limit_words(finding: Finding) -> str:
    """Which of its limits a finding exceeds, or may exceed: the upper end of the interval is held to them."""
    figures: dict[str, tuple[Interval, float]] = {}
    exceeded: tuple[str, ...] = finding.exceeded
    if finding.limit is not None:
        figures["auc"] = finding.value, finding.limit
    for rate, most in finding.rates.items():
        figures[rate] = (finding.figures or {})[rate], most
    words = []
    for name in filter(figures.__contains__, exceeded):
        value, most = figures[name]
        how = "above" if value.value > most else "may be above"
        words.append(f"{how} the limit of {most:.4g}" + ("" if name == "auc" else f" on {name}"))
    return ", ".join(words)


def untested_lines(untested: Sequence[Skipped]) -> list[str]:
    """Limits that nothing was held to, a line each, with what it comes to."""
    lines = [f"the audit failed: nothing was held to the limit on {each.attack} ({each.adversary}): {each.why}"
             for each in untested]  # fmt: skip
    return (
        [*lines, "whether such a limit is kept is not known: mount the attack, or take the limit out"] if lines else []
    )


def skipped_lines(skipped: Sequence[Skipped], *, details: bool) -> list[str]:
    """What was not mounted: a line each with details, else a line with their number."""
    if details or not skipped:
        return [f"{each.adversary}: {each.attack} was not mounted: {each.why}" for each in skipped]
    return [f"{counted(len(skipped), 'attack')} of the catalogue {'was' if len(skipped) == 1 else 'were'} not mounted; "
            "--details says which and why"]  # fmt: skip


def _figures(finding: Finding) -> str:
    """The figure with its interval, and what it is to be held against, a line each."""
    value = finding.value
    beside = {
        "without": None if finding.without is None else finding.without.value,
        "pooled": None if finding.pooled is None else finding.pooled.value,
        "limit": finding.limit,
        **{f"{name} ≤": most for name, most in finding.rates.items()},
    }
    lines = [f"{name} {held:.3f}" for name, held in beside.items() if held is not None]
    if finding.targets is not None:
        lines.append(f"{finding.targets[0]:,} and {finding.targets[1]:,}")
    return "\n".join([f"{value.value:.3f}", f"[{value.low:.3f}, {value.high:.3f}]", *lines])
