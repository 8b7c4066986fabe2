"""What an attack found, beside what was to be found without the view, and in plaintext; and what all findings of an
audit come to: held against limits, judged together, and kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
from pydantic import TypeAdapter

from veilgraph.audit.statistics import Figure, Interval, Truth, Verdict, intervals, measure, verdict
from veilgraph.core.errors import ConfigError
from veilgraph.core.files import write_whole
from veilgraph.core.settings import config_errors
from veilgraph.core.types import PartyId
from veilgraph.protocol.job import ATTACKS, AttackLimit, JobSettings, LimitedFigure, Limits
from veilgraph.protocol.view import Floats

Secret = Literal["edges", "features", "labels", "membership", "noise", "nothing"]
CLIENT: Final = "client"
"""The adversary who takes no part and may ask for predictions; no party can be called that in an audit."""

AUDIT_FILE: Final = "audit.json"
FALSE_ALARM_RATE: Final = 0.01
"""Of all tests of evidence that must say nothing, together."""
NOTHING: Final = "it has nothing for that"

_AND: Final = "+"
_SAMPLES: Final = 400
_POINTS: Final = 101


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of an attack: scores of its targets, and what they are compared with.

    Attributes:
        scores: [T] float64, higher where it believes the target to be positive.
        truth: [T] bool.
        without: [T], of the adversary without the view: from its own data; None where it could but guess.
        pooled: [T], of one who has everybody's features, or a model of them, in plaintext; None where nobody is.
        accuracy: of a guess among several classes.
        threshold: of the scores, where one was fixed on other data.
    """

    scores: Floats
    truth: Truth
    without: Floats | None = None
    pooled: Floats | None = None
    accuracy: float | None = None
    threshold: float | None = None
    note: str = ""


def members_of(adversary: str) -> tuple[PartyId, ...]:
    """The parties whose views an adversary has: ``server+B`` is two that put theirs together."""
    return tuple(adversary.split(_AND))


def coalition_of(parties: Sequence[PartyId]) -> str:
    """Join parties to the name of a coalition, such as ``server+B``."""
    return _AND.join(parties)


