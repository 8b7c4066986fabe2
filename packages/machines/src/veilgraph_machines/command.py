"""Commands for several machines of one party: net machine, net machine-secret."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from veilgraph.cli.app import command, net, option
from veilgraph.cli.output import say
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError

with deferred():
    from veilgraph.protocol.party_settings import party_folder, read_party_settings
    from veilgraph_machines.machine import attend
    from veilgraph_machines.secret import write_secret


@command("machine", "veilgraph net machine --party bank/party.yaml --rank 1", net)
def machine_command(
    party: Path,
    rank: Annotated[int, option(min=1)],
) -> None:
    """Share the work of a holder's jobs from a further machine of its own, until stopped with Ctrl-C.

    The party file has under machines their number, the address where they meet, at the machine that joins, and the file
    of the secret by which they know each other. machine-secret makes it once; it is the same at all of them.

    Options:
        --party PARTY.yaml: The party file, the same as at the machine that joins.
        --rank: Number of this machine: 1, 2, … up to machines.count - 1.
    """
    attend(read_party_settings(party), party_folder(party), rank, say)


@command("machine-secret", "veilgraph net machine-secret bank/party.yaml", net)
def machine_secret_command(
    party: Path,
) -> None:
    """Make the secret that a holder's machines share, in the file that its party file names.

    Copy it to all of them over a channel that nobody else reads. Whoever has it can take a machine's place.

    Options:
        PARTY.yaml (party): A party file with machines.secret.
    """
    machines = read_party_settings(party).machines
    if machines is None:
        raise ConfigError(f"{party}: has no machines; give machines: {{count: …, address: …, secret: machines.secret}}")
    path = machines.within(party_folder(party)).secret
    write_secret(path)
    say(f"{path}: made; copy it to all machines of the party, readable there by their account alone")
