"""One finding of an audit as a row of the page's table: its marks on an axis, figures and a verdict in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from veilgraph.audit.finding import Finding
from veilgraph.audit.statistics import Interval
from veilgraph.core.words import figure
from veilgraph.report.audit import limit_words
from veilgraph.report.page.charts import Axis, IntervalChart, LineChart, Span, line_chart, span

CHANCE: Final = 0.5
"""The AUC of a guess."""
WIDTH: Final = 240.0
"""Of an interval chart."""

_SECRETS: Final = {"nothing": "anything at all", "noise": "canaries under the noise"}
_NOT_AS_CLAIMED: Final = "LEAK: the run is not what it claims"
_AS_CLAIMED: Final = "as the run claims"
_MASKED_LEAK: Final = "LEAK: masked evidence tells something"
_EPSILON_LEAK: Final = "LEAK: more than the ledger's ε allows"
_EPSILON_KEPT: Final = "no more than the ledger's ε allows"
_GUESSING: Final = "no better than guessing"
_KNEW: Final = "says no more than it knew before"
_DISCLOSED: Final = "better than without: a disclosed leak"
_BETTER: Final = "better than guessing: a disclosed leak"


@dataclass(frozen=True)
class Row:
    """One finding as the table has it.

    Attributes:
        who: the adversary and whose what it is after.
        attack: its name.
        evidence: what it used.
        permitted: whether the threat model gives it that.
        chart: its figure, what it is held against, and the limit.
        figures: the same in numbers, a line each.
        verdict: in words.
        tone: ``bad``, ``leak`` (disclosed) or ``good``.
        gate: the limit and whether it was kept; empty without one.
        gate_tone: ``bad`` where it was not, else ``plain``.
        note: of the audit.
        roc: None where the audit has none.
    """

    who: str
    attack: str
    evidence: str
    permitted: bool
    chart: IntervalChart
    figures: tuple[str, ...]
    verdict: str
    tone: str
    gate: str
    gate_tone: str
    note: str
    roc: LineChart | None


def verdict_of(finding: Finding) -> tuple[str, str]:
    """What a finding comes to in words, and its tone.

    Evidence that a party may have is judged by the test or by the interval, whichever sees more: the words never say
    less than what is drawn.
    """
    if finding.measure == "epsilon":
        return (_EPSILON_LEAK, "bad") if finding.passed is False else (_EPSILON_KEPT, "good")
    if finding.measure == "p-value":
        return (_NOT_AS_CLAIMED, "bad") if finding.passed is False else (_AS_CLAIMED, "good")
    if not finding.permitted:
        return (_MASKED_LEAK, "bad") if finding.passed is False else (_GUESSING, "good")
    tested, above_chance = finding.verdict is not None and finding.verdict.found, finding.value.low > CHANCE
    if finding.without is None:
        return (_BETTER, "leak") if tested or above_chance else (_GUESSING, "good")
    if tested or (finding.gain is not None and finding.gain.low > 0):
        return _DISCLOSED, "leak"
    return (_KNEW if above_chance else _GUESSING), "good"


def row_of(finding: Finding, axis: Axis) -> Row:
    """A finding, its figure on an axis."""
    verdict, tone = verdict_of(finding)
    figures = [f"{_name(finding)} {_interval(finding.value)}"]
    for label, interval in (
        ("without the view", finding.without),
        ("pooled plaintext", finding.pooled),
        ("gain over without", finding.gain),
    ):
        if interval is not None:
            figures.append(f"{label} {_interval(interval)}")
    if "tpr_at_1_percent" in (others := finding.figures or {}):
        figures.append(f"found at 1 % false alarms {100 * others['tpr_at_1_percent'].value:.1f} %")
    if finding.accuracy is not None:
        figures.append(f"right guesses {100 * finding.accuracy:.1f} %")
    if finding.targets is not None:
        figures.append(f"of {finding.targets[0]:,} targets and {finding.targets[1]:,} others")
    if finding.verdict is not None and finding.measure != "p-value":
        figures.append(f"p = {finding.verdict.p_value:.3g}")
    secret = "what the run claims" if finding.measure == "p-value" else _SECRETS.get(finding.secret, finding.secret)
    who = f"{finding.adversary} against {finding.target}: {secret}"
    return Row(
        who=who,
        attack=finding.attack,
        evidence=finding.evidence,
        permitted=finding.permitted,
        chart=_chart(finding, axis, "; ".join(figures)),
        figures=tuple(figures),
        verdict=verdict,
        tone=tone,
        gate=_gate(finding),
        gate_tone="bad" if finding.passed is False else "plain",
        note=finding.note,
        roc=_roc(finding, who),
    )


def _chart(finding: Finding, axis: Axis, words: str) -> IntervalChart:
    return IntervalChart(
        words,
        WIDTH,
        _span(axis, finding.value),
        None if finding.without is None else _span(axis, finding.without),
        None if finding.pooled is None else _span(axis, finding.pooled),
        axis.place(CHANCE) if finding.measure == "auc" else None,
        None if finding.limit is None else axis.place(finding.limit),
    )


def _gate(finding: Finding) -> str:
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


def _roc(finding: Finding, who: str) -> LineChart | None:
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


def _name(finding: Finding) -> str:
    return {"epsilon": "ε at least", "p-value": "p"}.get(finding.measure, "AUC")


def _interval(interval: Interval) -> str:
    if interval.low == interval.high:
        return figure(interval.value)
    return f"{figure(interval.value)} [{figure(interval.low)}, {figure(interval.high)}]"


def _span(axis: Axis, interval: Interval) -> Span:
    return span(axis, (interval.value, interval.low, interval.high))