@dataclass(frozen=True)
class Curve:
    """Points of a ROC, both axes rising."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


@dataclass(frozen=True)
class Finding:
    """One attack of one adversary on one holder's secret.

    Attributes:
        adversary: a party, several as ``members_of`` says, or ``CLIENT``.
        evidence: in words, what of its view the adversary used.
        permitted: whether the evidence is something that this party is meant to have; if not, it must tell nothing.
        measure: ``auc`` (0.5 is chance), ``epsilon`` (a lower bound) or ``p-value`` (of a test of what the run claims).
        without: the same figure for an adversary without the view; ``pooled``: for one with the pooled plaintext.
        gain: value minus ``without``, paired.
        verdict: whether it is more than chance, or than ``without``, could explain.
        limit: the highest value that passes; ``rates``: of those among ``figures`` that are limited.
        exceeded: the limited figures that do not pass.
        passed: None where nothing limits it.
        targets: how many it was measured on, positive and others; None of no AUC.
    """

    adversary: PartyId
    target: PartyId
    secret: Secret
    attack: str
    evidence: str
    permitted: bool
    measure: Literal["auc", "epsilon", "p-value"]
    value: Interval
    figures: Mapping[Figure, Interval] | None = None
    accuracy: float | None = None
    without: Interval | None = None
    pooled: Interval | None = None
    gain: Interval | None = None
    verdict: Verdict | None = None
    roc: Curve | None = None
    limit: float | None = None
    rates: Mapping[LimitedFigure, float] = field(default_factory=dict)
    exceeded: tuple[LimitedFigure | Literal["epsilon"], ...] = ()
    passed: bool | None = None
    note: str = ""
    targets: tuple[int, int] | None = None

    def judged(self, limits: AttackLimit | None, level: float) -> Self:
        """The finding held against its limits and, where its evidence must tell nothing, against chance at ``level``.

        A limited figure passes where all of its interval does; of ε, a lower bound, the value alone has to.
        """
        found = self.verdict
        leaks = not self.permitted and found is not None and found.p_value <= level
        verdict_ = None if found is None else replace(found, found=found.p_value <= level, level=level)
        highest: dict[LimitedFigure, float] = {} if limits is None else limits.figures()
        figures = {**(self.figures or {}), "auc": self.value}
        exceeded: tuple[LimitedFigure | Literal["epsilon"], ...] = tuple(
            name for name, most in highest.items() if figures[name].high > most
        )
        limit = highest.pop("auc", self.limit)
        if self.measure == "epsilon" and self.limit is not None and self.value.value > self.limit:
            exceeded = ("epsilon",)
        passed = None if self.permitted and limit is None and not highest else not (leaks or exceeded)
        return replace(self, verdict=verdict_, limit=limit, rates=highest, exceeded=exceeded, passed=passed)


@dataclass(frozen=True)
class Skipped:
    """An attack without a finding, and ``why``.

    Attributes:
        limited: a limit is on the attack, and so could not be tested.
        raised: it was mounted and ended with an error, ``why`` on one line.
    """

    adversary: PartyId
    attack: str
    why: str
    name: str | None = None
    limited: bool = False
    raised: bool = False


@dataclass(frozen=True)
class AuditResult:
    """All findings of an audit.

    Attributes:
        false_alarm_rate: of all tests of evidence that must tell nothing, together.
        attacks: the only ones that were asked for; None: all. Likewise ``adversaries``: None is each party by itself.
    """

    job: str
    paradigm: str
    seed: int
    false_alarm_rate: float
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...] = field(default=())
    attacks: tuple[str, ...] | None = None
    adversaries: tuple[str, ...] | None = None

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The findings that do not pass."""
        return tuple(finding for finding in self.findings if finding.passed is False)

    @property
    def untested(self) -> tuple[Skipped, ...]:
        """Skipped attacks that a limit is on: whether it is kept is not known, so the audit does not pass."""
        return tuple(skipped for skipped in self.skipped if skipped.limited)

    @property
    def broken(self) -> tuple[Skipped, ...]:
        """Attacks that ended with an error: what they would find is not known, so the audit does not pass."""
        return tuple(skipped for skipped in self.skipped if skipped.raised)

    @property
    def passed(self) -> bool:
        """Whether all findings pass, every limit was tested, and every mounted attack has a finding."""
        return not (self.failed or self.untested or self.broken)

    def record(self) -> dict[str, Any]:
        """The content of ``audit.json``."""
        return {"version": 2, **asdict(self)}


def measure_outcome(outcome: Outcome, *, seed: int, level: float, judged: Verdict | None = None) -> dict[str, Any]:
    """Return the measured fields of a ``Finding``: AUC and rates with intervals, ROC, baselines, gain and verdict.

    Without a verdict ``judged``, scores are read in the better direction, and tested by permutations at ``level``.
    Raises ``DataError``: there are too few targets of one kind.
    """
    scores, truth, threshold, note = outcome.scores, outcome.truth, outcome.threshold, outcome.note
    others = {"without": outcome.without, "pooled": outcome.pooled}
    if judged is None:
        others = {name: None if each is None else _in_better_direction(each, truth) for name, each in others.items()}
        if (turned := _in_better_direction(scores, truth)) is not scores:
            scores, threshold = turned, None  # which was fixed for the other direction
            note = " ".join(filter(None, [note, "Read the other way round: low scores are those that it finds."]))
    figures = intervals(scores, truth, seed=seed, samples=_SAMPLES, threshold=threshold)
    found: dict[str, Any] = {
        "measure": "auc",
        "value": figures.pop("auc"),
        "figures": figures,
        "accuracy": outcome.accuracy,
        "roc": _thinned_roc(scores, truth),
        "note": note,
        "targets": (int(truth.sum()), int((~truth).sum())),
    }
    for name, each in others.items():
        if each is not None:
            found[name] = intervals(each, truth, seed=seed, samples=_SAMPLES, figures=["auc"])["auc"]
    if (without := others["without"]) is not None:
        gain = intervals(scores, truth, seed=seed, samples=_SAMPLES, figures=["auc"], baseline=without)
        found["gain"] = gain["auc"]
    if judged is None:
        one = verdict(scores, truth, level=level, seed=seed, baseline=without, permutations=500)
        # The direction was chosen by looking, which doubles the chance of a false alarm.
        p_value = min(1.0, 2 * one.p_value)
        judged = replace(one, p_value=p_value, found=p_value <= one.level)
    return {**found, "verdict": judged}


