"""The command that tells what a run was: tables, a page, or whether its records are those that were signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import command
from veilgraph.cli.output import echo, messages, results
from veilgraph.cli.telling import tell


@command("report", "veilgraph report runs/digits", json=True)
def report_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Directory of a run, whole or one organisation's part, or of a comparison; of several runs one page.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="The page. Default: RUN/report.html, DIR/comparison.html; of several runs.html beside the first.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="A column of the label holder's own tables: how well each group of test nodes is predicted.",
        ),
    ] = None,
    party: Annotated[
        Path | None,
        typer.Option(metavar="party.yaml", help="With --by: the label holder's party file. Default: the job's."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="Check that the records are those that were signed; no page.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --verify: the project's root certificate. Default: the run's own copy."
        ),
    ] = None,
) -> None:
    """Show what each party sent to whom, why it may leave the party, and what privacy it has cost; and write a page.

    The page is one HTML file that loads nothing: the job in words, who learned what, curves and scores, traffic,
    privacy ledgers, and the audit if there was one.

    Of several runs: the settings that differ, what each reached, and their curves over one another. Of a comparison:
    its page anew.

    With --verify nothing is written: every line of the records, and every signature and countersignature, is checked.
    Exits with 1 at the first that is not as it was signed, and names the file and the line.
    """
    _check(runs, out, by, party, root, verify=verify)
    run, *others = runs
    if verify:
        _verify(run, root)
        return
    if others:
        _several(runs, out)
        return
    from veilgraph.report.disclosures import disclosure_table, read_disclosures, reasons_table  # noqa: PLC0415
    from veilgraph.report.page.assemble import PAGE, write_page  # noqa: PLC0415
    from veilgraph.report.page.compared import write_comparison  # noqa: PLC0415
    from veilgraph.report.page.comparison_file import is_comparison  # noqa: PLC0415
    from veilgraph.report.spent import life_note, read_spent, spent_table  # noqa: PLC0415
    from veilgraph.run.evidence import who_deals  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    if is_comparison(run):
        if by is not None:
            raise typer.BadParameter(f"is of a run, and {run} is a comparison; leave it out", param_hint="--by")
        echo(f"page    {write_comparison(run, out)}")
        return
    directory, page = RunDirectory.open(run), out or run / PAGE
    with messages().status("writing the page"):
        write_page(directory, page, by, party)
    records = [record for file in sorted(run.glob("parties/*/disclosures.jsonl")) for record in read_disclosures(file)]
    if (deals := who_deals(sorted(run.glob("parties/*")))) is not None:
        echo(f"party server is certified as {deals}")
    if records:
        results().print(disclosure_table(records))
        results().print(reasons_table(records))
    else:
        echo("nothing is on record as sent in this run yet")
    if spent := read_spent(directory):
        results().print(spent_table(spent, directory.settings))
        if said := life_note(spent):
            echo(said)
    echo(f"page    {page}")
    tell({"run": run, "page": page, "deals": deals, "sent": records, "spent": spent or None})


def _check(
    runs: list[Path], out: Path | None, by: str | None, party: Path | None, root: Path | None, *, verify: bool
) -> None:
    """Refuses options that do not go together, before anything is read."""
    wrong = {
        "--out": (verify and out is not None, "--verify writes no page; leave one of the two out"),
        "--verify": (verify and len(runs) > 1, "is of one run; give one, or leave it out"),
        "--by": (by is not None and (verify or len(runs) > 1), "is of the page of one run; leave it out"),
        "--party": (party is not None and by is None, "is for --by; give both, or leave it out"),
        "--root": (root is not None and not verify, "is for --verify; give both, or leave it out"),
    }
    for option, (refused, why) in wrong.items():
        if refused:
            raise typer.BadParameter(why, param_hint=option)
    if out is not None and out.suffix != ".html":
        raise typer.BadParameter(f"{out} must end in .html", param_hint="--out")


def _several(runs: list[Path], out: Path | None) -> None:
    from veilgraph.report.page.several import PAGE, write_several  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415

    page = out or runs[0].absolute().parent / PAGE
    with messages().status("writing the page"):
        write_several([RunDirectory.open(run) for run in runs], page)
    echo(f"page    {page}")


def _verify(run: Path, root: Path | None) -> None:
    from veilgraph.link.identity import load_roots  # noqa: PLC0415
    from veilgraph.report.evidence import evidence_table  # noqa: PLC0415
    from veilgraph.run.run_directory import RunDirectory  # noqa: PLC0415
    from veilgraph.run.verifying import verify  # noqa: PLC0415

    roots = () if root is None else load_roots(root)
    found = verify(RunDirectory.open(run), roots)
    results().print(evidence_table(found))
    tell({"run": run, "records": found})
