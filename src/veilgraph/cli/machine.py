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

    The party file says under machines how many there are, at which address of the one that joins they meet, and which
    file holds the secret by which they know each other: the same at all of them, made once with machine-secret.
    """
    from veilgraph.protocol.party_settings import read_party_settings  # noqa: PLC0415
    from veilgraph.run.machine import attend  # noqa: PLC0415

    attend(read_party_settings(party), party.absolute().parent, rank, say)


@command("machine-secret", "veilgraph machine-secret bank/party.yaml")
def machine_secret_command(
    party: Annotated[Path, typer.Argument(metavar="PARTY.yaml", help="A party file with machines.secret.")],
) -> None:
    """Make the secret that a holder's machines share, in the file that its party file names.

    Copy it to all of them over a channel that nobody else reads. Whoever has it can take a machine's place.
    """
    from veilgraph.core.errors import ConfigError  # noqa: PLC0415
    from veilgraph.nn.partitioned.secret import write_secret  # noqa: PLC0415
    from veilgraph.protocol.party_settings import read_party_settings  # noqa: PLC0415

    machines = read_party_settings(party).machines
    if machines is None:
        raise ConfigError(f"{party}: has no machines; give machines: {{count: …, address: …, secret: machines.secret}}")
    path = machines.within(party.absolute().parent).secret
    write_secret(path)
    say(f"{path}: made; copy it to all machines of the party, readable there by their account alone")


def machine_counts(texts: list[str] | None) -> dict[str, int]:
    """What ``--machines`` says: holder → number of processes."""
    counts: dict[str, int] = {}
    for text in texts or ():
        name, _, count = text.rpartition("=")
        if not name or not (count.isascii() and count.isdigit()):
            raise typer.BadParameter(f"{text!r} is not PARTY=COUNT, as in A=2", param_hint="--machines")
        counts[name] = int(count)
    return counts
