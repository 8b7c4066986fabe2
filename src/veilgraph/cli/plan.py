"""The command that says what a job will cost: plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilgraph.cli.app import Overrides, command, read_settings
from veilgraph.cli.output import echo, results
from veilgraph.cli.telling import plain, tell
from veilgraph.core.errors import ConfigError

if TYPE_CHECKING:
    from veilgraph.core.types import PartyId
    from veilgraph.protocol.costs import PartySizes
    from veilgraph.protocol.job import JobSettings

_EACH = "NAME=NUMBER, once for every holder, where the job's data are not on this machine"


@command("plan", "veilgraph plan job.yaml --bandwidth 100 --round-trip 40", json=True)
def plan_command(
    job: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job; nothing is sent.")],
    overrides: Overrides = None,
    bandwidth: Annotated[
        float, typer.Option(min=0.001, metavar="MBIT", help="Megabits that each party sends in a second.")
    ] = 1000.0,
    round_trip: Annotated[
        float, typer.Option(min=0.0, metavar="MS", help="Milliseconds of a round trip between two parties.")
    ] = 1.0,
    nodes: Annotated[int | None, typer.Option(min=1, metavar="N", help="Nodes common to all holders.")] = None,
    training: Annotated[int | None, typer.Option(min=1, metavar="T", help="Training nodes.")] = None,
    classes: Annotated[int | None, typer.Option(min=2, metavar="C", help="Classes.")] = None,
    validation: Annotated[
        int | None, typer.Option(min=1, metavar="V", help="Validation nodes, of a job that judges its steps.")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option(metavar="NAME=F", help=f"Feature columns: {_EACH}.")] = None,
    edges: Annotated[list[str] | None, typer.Option(metavar="NAME=E", help=f"Directed edges: {_EACH}.")] = None,
) -> None:
    """Show what a job will send, how often its parties wait for each other, and the memory that each needs."""
    settings = read_settings(job, overrides)
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415
    from veilgraph.report.plan import costs_table  # noqa: PLC0415

    paradigm = paradigm_of(settings)
    unknown = (
        f"paradigm={settings.paradigm!r}: what its jobs send depends on more than sizes, so no plan is made of them; a "
        "run's report says what it sent"
    )
    if not paradigm.has_costs:
        raise ConfigError(unknown)
    given = nodes, training, classes, validation, columns, edges
    if any(given):
        common, sizes = _given(settings, *given)
    else:
        common, sizes = _of_data(settings)
    costs = paradigm.costs(settings, common, sizes)
    if costs is None:
        raise ConfigError(unknown)
    results().print(costs_table(costs))
    for note in costs.notes:
        echo(note)
    seconds = costs.seconds(bandwidth * 1e6, round_trip / 1000)
    echo(
        f"on the network about {seconds:,.1f} s, at {bandwidth:g} Mbit/s and round trips of {round_trip:g} ms; "
        "computing comes on top"
    )
    tell({**plain(costs), "rounds": costs.rounds, "sent": costs.sent(), "seconds": seconds})


def _of_data(settings: JobSettings) -> tuple[int, dict[PartyId, PartySizes]]:
    """Of a data set, or of saved graphs."""
    from veilgraph.protocol.costs import size_of  # noqa: PLC0415
    from veilgraph.protocol.paradigm import paradigm_of  # noqa: PLC0415

    if settings.data.from_tables:
        raise ConfigError(
            "this job's data are tables, of which only an alignment tells how many nodes are common: give --nodes, "
            "--training, --classes, and --columns and --edges of every holder"
            if settings.is_aligned
            else "this job's data are tables, which a plan does not read: give --classes, and --columns of every holder"
        )
    graphs = paradigm_of(settings).load(settings).graphs
    return graphs[0].common, {graph.party: size_of(graph) for graph in graphs}


def _given(
    settings: JobSettings,
    nodes: int | None,
    training: int | None,
    classes: int | None,
    validation: int | None,
    columns: list[str] | None,
    edges: list[str] | None,
) -> tuple[int, dict[PartyId, PartySizes]]:
    from veilgraph.protocol.costs import PartySizes  # noqa: PLC0415

    if not settings.is_aligned:
        counted = {"--nodes": nodes, "--training": training, "--validation": validation, "--edges": edges}
        for option in (name for name, value in counted.items() if value):
            way = f"jobs of paradigm {settings.paradigm} send as much whatever it is; leave it out"
            raise typer.BadParameter(way, param_hint=option)
        if classes is None:
            raise typer.BadParameter("sizes are given all or none", param_hint="--classes")
        each = _numbers("--columns", columns, settings)
        return 0, {holder: PartySizes(count, 0, classes=classes) for holder, count in each.items()}
    for option, value in (("--nodes", nodes), ("--training", training), ("--classes", classes)):
        if value is None:
            raise typer.BadParameter("sizes are given all or none", param_hint=option)
    found = _numbers("--columns", columns, settings), _numbers("--edges", edges, settings)
    sizes = {}
    for holder in settings.data.names:
        own = (training or 0, classes or 0, validation or 0) if holder == settings.data.label_party else ()
        sizes[holder] = PartySizes(found[0][holder], found[1][holder], *own)
    return nodes or 0, sizes


def _numbers(option: str, words: list[str] | None, settings: JobSettings) -> dict[PartyId, int]:
    found: dict[PartyId, int] = {}
    for word in words or []:
        name, _, number = word.partition("=")
        if name not in settings.data.names or not number.isdecimal():
            holders = ", ".join(settings.data.names)
            raise typer.BadParameter(f"{word!r} is not NAME=NUMBER with a holder of {holders}", param_hint=option)
        found[name] = int(number)
    missing = [name for name in settings.data.names if name not in found]
    if missing:
        raise typer.BadParameter(f"of {', '.join(missing)} as well: {_EACH}", param_hint=option)
    return found
