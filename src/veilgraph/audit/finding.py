"""What an attack found, beside what was to be found without the view, and in plaintext."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, Self

import numpy as np

from veilgraph.audit.roc import Floats, Truth
from veilgraph.audit.statistics import Figure, Interval, Verdict, differences, intervals, measure, verdict
from veilgraph.core.audit_settings import AttackName
from veilgraph.core.types import PartyId

Secret = Literal["edges", "features", "labels", "membership", "noise", "nothing"]
CLIENT: Final = "client"
"""The adversary who takes no part and may ask for predictions; no party can be called that in an audit."""

_SAMPLES: Final = 400
_PERMUTATIONS: Final = 500
_POINTS: Final = 101


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an attack says of its targets.

    Attributes:
        scores: [T] float64, higher where it believes the target to be positive.
        truth: [T] bool.
        without: [T], of the adversary without the view: from its own data; None where it could but guess.
        pooled: [T], of one who has everybody's features (and, where it says so, a model of all data) in plaintext;
            None where there is no such adversary.
        accuracy: of a guess among several classes.
        threshold: of the scores, where one was fixed on other data.
        note: a sentence.
    """

    scores: Floats
    truth: Truth
    without: Floats | None = None
    pooled: Floats | None = None
    accuracy: float | None = None
    threshold: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """Points of a ROC, both axes rising."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


@dataclass(frozen=True)
class Finding:
    """One attack of one adversary on one holder's secret.

    Attributes:
        adversary: a party, or ``CLIENT``.
        target: whose secret.
        secret: what the attack is after.
        attack: its name.
        evidence: in words, what of its view the adversary used.
        permitted: whether the evidence is something that this party is meant to have; if not, it must tell nothing.
        measure: ``auc`` (0.5 is chance) or ``epsilon`` (a lower bound).
        value: with its interval.
        figures: others by name, with theirs.
        accuracy: of a guess among several classes.
        without: the same figure for an adversary without the view.
        pooled: the same figure for one with the pooled plaintext.
        gain: value minus ``without``, paired.
        verdict: whether it is more than chance, or than ``without``, could explain.
        roc: of the attack.
        limit: the highest value that passes.
        passed: None where nothing limits it.
        note: a sentence.
    """

    adversary: PartyId
    target: PartyId
    secret: Secret
    attack: AttackName
    evidence: str
    permitted: bool
    measure: Literal["auc", "epsilon"]
    value: Interval
    figures: Mapping[Figure, Interval] | None = None
    accuracy: float | None = None
    without: Interval | None = None
    pooled: Interval | None = None
    gain: Interval | None = None
    verdict: Verdict | None = None
    roc: Curve | None = None
    limit: float | None = None
    passed: bool | None = None
    note: str = ""

    def judged(self, limit: float | None, level: float) -> Self:
        """The finding held against its limit and, where its evidence must tell nothing, against chance.

        Args:
            limit: the highest value that passes; None: any.
            level: the false-alarm rate of this one test.
        """
        found = self.verdict
        leaks = not self.permitted and found is not None and found.p_value <= level
        exceeds = limit is not None and self.value.value > limit
        verdict_ = None if found is None else replace(found, found=found.p_value <= level, level=level)
        passed = None if self.permitted and limit is None else not (leaks or exceeds)
        return replace(self, verdict=verdict_, limit=limit, passed=passed)

    def record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Skipped:
    """An attack that was not mounted, and why."""

    adversary: PartyId
    attack: str
    why: str


@dataclass(frozen=True)
class AuditResult:
    """All findings of an audit.

    Attributes:
        false_alarm_rate: of all tests of evidence that must tell nothing, together.
        findings: in the order of the adversaries.
        skipped: what was not mounted.
    """

    job: str
    paradigm: str
    seed: int
    false_alarm_rate: float
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = field(default=())

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that do not pass."""
        return tuple(finding for finding in self.findings if finding.passed is False)

    def record(self) -> dict[str, Any]:
        """As ``audit.json`` has it."""
        return {"version": 1, **asdict(self)}


def measured(outcome: Outcome, *, seed: int, level: float, judged: Verdict | None = None) -> dict[str, Any]:
    """The measured part of a ``Finding``: its AUC and all that it is compared with.

    Args:
        outcome: of the attack.
        seed: of bootstrap and permutations.
        level: of the verdict.
        judged: a verdict by another test; None makes one by permutations.

    Raises:
        DataError: there are too few targets of one kind.
    """
    scores, truth = outcome.scores, outcome.truth
    figures = intervals(scores, truth, seed=seed, samples=_SAMPLES, threshold=outcome.threshold)
    found: dict[str, Any] = {
        "measure": "auc",
        "value": figures.pop("auc"),
        "figures": figures,
        "accuracy": outcome.accuracy,
        "roc": _curve(scores, truth),
        "note": outcome.note,
    }
    for name in ("without", "pooled"):
        others = getattr(outcome, name)
        if others is not None:
            found[name] = intervals(others, truth, seed=seed, samples=_SAMPLES)["auc"]
    if outcome.without is not None:
        found["gain"] = differences(scores, outcome.without, truth, seed=seed, samples=_SAMPLES)["auc"]
    found["verdict"] = judged or verdict(
        scores, truth, level=level, seed=seed, baseline=outcome.without, permutations=_PERMUTATIONS
    )
    return found


def _curve(scores: Floats, truth: Truth) -> Curve:
    """A ROC in at most ``_POINTS`` points, more of them where the false positive rate is low."""
    roc = measure(scores, truth).roc
    fpr, tpr = roc.false_positive_rate, roc.true_positive_rate
    grid = np.concatenate([np.linspace(0, 1, _POINTS // 2), np.geomspace(1e-3, 1, _POINTS - _POINTS // 2)])
    places = np.unique(np.searchsorted(fpr, np.unique(grid), side="right") - 1)
    places = np.unique(np.concatenate([[0], places, [len(fpr) - 1]]))[:_POINTS]
    return Curve(tuple(fpr[places].round(6).tolist()), tuple(tpr[places].round(6).tolist()))
