"""The command for differential privacy: budget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from veilgraph.cli.app import Overrides, command, read_settings
from veilgraph.cli.output import echo, messages, results
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError

if TYPE_CHECKING:
    from veilgraph.privacy.lifetime.ledger import Lifetime
    from veilgraph.privacy.local.settings import FeatureReleaseSettings, LabelPrivacySettings
    from veilgraph.privacy.sampled_settings import SampledPlan
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.organisation import Organisation

_TOTALS: Final = "1,2,4,8,16,32,64"
_MEANING: Final = "what these numbers mean: docs/privacy.md"


@command("budget", "veilgraph budget job.yaml --total 1,4,16", json=True)
def budget_command(
    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="JOB.yaml",
            help="The job; no data are read, and nothing is sent. May be left out with --party or --ledger.",
        ),
    ] = None,
    overrides: Overrides = None,
    total: Annotated[
        str | None,
        typer.Option(metavar="1,4,16", help=f"Total ε for which to show the noise that they need. Default: {_TOTALS}."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Nodes common to all holders, from which δ follows where the job has none."
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            min=1,
            max=100_000,
            metavar="N",
            help="The noise that a total needs for so many such jobs, each of another snapshot.",
        ),
    ] = 1,
    predictions: Annotated[
        int,
        typer.Option(
            min=0,
            max=10_000_000,
            metavar="N",
            help="And for so many predictions with nodes that enter, beside those of each job.",
        ),
    ] = 0,
    party: Annotated[
        Path | None,
        typer.Option(metavar="PARTY.yaml", help="Show what was ever released of this party's data, and what is left."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The same of the ledger there, of a party that brings a graph."),
    ] = None,
) -> None:
    """Show what a job's differential privacy costs before it runs, and what noise a wanted total ε needs."""
    if job is None and party is None and ledger is None:
        raise typer.BadParameter(
            "is missing; give a job, a party file with --party, a ledger's folder with --ledger, or two of them",
            param_hint="JOB.yaml",
        )
    if party is not None and ledger is not None:
        raise typer.BadParameter("--party says where its ledger is; give one of them", param_hint="--ledger")
    if job is None and (overrides or total is not None or nodes is not None or (jobs, predictions) != (1, 0)):
        raise typer.BadParameter(
            "--set, --total, --nodes, --jobs and --predictions are about a job; give one", param_hint="JOB.yaml"
        )
    totals = _totals(_TOTALS if total is None else total)
    settings = None if job is None else read_settings(job, overrides)
    from veilgraph.report.lifetime import ledger_at, ledger_in  # noqa: PLC0415

    facts: dict[str, object] = {}
    organisation = None if party is None else _organisation(party, settings)
    # What is wrong with either is told before anything is shown.
    own = None if organisation is None else ledger_at(organisation)
    graphs = None if ledger is None else ledger_in(ledger)
    if settings is not None:
        facts |= _shown(settings, totals, nodes, (jobs, predictions), asked=total is not None)
    if organisation is not None:
        facts["lifetime"] = _show_lifetime(organisation, own, settings, nodes)
    if graphs is not None:
        facts["lifetime"] = _show_ledger(graphs, settings, graphs.lines.header.party, nodes)
    echo(_MEANING)
    tell(facts)


def _shown(
    settings: JobSettings, totals: list[float], nodes: int | None, lasting: tuple[int, int], *, asked: bool
) -> dict[str, object]:
    """What a job costs, shown and as facts."""
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415

    if settings.training_plan is not None:
        if lasting != (1, 0) or nodes is not None:
            raise ConfigError(
                "--jobs and --predictions are about releases of embeddings, and --nodes about nodes that holders have "
                "in common; leave them out"
            )
        return _show_sampled(settings, settings.training_plan, totals if asked else [])
    if settings.label_privacy is not None:
        if asked or lasting != (1, 0) or nodes is not None:
            raise ConfigError(
                "--total, --jobs, --predictions and --nodes are about noise on embeddings; the ε of perturbed labels "
                "is in the job itself, has no δ, and the same labels are paid for once; leave them out"
            )
        return _show_labels(settings, settings.label_privacy)
    if not (paradigm := paradigm_of(settings)).has_privacy:
        raise ConfigError(
            f"paradigm={settings.paradigm!r}: there is no ε to count, for {paradigm.unbounded(settings)}",
            key="paradigm",
            value=settings.paradigm,
        )
    released: dict[str, object] = {}
    if settings.feature_release is not None and settings.privacy is not None:
        found = _show_releases(settings, settings.feature_release, nodes)
        released = {"released": found["holders"], "release_notes": found["notes"]}
    elif settings.feature_release is not None:
        if asked or lasting != (1, 0):
            raise ConfigError(
                "--total, --jobs and --predictions are about noise on embeddings; the ε of perturbed features is in "
                "the job itself; leave them out"
            )
        return _show_releases(settings, settings.feature_release, nodes)
    from veilgraph.report.budget import budget_facts, budget_notes, budget_table  # noqa: PLC0415
    from veilgraph.report.noise import (  # noqa: PLC0415
        Horizon,
        horizon_note,
        job_epsilons,
        noise_facts,
        noise_notes,
        noise_table,
    )

    horizon = Horizon(*lasting)
    with messages().status("accounting"):
        planned = None if settings.privacy is None else budget_table(settings, nodes)
        notes = budget_notes(settings, nodes)
        needed = noise_table(settings, totals, nodes, horizon)
        more = [note for note in (horizon_note(settings, totals, nodes, horizon), *noise_notes(settings)) if note]
    if planned is not None:
        results().print(planned)
    for note in notes:
        echo(note)
    if needed is not None:
        results().print(needed)
    for note in more:
        echo(note)
    expected = _show_expected(settings, job_epsilons(settings, totals, nodes, horizon))
    return {
        **released,
        "holders": None if settings.privacy is None else budget_facts(settings, nodes),
        "noise": noise_facts(settings, totals, nodes, horizon),
        "notes": [*notes, *more],
        "expected": expected,
    }


