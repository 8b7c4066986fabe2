"""An audit for the terminal and the page: who attacks whose secret with what, how well, and what that comes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import from_json
from rich.table import Table

from veilgraph.audit.finding import AUDIT_FILE, AuditResult, Finding, Skipped
from veilgraph.audit.statistics import Interval
from veilgraph.core.errors import RunError
from veilgraph.core.files import run_errors
from veilgraph.core.text import counted, figure, listed
from veilgraph.report.run_data import RunData
from veilgraph.report.tables import Axis, Section, Span, add_row, line_chart, table

_VERSION: Final = 2
_CHANCE: Final = 0.5  # the AUC of a guess
_WIDTH, _INSET = 240.0, 8.0  # of an interval chart
# With more findings the strongest of each adversary on each secret come first, and all of them can be unfolded.
_FEW: Final = 8
_WORST: Final = 3  # sentences that an audit opens with


def read_audit(run: Path) -> AuditResult | None:
    """The audit of a run; None where it was not audited, a ``RunError`` where its file is not of this version."""
    path = run / AUDIT_FILE
    if not path.is_file():
        return None
    again = f"audit again with: veilgraph audit {run}"
    with run_errors(path, again):
        content = from_json(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.pop("version", None) != _VERSION:
            raise RunError(f"{path}: not an audit of version {_VERSION}; {again}")
        return TypeAdapter(AuditResult).validate_python(content)


# What a finding comes to


def limit_words(finding: Finding) -> str:
    """Which of its limits a finding exceeds, or may exceed: the upper end of the interval is held to them."""
    held = {} if finding.limit is None else {"auc": (finding.value, finding.limit)}
    held |= {rate: ((finding.figures or {})[rate], most) for rate, most in finding.rates.items()}
    words = []
    for name in filter(held.__contains__, map(str, finding.exceeded)):
        value, most = held[name]
        how = "above" if value.value > most else "may be above"
        words.append(f"{how} the limit of {most:.4g}" + ("" if name == "auc" else f" on {name}"))
    return ", ".join(words)


class Words(NamedTuple):
    """What a finding comes to: for the terminal, for the page, and as ``bad``, ``leak`` (a disclosed one), ``good``."""

    brief: str
    whole: str
    tone: str


def is_found(finding: Finding) -> bool:
    """Whether evidence that a party is meant to have tells it something: by its test or its interval, if either does.

    The interval is of the gain where there is a figure without the view, else of the AUC above chance.
    """
    tested = finding.verdict is not None and finding.verdict.found
    if finding.without is None:
        return tested or finding.value.low > _CHANCE
    return tested or (finding.gain is not None and finding.gain.low > 0)


def words_of(finding: Finding) -> Words:
    """Judge a finding in words; what evidence that must tell nothing came to is decided by the audit's own test."""
    failed, guessing = finding.passed is False, "no better than guessing"
    if finding.measure == "epsilon":
        leak = Words("above the ledger", "LEAK: more than the ledger's ε allows", "bad")
        brief = "the ledger has no bound" if finding.limit is None else "within the ledger"
        kept = Words(brief, "no more than the ledger's ε allows", "good")
    elif finding.measure == "p-value":
        leak = Words("not as claimed", "LEAK: the run is not what it claims", "bad")
        kept = Words("as claimed", "as the run claims", "good")
    elif not finding.permitted:
        leak = Words("LEAK", "LEAK: masked evidence tells something", "bad")
        kept = Words("says nothing", guessing, "good")
    else:
        found, than = is_found(finding), "guessing" if finding.without is None else "without"
        brief = limit_words(finding) if failed else f"{'more' if found else 'no more'} than {than}"
        if found:
            return Words(brief, f"better than {than}: a disclosed leak", "leak")
        knew = finding.without is not None and finding.value.low > _CHANCE
        return Words(brief, "says no more than it knew before" if knew else guessing, "good")
    return leak if failed else kept


