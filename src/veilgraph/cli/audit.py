"""The command that attacks a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final

import typer

from veilgraph.cli.app import command
from veilgraph.cli.output import echo, messages, results, say
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.protocol.audit_settings import (
    ATTACKS,
    LIMITED_FIGURES,
    UNLIMITED,
    AttackLimit,
    LimitedFigure,
)

if TYPE_CHECKING:
    from veilgraph.audit.audit import AuditPlan
    from veilgraph.audit.finding import AuditResult, Finding

FAILED: Final = 3


@command("audit", "veilgraph audit runs/digits --limit link-similarity=0.9", json=True)
def audit_command(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Directory of a complete run that was trained with --record-views.")
    ],
    adversaries: Annotated[
        list[str] | None,
        typer.Option(
            "--adversary",
            metavar="NAME",
            help="server, a holder, client, or several together: server+B. Default: each by itself.",
        ),
    ] = None,
    attacks: Annotated[
        list[str] | None,
        typer.Option("--attack", metavar="NAME", help=f"Of {', '.join((*ATTACKS, *UNLIMITED))}. Default: all."),
    ] = None,
    limits: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="ATTACK[:FIGURE]=MOST",
            help="Fail where an attack may find more, or cannot be mounted; over the job's limits. "
            "FIGURE: auc, tpr_at_1_percent or tpr_at_0_1_percent.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn: the same seed gives the same audit.")] = 0,
    shadows: Annotated[int, typer.Option(min=2, help="Models that adversaries train for the membership attacks.")] = 4,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            metavar="RUN",
            help="Another run of the same parties with views, or RUN itself: hold all recorded sessions against "
            "each other instead, and list what is repeated though it must be new. Takes no other option.",
        ),
    ] = None,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            metavar="",
            help="Print every finding, and why others are missing. Default: failed ones, and the strongest of each "
            "adversary on each secret.",
        ),
    ] = False,
) -> None:
    """Attack what each party of a run saw, measure the leakage, and compare that with limits.

    In one holder's part of a run across organisations, what the newest net submit --work audit found is shown.
    Else every adversary is given what its own link recorded and its own data, and the published attacks are mounted on
    that. Writes audit.json into the run's directory; veilgraph report RUN draws it. Exits with 3 where a limit of
    the job or of --limit is exceeded, or may be by the 95 % interval, or nothing could be held to it; where a
    message that must say nothing says something, where canaries prove a larger ε than the ledger has, or where the
    run is not what it claims: its noise, what it paid for, its low bits, splits and orders.
    """
    from veilgraph.audit.audit import AuditPlan, audit  # noqa: PLC0415
    from veilgraph.audit.verdicts import AUDIT_FILE  # noqa: PLC0415
    from veilgraph.report.audit import audit_table, row_words, skipped_lines, untested_lines  # noqa: PLC0415
    from veilgraph.report.page.strongest import strongest, worst  # noqa: PLC0415
    from veilgraph.report.progress import heartbeat, left_words  # noqa: PLC0415

    plan = AuditPlan(
        adversaries=tuple(adversaries) if adversaries else None,
        attacks=tuple(attacks) if attacks else None,
        limits=_limits(limits or []),
        seed=seed,
        shadows=shadows,
    )
    if beside is not None:
        if plan != AuditPlan(limits={}) or details:
            raise ConfigError(
                f"--beside={beside} compares sessions and mounts no attack; leave the other options out", key="--beside"
            )
        _compare(run, beside)
        return
    shown = _of_others(run, plan)
    if shown is None:
        console, doing, done, begun = messages(), ["auditing"], [0.0], monotonic()

        def state() -> str:
            return doing[-1] + left_words(monotonic() - begun, done[-1], 1.0)

        with console.status("auditing") as status, heartbeat(console, state):

            def show(words: str) -> None:
                doing[:] = [f"auditing · {words}"]
                status.update(state())

            def row(found: Finding) -> None:
                if not console.is_terminal:
                    console.print(row_words(found), soft_wrap=True, highlight=False)

            result = audit(run, plan, show, done.append, row)
    else:
        result = shown
    failed = set(map(id, result.failed))
    few = [each for each in strongest(result.findings) if id(each) not in failed]
    for line in worst(result.findings):
        echo(line)
    results().print(audit_table(result, None if details else [*result.failed, *few]))
    for line in skipped_lines(result.skipped, details=details):
        say(line)
    echo(f"audit   {run / AUDIT_FILE}\nreport  veilgraph report {run}")
    if result.failed:
        say(f"the audit failed: {len(result.failed)} of {len(result.findings)} findings do not pass")
    for line in untested_lines(result.untested):
        say(line)
    tell({"run": run, "failed": bool(result.failed or result.untested), **result.record()})
    if result.failed or result.untested:
        raise typer.Exit(FAILED)


def _compare(run: Path, other: Path) -> None:
    """Holds two runs' sessions against each other."""
    from veilgraph.audit.beside import audit_beside  # noqa: PLC0415

    sessions, found = audit_beside([run, other])
    for each in found:
        echo(str(each))
    echo(f"{len(sessions)} sessions held against each other: {len(found) or 'no'} repetitions")
    tell({"run": run, "beside": other, "sessions": [each.name for each in sessions], "found": list(map(str, found))})
    if found:
        raise typer.Exit(FAILED)


def _of_others(run: Path, plan: AuditPlan) -> AuditResult | None:
    """What an audit across organisations found; None where more than one party's part is here.

    Raises:
        ConfigError: something is asked for that it was not made with.
        RunError: there was none.
    """
    from veilgraph.audit.audit import AuditPlan  # noqa: PLC0415
    from veilgraph.report.page.audit_file import read_audit  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    opened = RunDirectory.open(run)
    here = [each for each in (*opened.settings.data.names, SERVER) if opened.party_path(each).is_dir()]
    if not opened.settings.data.is_apart or len(here) > 1:
        return None
    if plan != AuditPlan(limits={}):
        raise ConfigError(
            "options are for runs of all parties on one machine; an audit across organisations has the job's limits"
        )
    found = read_audit(run)
    if found is None:
        raise RunError(f"{run} was not audited; where all parties allow it: veilgraph net submit JOB.yaml --work audit")
    return found


def _limits(texts: Sequence[str]) -> dict[str, AttackLimit]:
    """The limits of a command line, those of one attack together."""
    found: dict[str, dict[LimitedFigure, float]] = {}
    for text in texts:
        attack, figure, highest = _limit(text)
        found.setdefault(attack, {})[figure] = highest
    return {attack: AttackLimit(**figures) for attack, figures in found.items()}


def _limit(text: str) -> tuple[str, LimitedFigure, float]:
    name, equals, value = text.partition("=")
    name, colon, asked = name.partition(":")
    figures = {each: each for each in LIMITED_FIGURES}
    figure = figures.get(asked if colon else "auc")  # type: ignore[call-overload]
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not equals or name not in ATTACKS or figure is None or not (0.5 if figure == "auc" else 0) <= number <= 1:
        raise typer.BadParameter(
            f"{text!r} is not ATTACK=AUC with one of {', '.join(ATTACKS)} and an AUC from 0.5 to 1, as in "
            "link-similarity=0.9, or ATTACK:FIGURE=RATE with tpr_at_1_percent or tpr_at_0_1_percent and a rate from 0 "
            "to 1, as in membership-lira:tpr_at_1_percent=0.05",
            param_hint="--limit",
        )
    return name, figure, number
