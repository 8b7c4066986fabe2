"""The audit of a run: every adversary's view, every attack on it, and a verdict.

An attack sees what its adversary has and nothing else of the run. The truth that it is scored with, and what it is
granted to know, come from the other parties' parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from veilgraph.audit.attack import ATTACKS, Attack, AuditContext, joined_evidence, load_view, predictions_of, view_files
from veilgraph.audit.claims import run_check
from veilgraph.audit.epsilon import empirical_epsilon
from veilgraph.audit.finding import (
    CLIENT,
    FALSE_ALARM_RATE,
    NOTHING,
    AuditResult,
    Finding,
    Skipped,
    check_choice,
    coalition_of,
    judge_findings,
    limits_of,
    measure_outcome,
    members_of,
    save_audit,
)
from veilgraph.audit.sealing import against_chance, uniformity_test
from veilgraph.audit.statistics import Verdict, measure
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.core.text import cause_line
from veilgraph.core.types import SERVER, PartyId
from veilgraph.protocol.evidence import OPEN, SILENT, Evidence, evidence_of, posteriors, unused_messages
from veilgraph.protocol.job import CHECKS, UNLIMITED, AttackLimit, JobSettings
from veilgraph.runtime.store.run_directory import RunDirectory

log = logging.getLogger("veilgraph")

Progress = Callable[[str], None]
"""Called with what is about to be mounted."""
At = Callable[[float], None]
"""Called with which share of the work is done, about."""


@dataclass(frozen=True)
class AuditPlan:
    """What an audit is asked for: the arguments of ``api.runs.Run.audit``."""

    adversaries: tuple[PartyId, ...] | None = None
    attacks: tuple[str, ...] | None = None
    limits: Mapping[str, float | AttackLimit] | None = None
    seed: int = 0
    shadows: int = 4


def audit(
    path: Path,
    plan: AuditPlan | None = None,
    progress: Progress = lambda words: None,
    at: At = lambda share: None,
    row: Callable[[Finding], None] = lambda finding: None,
) -> AuditResult:
    """Attacks what each adversary saw in a complete run with views, and writes ``audit.json`` into its directory.

    By default everything is mounted. An attack that raises an error is listed as such, and the others go on.
    ``progress`` is called before every attack; ``row`` takes each finding as soon as it is known, though whether it
    passes is decided when all are.

    Raises ``RunError``: the run is not complete, or a view was not recorded; ``ConfigError``: the plan or the job names
    what there is not, or a holder has the name of an adversary.
    """
    asked = plan or AuditPlan()
    run = RunDirectory.open(path)
    run.result()
    settings = run.settings
    if CLIENT in settings.data.names:
        raise ConfigError(
            f"data.holders: a holder is called {CLIENT!r}, as the adversary who asks for predictions is; "
            "an audit needs another name for it"
        )
    case = AuditContext(run, seed=asked.seed, shadows=asked.shadows)
    _check_readable(case)
    adversaries = _canonical_adversaries(settings, asked.adversaries)
    for member in {member for each in adversaries if each != CLIENT for member in members_of(each)}:
        view_files(run, member)
    every = (*ATTACKS, *UNLIMITED)
    attacks = check_choice("attacks", asked.attacks, every)
    if asked.shadows < 2:
        raise ConfigError(f"shadows={asked.shadows!r} must be at least 2: an estimate of how models vary")
    limits = limits_of(settings.audit_limits, asked.limits or {})
    found = list[Finding | Skipped]()
    for place, adversary in enumerate(adversaries):
        named = set[str | None]()
        here = lambda share, place=place: at((place + share) / len(adversaries))  # noqa: E731
        mounted = _findings_of_adversary(case, adversary, attacks, progress, here)
        for one in _kept(adversary, "any attack", None, mounted):
            found.append(one)
            if isinstance(one, Finding):
                row(one)
            named.add(one.attack if isinstance(one, Finding) else one.name)
        idle = [name for name in every if asked.attacks is not None and name in attacks and name not in named]
        found += [Skipped(adversary, name, NOTHING, name) for name in idle]
    result = replace(
        judge_findings(settings, asked.seed, found, limits),
        attacks=None if asked.attacks is None else attacks,
        adversaries=None if asked.adversaries is None else adversaries,
    )
    save_audit(run.path, result)
    return result


def _check_readable(case: AuditContext) -> None:
    """Refuse (``RunError``) a run without every holder's data, trained in batches, or unreadable to its paradigm."""
    run, settings = case.run, case.settings
    names = settings.data.names
    missing = [name for name in names if not (run.party_path(name).is_dir() and run.party(name).graph_path.is_file())]
    if missing:
        raise RunError(
            f"{run.path} has no data of {', '.join(missing)}, and an audit needs the truth of what it attacks; audit a "
            "run of all parties on one machine or, across organisations: veilgraph net submit --work audit"
        )
    if settings.train.batch_size is not None and case.source.reads_passes:
        raise RunError(
            f"{run.path} was trained with train.batch_size={settings.train.batch_size}, and the audit reads passes "
            "over all nodes; train it without batch_size, on fewer nodes if need be, and audit that"
        )
    if reason := case.source.unreadable(case):
        raise RunError(f"{run.path} {reason}")