def _show_releases(settings: JobSettings, release: FeatureReleaseSettings, nodes: int | None) -> dict[str, object]:
    from veilgraph.report.releases import release_facts, release_notes, release_table  # noqa: PLC0415

    results().print(release_table(settings, release))
    notes = release_notes(settings, release, nodes)
    for note in notes:
        echo(note)
    return {"holders": release_facts(settings, release), "notes": notes}


def _show_sampled(settings: JobSettings, plan: SampledPlan, totals: list[float]) -> dict[str, object]:
    from veilgraph.report.sampled import (  # noqa: PLC0415
        noise_table,
        sampled_facts,
        sampled_noise,
        sampled_notes,
        sampled_table,
    )

    with messages().status("accounting"):
        table, needed = sampled_table(plan), sampled_noise(plan, totals)
    results().print(table)
    notes = sampled_notes(settings, plan)
    for note in notes:
        echo(note)
    if needed:
        results().print(noise_table(needed))
    of_job = {} if plan.settings.epsilon_total is None else {plan.settings.epsilon_total: plan.settings.epsilon_total}
    expected = _show_expected(settings, of_job | {total: total for total in totals})
    return {"holders": sampled_facts(settings, plan), "noise": needed, "notes": notes, "expected": expected}


def _show_labels(settings: JobSettings, private: LabelPrivacySettings) -> dict[str, object]:
    from veilgraph.report.labels import label_facts, label_notes, label_table  # noqa: PLC0415

    results().print(label_table(settings, private))
    notes = label_notes(settings, private)
    for note in notes:
        echo(note)
    expected = _show_expected(settings, {private.epsilon: private.epsilon})
    return {"holders": label_facts(settings, private), "notes": notes, "expected": expected}


def _show_expected(settings: JobSettings, epsilons: dict[float, float]) -> list[dict[str, object]]:
    """What came of such jobs where that was measured: total ε → that of one job."""
    from veilgraph.report.expected import expected_facts, expected_table, not_measured  # noqa: PLC0415

    table = expected_table(settings, epsilons)
    if table is not None:
        results().print(table)
    elif settings.privacy is not None and epsilons:
        echo(not_measured(settings))
    return expected_facts(settings, epsilons)


def _organisation(path: Path, settings: JobSettings | None) -> Organisation:
    """Whose party file it is, which is one of the job's holders."""
    from veilgraph.protocol.organisation import Organisation  # noqa: PLC0415
    from veilgraph.protocol.party_settings import party_folder, read_party_settings  # noqa: PLC0415

    found = read_party_settings(path)
    if settings is not None and found.party not in settings.data.names:
        raise ConfigError(
            f"--party {path}: party={found.party!r} is not in the job, whose holders are "
            f"{', '.join(settings.data.names)}; give one of theirs"
        )
    return Organisation(found, party_folder(path))


def _show_lifetime(
    organisation: Organisation, ledger: Lifetime | None, settings: JobSettings | None, nodes: int | None
) -> dict[str, object] | None:
    """What was ever released of a party's data, and what the job would take of what is left."""
    found = organisation.settings
    if ledger is None:
        limit, folder = found.limits.max_epsilon, organisation.folder / found.ledger
        left = "limits.max_epsilon sets no bound" if limit is None else f"all of limits.max_epsilon={limit:g} is left"
        echo(f"{found.party}: nothing was ever released ({folder} has no ledger); {left}")
        return None
    return _show_ledger(ledger, settings, found.party, nodes)


def _show_ledger(
    ledger: Lifetime, settings: JobSettings | None, party: str, nodes: int | None
) -> dict[str, object] | None:
    from veilgraph.report.lifetime import (  # noqa: PLC0415
        lifetime_facts,
        lifetime_table,
        outlook_facts,
        outlook_note,
    )

    results().print(lifetime_table(ledger))
    facts = lifetime_facts(ledger)
    if settings is not None:
        if party not in settings.data.names:
            raise ConfigError(
                f"--ledger: it is of {party!r}, and the job's holders are {', '.join(settings.data.names)}; give the "
                "ledger of one of them",
                key="--ledger",
                value=party,
            )
        outlook = outlook_facts(ledger, settings, party, nodes)
        echo(outlook_note(outlook, ledger))
        facts["after"] = outlook
    return facts


def _totals(text: str) -> list[float]:
    totals = []
    for word in text.split(","):
        try:
            totals.append(float(word))
        except ValueError:
            totals.append(math.nan)
        if not 0 < totals[-1] < math.inf:
            raise typer.BadParameter(
                f"{word!r} is no total ε; give finite numbers above 0 as in 1,4,16", param_hint="--total"
            )
    return totals
