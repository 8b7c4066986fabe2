"""The command for several machines of one party: net machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from veilgraph.cli.app import command, net, option
from veilgraph.cli.output import say
from veilgraph.core.deferred import deferred

with deferred():
    from veilgraph.protocol.party_settings import read_party_settings
    from veilgraph_machines.machine import attend


@command("machine", "veilgraph net machine --party bank/party.yaml --rank 1", net)
def machine_command(
    party: Path,
    rank: Annotated[int, option(min=1)],
) -> None:
    """Share the work of a holder's jobs from a further machine of its own, until stopped with Ctrl-C.

    The party file has under machines their number, and the private address where they meet, at the machine that joins.
    Nothing between them is encrypted: give them a network of their own.

    Options:
        --party PARTY.yaml: The party file, the same as at the machine that joins.
        --rank: Number of this machine: 1, 2, … up to machines.count - 1.
    """
    attend(read_party_settings(party), rank, say)
