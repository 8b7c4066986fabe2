"""What ``check --net`` adds to a check: the sites are asked whether they would take part."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilgraph.cli.network import deployment, open_kit
from veilgraph.cli.output import messages, results

if TYPE_CHECKING:
    from veilgraph.deploy.checking import SiteCheck
    from veilgraph.protocol.job import JobSettings

NetOption = Annotated[
    Path | None,
    typer.Option(
        "--net",
        metavar="KIT",
        help="Ask the holders as well, with an administrator's kit: each site says whether it would take part.",
    ),
]
Within = Annotated[
    float | None,
    typer.Option("--within", min=1, metavar="SECONDS", help="With --net: longest wait for the answers. Default: 120."),
]


def check_options(net: Path | None, within: float | None, passphrase_file: Path | None) -> None:
    """Refuses what is for ``--net`` alone.

    Raises:
        BadParameter: it was given without.
    """
    for option, given in (("--within", within), ("--passphrase-file", passphrase_file)):
        if net is None and given is not None:
            raise typer.BadParameter("is for --net; give both, or leave it out", param_hint=option)


def ask_sites(
    settings: JobSettings, net: Path, within: float | None, passphrase_file: Path | None
) -> tuple[SiteCheck, ...]:
    """Asks every site of a job, and shows a line of each."""
    with deployment():
        from veilgraph.deploy.checking import WITHIN_S, check_sites  # noqa: PLC0415
        from veilgraph.report.project import checked_table  # noqa: PLC0415

        kit = open_kit(net, passphrase_file)
        with messages().status("asking the sites"):
            found = check_sites(kit, settings, within_s=WITHIN_S if within is None else within)
    results().print(checked_table(found))
    return found
