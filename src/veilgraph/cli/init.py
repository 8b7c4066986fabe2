"""Commands for files that people write: init, schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from veilgraph.cli.app import Replace, check_new, command
from veilgraph.cli.output import echo
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.files import write_whole
from veilgraph.core.types import Protected
from veilgraph.graph.settings import PARTY_FILE_SUFFIXES

_EPSILON: Final = 4.0


@command("init", "veilgraph init bank.yaml shop.yaml telco.yaml --out job.yaml")
def init_job_command(
    holders: Annotated[
        list[str],
        typer.Argument(
            metavar="HOLDERS...", help="Their party files; or, where they are elsewhere, their names alone."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The job file to write.")] = Path("job.yaml"),
    label_holder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Who has what is to be predicted. Default: the only party file that has a label."
        ),
    ] = None,
    paradigm: Annotated[
        str, typer.Option(metavar="NAME", help="vertical, sealed, horizontal, averaging.")
    ] = "vertical",
    select_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="What the best epoch has the best of: accuracy, auc, f1, loss. Default: of two classes auc, where the "
            "paradigm can.",
        ),
    ] = None,
    protect: Annotated[
        Protected | None,
        typer.Option(
            help="By noise, at --epsilon: one relation, one node's features, both, or one label (docs/privacy.md)."
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="E", min=0.001, help=f"Total ε of what --protect names. Default: {_EPSILON:g}."),
    ] = None,
    degree_bound: Annotated[
        int | None,
        typer.Option(metavar="D", min=1, help="The most neighbours of any node; with --protect node and node-edges."),
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the job. Default: that of its file.")] = None,
    replace: Replace = False,
) -> None:
    """Write a job file, with comments, for holders whose party files are there or whose names are known."""
    from veilgraph.protocol.aligning import match_rates  # noqa: PLC0415
    from veilgraph.protocol.job_draft import Protected, draft_job  # noqa: PLC0415
    from veilgraph.protocol.job_file import read_job  # noqa: PLC0415
    from veilgraph.protocol.party_settings import read_party_settings  # noqa: PLC0415

    check_new(out, replace=replace)
    files = [each for each in holders if each.endswith(PARTY_FILE_SUFFIXES)]
    if files and len(files) != len(holders):
        other = next(each for each in holders if each not in files)
        raise ConfigError(
            f"HOLDERS {other}: is no party file (.yaml), and {files[0]} is; give files alone or names alone"
        )
    twice = next((each for place, each in enumerate(holders) if each in holders[:place]), None)
    if twice is not None:
        raise ConfigError(f"HOLDERS {twice}: is given twice; give every holder once")
    parties = {Path(each): read_party_settings(Path(each)) for each in files}
    if protect is None and (degree_bound, epsilon) != (None, None):
        raise ConfigError("--epsilon and --degree-bound are for --protect: say what is to be protected, or leave both")
    drafted = draft_job(
        out.name.split(".")[0] if name is None else name,
        paradigm,
        parties or holders,
        label_holder,
        select_by,
        None if protect is None else Protected(protect, _EPSILON if epsilon is None else epsilon, degree_bound),
    )
    write_whole(out, drafted.text.encode())
    try:
        for said in match_rates(read_job(out)):
            echo(said)
    except DataError as error:  # of a table; the job file is as good
        echo(f"how many ids are common to all holders is not known: {error}")
    for decision in drafted.decisions:
        echo(f"to decide: {decision}")
    echo(
        f"{out} is written; "
        + (
            f"check it with: veilgraph check {out}"
            if files
            else f"hand it in with: veilgraph net submit {out} --kit KIT"
        )
    )


@command("schema", "veilgraph schema job")
def schema_command(
    file: Annotated[Literal["job", "party"], typer.Argument(help="Of a job file, or of a party file.")],
) -> None:
    """Print the JSON Schema of a file, for editors that complete and check keys."""
    from veilgraph.protocol.schemas import SCHEMAS  # noqa: PLC0415

    echo(json.dumps(SCHEMAS[file](), indent=1))
