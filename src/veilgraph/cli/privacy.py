"""The command for differential privacy: budget."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from veilgraph.cli.app import Overrides, command, messages, read_settings, results
from veilgraph.cli.telling import tell
from veilgraph.core.errors import ConfigError

if TYPE_CHECKING:
    from veilgraph.privacy.local.settings import FeatureReleaseSettings
    from veilgraph.protocol.job import JobSettings

_TOTALS: Final = "1,2,4,8,16,32,64"
_MEANING: Final = "what these numbers mean: docs/privacy.md"


@command("budget", "veilgraph budget job.yaml --total 1,4,16", json=True)
def budget_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job; no data are read, and nothing is sent.")],
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
) -> None:
    """Show what a job's differential privacy costs before it runs, and what noise a wanted total ε needs."""
    totals = _totals(_TOTALS if total is None else total)
    settings = read_settings(job, overrides)
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415

    if not paradigm_of(settings).has_privacy:
        raise ConfigError(
            f"paradigm={settings.paradigm!r} has no differential privacy in this release; there is no ε to count"
        )
    if settings.feature_release is not None:
        if total is not None:
            raise ConfigError("--total is about noise on embeddings; the ε of perturbed features is in the job itself")
        _show_releases(settings, settings.feature_release, nodes)
        return
    from veilgraph.report.budget import (  # noqa: PLC0415
        budget_facts,
        budget_notes,
        budget_table,
        noise_facts,
        noise_notes,
        noise_table,
    )

    with messages().status("accounting"):
        planned = None if settings.privacy is None else budget_table(settings, nodes)
        notes = budget_notes(settings, nodes)
        needed = noise_table(settings, totals, nodes)
    if planned is not None:
        results().print(planned)
    for note in notes:
        typer.echo(note)
    if needed is not None:
        results().print(needed)
    for note in noise_notes(settings):
        typer.echo(note)
    typer.echo(_MEANING)
    holders = None if settings.privacy is None else budget_facts(settings, nodes)
    tell({"holders": holders, "noise": noise_facts(settings, totals, nodes), "notes": [*notes, *noise_notes(settings)]})


def _show_releases(settings: JobSettings, release: FeatureReleaseSettings, nodes: int | None) -> None:
    from veilgraph.report.releases import release_facts, release_notes, release_table  # noqa: PLC0415

    results().print(release_table(settings, release))
    notes = release_notes(settings, release, nodes)
    for note in notes:
        typer.echo(note)
    typer.echo(_MEANING)
    tell({"holders": release_facts(settings, release), "notes": notes})


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