def evidence_for(run: RunDirectory, adversary: PartyId) -> list[Evidence]:
    """List what an adversary can attack with: a party its view, a coalition all its views, a client predictions."""
    if adversary != CLIENT:
        views = [load_view(run, member) for member in members_of(adversary)]
        return evidence_of(views[0]) if len(views) == 1 else joined_evidence(views)
    settings = run.settings
    return [
        posteriors(holder, settings.data.names if settings.is_aligned else (holder,), predictions_of(run.party(holder)))
        for holder in settings.duties.scoring
    ]


def _kept(
    adversary: str, attack: str, name: str | None, mounted: Iterable[Finding | Skipped]
) -> Iterator[Finding | Skipped]:
    """Yield what attacks find; where one cannot be mounted, or ends with an error, why."""
    try:
        yield from mounted
    except DataError as error:
        yield Skipped(adversary, attack, str(error), name)
    except Exception as error:
        # An attack's defect, or a package's, must not take the findings of the others.
        log.debug("%s: %s", adversary, attack, exc_info=True)
        yield Skipped(adversary, attack, cause_line(error), name, raised=True)


def _findings_of_adversary(
    case: AuditContext, adversary: PartyId, attacks: Sequence[str], progress: Progress, at: At
) -> Iterator[Finding | Skipped]:
    progress(f"reading what {adversary} has")
    try:
        found = evidence_for(case.run, adversary)
    except DataError as error:
        yield Skipped(adversary, "any attack", str(error), limited=True)
        return
    for place, evidence in enumerate(found):
        at(place / len(found))
        about = coalition_of(evidence.about)
        if evidence.sort == OPEN:
            why = f"the catalogue has none on this: {evidence.words}"
            yield Skipped(adversary, f"any attack on {about}", why)
        elif evidence.sort not in SILENT:
            yield from _findings_on_evidence(case, adversary, evidence, attacks, progress)
        elif "uniformity" in attacks:
            progress(f"{adversary}: {evidence.words}")
            words = f"uniformity of {evidence.words}"
            yield from _kept(adversary, words, "uniformity", _test_uniformity(case, adversary, evidence, about))
    if adversary != CLIENT and len(members_of(adversary)) == 1:
        view = case.view(adversary)
        for names, what in dict((*case.source.unattacked(view), *unused_messages(view, found))).items():
            yield Skipped(adversary, f"any attack on {names}", f"the catalogue has none on this: {what}")
        progress(f"{adversary}: what the run claims")
        for name in CHECKS:
            if name in attacks:
                yield from _kept(adversary, name, name, run_check(name, case, adversary))
    if "epsilon" in attacks:
        progress(f"{adversary}: canaries")
        yield from _kept(adversary, "epsilon", "epsilon", empirical_epsilon(case, adversary, found))


def _findings_on_evidence(
    case: AuditContext, adversary: PartyId, evidence: Evidence, attacks: Sequence[str], progress: Progress
) -> Iterator[Finding | Skipped]:
    for name, attack in ATTACKS.items():
        if name not in attacks or evidence.sort not in attack.sorts:
            continue
        for target in evidence.about:
            if attack.of_labels and case.graph(target).labels is None:
                continue
            progress(f"{adversary}: {name} on {target}, from {evidence.words}")
            mounted = _mount_attack(case, adversary, evidence, name, attack, target)
            yield from _kept(adversary, f"{name} on {target}", name, mounted)


def _mount_attack(
    case: AuditContext, adversary: PartyId, evidence: Evidence, name: str, attack: Attack, target: PartyId
) -> Iterator[Finding]:
    asked = evidence.on(case.graph(target))
    outcome = attack.mount(case.beside_own(asked, adversary, target), case, adversary, target)
    judged = None if evidence.permitted else against_chance(outcome, FALSE_ALARM_RATE)
    found = measure_outcome(outcome, seed=case.seed, level=FALSE_ALARM_RATE, judged=judged)
    yield Finding(adversary, target, attack.secret, name, evidence.words, permitted=evidence.permitted, **found)


def _test_uniformity(case: AuditContext, adversary: PartyId, evidence: Evidence, about: str) -> Iterator[Finding]:
    """The finding of ``uniformity_test`` on masked messages, which must look uniform."""
    outcome, p_value = uniformity_test(evidence, case.seed)
    auc, level = measure(outcome.scores, outcome.truth).auc, FALSE_ALARM_RATE
    judged = Verdict(p_value <= level, auc, against=0.5, p_value=p_value, level=level)
    found = measure_outcome(outcome, seed=case.seed, level=level, judged=judged)
    yield Finding(adversary, about, "nothing", "uniformity", evidence.words, permitted=False, **found)


def _canonical_adversaries(settings: JobSettings, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Check names of adversaries, by default all parties and the client; coalitions in the job's order of parties."""
    parties = (SERVER, *settings.data.names)
    if asked is None:
        return (*parties, CLIENT)
    found: list[str] = []
    for each in asked:
        members = members_of(each)
        if len(members) == 1:
            found += check_choice("adversaries", members, (*parties, CLIENT))
            continue
        check_choice("adversaries", members, parties)
        if len(set(members)) < len(members) or set(members) >= set(settings.data.names):
            raise ConfigError(
                f"adversaries={each!r}: name different parties, and leave a holder out, whose secrets they are after"
            )
        found.append(coalition_of([party for party in parties if party in members]))
    return tuple(dict.fromkeys(found))