def _severity(each: Finding) -> tuple[bool, int, float]:
    """Sort key of severity: a limit that is not kept, then the tone of ``words_of``, then the figure."""
    return each.passed is False, ("good", "leak", "bad").index(words_of(each).tone), each.value.value


def strongest(findings: Sequence[Finding]) -> list[Finding]:
    """Of each adversary on each secret the worst verdict and, of several, the highest figure; the worst first."""
    best: dict[tuple[str, str, str], Finding] = {}
    for each in findings:
        key = each.adversary, each.target, each.secret
        if key not in best or _severity(each) > _severity(best[key]):
            best[key] = each
    return sorted(best.values(), key=_severity, reverse=True)


def worst(findings: Sequence[Finding]) -> list[str]:
    """The worst secrets, a sentence each, with everybody who finds them; none where nothing is found."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for each in strongest(findings):
        if words_of(each).tone != "good" or each.passed is False:
            found.setdefault((each.target, each.secret), []).append(each)
    return [_finding_sentence(each) for each in list(found.values())[:_WORST]]


def _finding_sentence(found: Sequence[Finding]) -> str:
    first = found[0]
    who = listed([each.adversary for each in found])
    if first.measure != "auc":
        return f"{who}, on {first.target}: {words_of(first).whole} ({first.attack}, {first.evidence})."
    secret = {"nothing": "masked data", "membership": "training nodes"}.get(first.secret, first.secret)
    finds = "finds" if len(found) == 1 else "find"
    without = "" if first.without is None else f", {first.without.value:.3f} without what {first.adversary} saw"
    fails = "" if first.passed is not False else " This does not pass."
    return (
        f"{who} {finds} {first.target}'s {secret}: AUC {first.value.value:.3f} at {first.adversary}, by {first.attack} "
        f"from {first.evidence} (0.5 is guessing{without}).{fails}"
    )


# For the terminal


def audit_table(result: AuditResult, findings: Sequence[Finding] | None = None) -> Table:
    """A row for every finding, or for those that are to be shown."""
    found = table(
        "Audit",
        (),
        caption="AUC: 0.5 is guessing, 1 is certainty; epsilon: a lower bound; of what a run claims: a p-value. In "
        "brackets the 95 % interval. Without: the same adversary without what it saw. Pooled: with everybody's "
        "plaintext features. Below: how many targets are what is asked for, and how many are not.",
    )
    found.add_column("who, on whose", overflow="fold")
    found.add_column("attack, from", overflow="fold")
    found.add_column("found", justify="right", no_wrap=True)
    found.add_column("verdict", min_width=12)
    for finding in result.findings if findings is None else findings:
        what = {"nothing": "anything"}.get(finding.secret, finding.secret)
        cells = (
            f"{finding.adversary}\non {finding.target}'s\n{what}",
            f"{finding.attack}\n{finding.evidence}",
            "\n".join(_figure_lines(finding)),
            words_of(finding).brief,
        )
        add_row(found, cells, "bold red" if finding.passed is False else None)
        found.add_section()
    return found


def _figure_lines(finding: Finding) -> Iterator[str]:
    value = finding.value
    yield f"{value.value:.3f}"
    yield f"[{value.low:.3f}, {value.high:.3f}]"
    beside = {
        "without": None if finding.without is None else finding.without.value,
        "pooled": None if finding.pooled is None else finding.pooled.value,
        "limit": finding.limit,
        **{f"{name} ≤": most for name, most in finding.rates.items()},
    }
    yield from (f"{name} {held:.3f}" for name, held in beside.items() if held is not None)
    if finding.targets is not None:
        yield f"{finding.targets[0]:,} and {finding.targets[1]:,}"


def row_words(finding: Finding) -> str:
    """A finding in a line, before it is known whether it passes."""
    value = finding.value
    return (
        f"{finding.adversary} on {finding.target}'s {finding.secret}: {finding.attack} {value.value:.3f} "
        f"[{value.low:.3f}, {value.high:.3f}]"
    )


def untested_lines(untested: Sequence[Skipped]) -> list[str]:
    """Lines on limits that no finding tested, one each, and on what to do about them."""
    lines = [f"the audit failed: nothing was held to the limit on {each.attack} ({each.adversary}): {each.why}"
             for each in untested]  # fmt: skip
    return (
        [*lines, "whether such a limit is kept is not known: mount the attack, or take the limit out"] if lines else []
    )


def skipped_lines(skipped: Sequence[Skipped], *, details: bool) -> list[str]:
    """Lines on attacks without a finding: one for each error, and of others one each with ``details``, else a count."""
    lines = [f"the audit failed: {each.adversary}: {each.attack} ended with an error: {each.why}"
             for each in skipped if each.raised]  # fmt: skip
    idle = [each for each in skipped if not each.raised]
    if details or not idle:
        return [*(f"{each.adversary}: {each.attack} was not mounted: {each.why}" for each in idle), *lines]
    said = f"{counted(len(idle), 'attack')} of the catalogue {'was' if len(idle) == 1 else 'were'} not mounted"
    return [f"{said}; --details says which and why", *lines]


def scope_line(result: AuditResult) -> str:
    """Say which attacks and adversaries alone an audit was asked for; empty where it was asked for all."""
    asked = {"attacks": result.attacks, "adversaries": result.adversaries}
    only = [f"{what} {', '.join(names)}" for what, names in asked.items() if names is not None]
    return f"Only a part was asked for: {'; '.join(only)}. What all others would find is not known." if only else ""


# For the page


def audit(found: RunData) -> Section:
    """The audit of a run, if there is a ``report`` of one: of its findings how many had a limit to keep or had to tell
    nothing (``held``), and how many of these failed; ``strongest``: of many those of each adversary on each secret.
    """
    report = read_audit(found.path)
    if report is None:
        keeps_views = any(found.path.glob("parties/*/view/*.messages"))
        shown: Section = dict.fromkeys(("worst", "strongest", "tables"), ())
        shown |= {"verdict": "not audited", "tone": "plain", "beside": ()}
        return shown | {"report": None, "keeps_views": keeps_views}
    held = [finding for finding in report.findings if finding.passed is not None]
    failed = sum(finding.passed is False for finding in held)
    aucs, epsilons, claims = (
        [finding for finding in report.findings if finding.measure == measure]
        for measure in ("auc", "epsilon", "p-value")
    )
    known = [one for each in aucs for one in (each.value, each.without, each.pooled) if one is not None]
    lowest = min([0.45, *(interval.low for interval in known)])
    largest = max((max(each.value.high, each.limit or 0.0) for each in epsilons), default=0.0)
    axes = {
        "AUC": (aucs, _axis(max(lowest - 0.02, 0.0), 1.0)),
        "ε, a lower bound from the attack": (epsilons, _axis(0.0, 1.1 * largest or 1.0)),
        "What the run claims: p-values of what was seen": (claims, _axis(0.0, 1.0)),
    }
    limited = any(finding.limit is not None or finding.rates for finding in held) or bool(report.untested)
    sought, scope = strongest([each for each in aucs if each.permitted]), scope_line(report)
    leaks = [each.value.value for each in sought if is_found(each)]
    words = f"{len(leaks)} of {counted(len(sought), 'secret')} found" if sought else "no secret attacked"
    best = [f"the strongest with AUC {max(leaks):.3f}; 0.500 by guessing"] if leaks else []
    beside = [words] if limited or not report.passed else [*best, "no limits set"]
    return {
        "verdict": "failed" if not report.passed else "passed" if limited else words,
        "tone": "bad" if not report.passed else "good" if limited else "leak" if leaks else "plain",
        "beside": [*beside, *(["only a part was asked for"] if scope else [])],
        "scope": scope,
        **{"report": report, "held": len(held), "failed": failed, "limited": limited},
        "worst": worst(report.findings),
        "strongest": [_row(each, axes["AUC"][1]) for each in strongest(aucs)] if len(aucs) > _FEW else [],
        "tables": [
            {"name": name, "ticks": axis.ticks(6), "rows": [_row(finding, axis) for finding in findings]}
            for name, (findings, axis) in axes.items()
            if findings
        ],
    }


def _axis(low: float, high: float) -> Axis:
    return Axis(low, high, _INSET, _WIDTH - _INSET)


def _row(finding: Finding, axis: Axis) -> Section:
    """A finding in words, and where its marks go on the axis of its measure; ``gate``: whether its limit was kept."""
    name = {"epsilon": "ε at least", "p-value": "p"}.get(finding.measure, "AUC")
    intervals = {
        name: finding.value,
        "without the view": finding.without,
        "pooled plaintext": finding.pooled,
        "gain over without": finding.gain,
    }
    figures = [f"{label} {_interval_text(one)}" for label, one in intervals.items() if one is not None]
    if "tpr_at_1_percent" in (others := finding.figures or {}):
        figures.append(f"found at 1 % false alarms {100 * others['tpr_at_1_percent'].value:.1f} %")
    if finding.accuracy is not None:
        figures.append(f"right guesses {100 * finding.accuracy:.1f} %")
    if finding.targets is not None:
        figures.append(f"of {finding.targets[0]:,} targets and {finding.targets[1]:,} others")
    if finding.verdict is not None and finding.measure != "p-value":
        figures.append(f"p = {finding.verdict.p_value:.3g}")
    secrets = {"nothing": "anything at all", "noise": "canaries under the noise"}
    secret = "what the run claims" if finding.measure == "p-value" else secrets.get(finding.secret, finding.secret)
    who = f"{finding.adversary} against {finding.target}: {secret}"
    _, verdict, tone = words_of(finding)

    def span(one: Interval | None) -> Span | None:
        return None if one is None else axis.span(one.value, one.low, one.high)

    return {
        **{"finding": finding, "who": who, "figures": figures, "verdict": verdict, "tone": tone, "width": _WIDTH},
        "gate": _limit_verdict(finding),
        **{"value": span(finding.value), "without": span(finding.without), "pooled": span(finding.pooled)},
        "chance": axis.place(_CHANCE) if finding.measure == "auc" else None,
        "limit": None if finding.limit is None else axis.place(finding.limit),
        "roc": _roc_chart(finding, who),
    }


def _limit_verdict(finding: Finding) -> str:
    if finding.measure == "epsilon":
        if finding.limit is None:
            return ""
        return f"{'above' if finding.exceeded else 'within'} its limit of {finding.limit:.4g}"
    if finding.exceeded:
        return limit_words(finding)
    limits = ([] if finding.limit is None else [f"{finding.limit:.4g}"]) + [
        f"{most:.4g} on {name}" for name, most in finding.rates.items()
    ]
    return f"within its limit of {' and '.join(limits)}" if limits else ""


def _roc_chart(finding: Finding, who: str) -> Section | None:
    if finding.roc is None:
        return None
    points = list(zip(finding.roc.fpr, finding.roc.tpr, strict=False))
    return line_chart(
        f"{who}, {finding.attack}: AUC {figure(finding.value.value)}",
        f"Receiver operating characteristic of {finding.attack}.",
        [("guessing", [(0.0, 0.0), (1.0, 1.0)]), (finding.attack, points)],
        x_label="false alarms",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
        size=(220, 200),
        ticks=2,
    )


def _interval_text(interval: Interval) -> str:
    if interval.low == interval.high:
        return figure(interval.value)
    return f"{figure(interval.value)} [{figure(interval.low)}, {figure(interval.high)}]"