def _in_better_direction(scores: Floats, truth: Truth) -> Floats:
    """The scores, negated if their AUC is below 0.5: where neighbours differ, a high score means no edge."""
    return -scores if measure(scores, truth).auc < 0.5 else scores


def _thinned_roc(scores: Floats, truth: Truth) -> Curve:
    """A ROC in at most ``_POINTS`` points, more of them where the false positive rate is low."""
    roc = measure(scores, truth)
    fpr, tpr = roc.false_positive_rate, roc.true_positive_rate
    grid = np.unique([*np.linspace(0, 1, _POINTS // 2), *np.geomspace(1e-3, 1, _POINTS - _POINTS // 2)])
    places = np.unique([0, *(np.searchsorted(fpr, grid, side="right") - 1), len(fpr) - 1])[:_POINTS]
    return Curve(tuple(fpr[places].round(6).tolist()), tuple(tpr[places].round(6).tolist()))


def limits_of(of_job: Mapping[str, AttackLimit], asked: Mapping[str, float | AttackLimit]) -> dict[str, AttackLimit]:
    """Return the job's limits, overridden figure by figure; ``ConfigError``: an attack is unknown, a limit invalid."""
    check_choice("limits", tuple(asked), tuple(ATTACKS))
    found = dict(of_job)
    with config_errors("limits"):
        for name, limit in TypeAdapter(Limits).validate_python(dict(asked)).items():
            before = found[name].figures() if name in found else {}
            found[name] = AttackLimit(**before | limit.figures())
    return found


def judge_findings(
    settings: JobSettings, seed: int, found: Sequence[Finding | Skipped], limits: Mapping[str, AttackLimit]
) -> AuditResult:
    """Judge all findings against limits and chance; a limit that no finding tests is added to what was skipped."""
    findings = [each for each in found if isinstance(each, Finding)]
    tried = {finding.attack for finding in findings}

    def held(each: Skipped) -> Skipped:
        """Set ``limited``: a limit is on this attack, unless others mounted it and there was nothing to attack here."""
        idle = each.why == NOTHING and each.name in tried
        return replace(each, limited=(each.name in limits and not idle) or (each.limited and bool(limits)))

    left = [held(each) for each in found if isinstance(each, Skipped)]
    named = {each.name for each in left if each.limited}
    left += [
        Skipped("no adversary", name, "nobody was asked to, or has anything to mount it on", name, limited=True)
        for name in limits
        if name not in tried | named
    ]
    level = FALSE_ALARM_RATE / max(1, sum(not finding.permitted for finding in findings))
    judged = tuple(
        each.judged(limits.get(each.attack), FALSE_ALARM_RATE if each.permitted else level) for each in findings
    )
    return AuditResult(settings.name, settings.paradigm, seed, FALSE_ALARM_RATE, judged, tuple(left))


def save_audit(folder: Path, result: AuditResult) -> None:
    """Writes ``audit.json`` into the directory of a run."""
    write_whole(folder / AUDIT_FILE, json.dumps(result.record(), indent=1, allow_nan=False, default=str).encode())


def check_choice(name: str, asked: Sequence[str] | None, known: Sequence[str]) -> tuple[str, ...]:
    """Return ``asked`` without repetitions, or all of ``known`` for None; ``ConfigError``: one is not ``known``."""
    unknown = [each for each in asked or () if each not in known]
    if unknown:
        raise ConfigError(f"{name}={unknown[0]!r} is not one of {', '.join(known)}; choose of these")
    return tuple(known) if asked is None else tuple(dict.fromkeys(asked))
