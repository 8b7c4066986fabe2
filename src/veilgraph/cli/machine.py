"""Several machines of one party: the command that its further ones run, and the option of a trial on this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veilgraph.cli.app import command, say

MachinesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--machines",
        metavar="PARTY=COUNT",
        help="So many processes share this holder's local part, as machines of its own would; implies --processes.",
    ),
]


@command("machine", "veilgraph machine --party bank/party.yaml --rank 1")
def machine_command(
    party: Annotated[Path, typer.Option(metavar="PARTY.yaml", help="The same party file as at the one that joins.")],
    rank: Annotated[int, typer.Option(min=1, help="Of this machine: 1, 2, … up to machines.count - 1.")],
) -> None:
    """Share the work of a holder's jobs from a further machine of its own, until stopped with Ctrl-C.

    The party file says under machines how many there are and at which address of the one that joins they meet. What
    they send each other is neither encrypted nor authenticated: only in the organisation's own network.
    """
    from veilgraph.core.party_settings import read_party_settings  # noqa: PLC0415
    from veilgraph.paradigms.machine import attend  # noqa: PLC0415

    attend(read_party_settings(party), rank, say)


def machine_counts(texts: list[str] | None) -> dict[str, int]:
    """What ``--machines`` says: holder → number of processes."""
    counts: dict[str, int] = {}
    for text in texts or ():
        name, _, count = text.rpartition("=")
        if not name or not (count.isascii() and count.isdigit()):
            raise typer.BadParameter(f"{text!r} is not PARTY=COUNT, as in A=2", param_hint="--machines")
        counts[name] = int(count)
    return counts
