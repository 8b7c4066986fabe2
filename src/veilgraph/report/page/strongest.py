"""Which findings of an audit say most: the strongest of each adversary on each secret, and the worst as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from veilgraph.audit.finding import Finding
from veilgraph.core.words import listed
from veilgraph.report.page.audit_rows import verdict_of

WORST: Final = 3
"""Sentences that an audit opens with."""
_TONES: Final = ("good", "leak", "bad")


def strongest(findings: Sequence[Finding]) -> list[Finding]:
    """Of each adversary on each secret the worst verdict and, of several, the highest figure; the worst first."""
    best: dict[tuple[str, str, str], Finding] = {}
    for each in findings:
        key = each.adversary, each.target, each.secret
        if key not in best or _rank(each) > _rank(best[key]):
            best[key] = each
    return sorted(best.values(), key=_rank, reverse=True)


def worst(findings: Sequence[Finding], most: int = WORST) -> list[str]:
    """The worst secrets, a sentence each, with everybody who finds them; none where nothing is found."""
    found: dict[tuple[str, str], list[Finding]] = {}
    for each in strongest(findings):
        if verdict_of(each)[1] != "good" or each.passed is False:
            found.setdefault((each.target, each.secret), []).append(each)
    return [_sentence(each) for each in list(found.values())[:most]]


def _sentence(found: Sequence[Finding]) -> str:
    first = found[0]
    who = listed([each.adversary for each in found])
    if first.measure != "auc":
        return f"{who}, on {first.target}: {verdict_of(first)[0]} ({first.attack}, {first.evidence})."
    secret = {"nothing": "masked data", "membership": "training nodes"}.get(first.secret, first.secret)
    finds = "finds" if len(found) == 1 else "find"
    without = "" if first.without is None else f", {first.without.value:.3f} without what {first.adversary} saw"
    fails = "" if first.passed is not False else " This does not pass."
    return (
        f"{who} {finds} {first.target}'s {secret}: AUC {first.value.value:.3f} at {first.adversary}, by {first.attack} "
        f"from {first.evidence} (0.5 is guessing{without}).{fails}"
    )


def _rank(each: Finding) -> tuple[bool, int, float]:
    """A limit that is not kept counts most, then what must tell nothing and does, then the figure."""
    return each.passed is False, _TONES.index(verdict_of(each)[1]), each.value.value
