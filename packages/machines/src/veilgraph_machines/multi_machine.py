"""A holder's local part over several machines: those that its party file names, or processes of this one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final

import torch
from typing_extensions import override

from veilgraph.core.errors import LinkError, VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.protocol.role import LocalPart, Machines, Spreading
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import MachineProcess
from veilgraph_machines.rendezvous import lead, open_door
from veilgraph_machines.secret import new_secret, read_secret

log = logging.getLogger("veilgraph")

_GRACE_S: Final = 2.0
_IDLE_S: Final = 3600.0


class SeveralMachines(Spreading):
    """Machines that find each other at the one that joins, and know each other by the party's secret."""

    @override
    @contextmanager
    def spread(self, part: LocalPart, machines: Machines, party: PartyId, timeout_s: float) -> Iterator[None]:
        with _group(machines, party, timeout_s) as group:
            several = distribute(part.local, part.adjacency, part.settings, part.dim, part.holders, group)
            yield
            several.close()


@contextmanager
def _group(machines: Machines, party: PartyId, timeout_s: float) -> Iterator[MachineGroup]:
    with ExitStack() as stack:
        others: list[MachineProcess] = []
        if isinstance(machines, int):
            count, idle_s = machines, _IDLE_S
            secret = new_secret()
            door = stack.enter_context(closing(open_door("127.0.0.1", 0, secret)))
            threads = max(1, torch.get_num_threads() // count)
            torch.set_num_threads(threads)
            others += [
                stack.enter_context(MachineProcess("127.0.0.1", door.port, rank, secret, threads))
                for rank in range(1, count)
            ]
        else:
            count, idle_s = machines.count, machines.idle_s
            secret = read_secret(machines.secret)
            door = stack.enter_context(closing(open_door(machines.host, machines.port, secret)))
            log.info("waiting at %s for %d further machines", machines.address, count - 1)
        try:
            group = lead(door, count, timeout_s=timeout_s, idle_s=idle_s, check=lambda: _check(others, party))
            stack.callback(group.close)
            yield group
        except LinkError as error:  # of the group, or of the link to another party
            _check(others, party, _GRACE_S, error)
            raise
        for process in others:
            process.outcome(_GRACE_S)


def _check(
    others: Sequence[MachineProcess], party: PartyId, grace_s: float = 0.0, error: LinkError | None = None
) -> None:
    """Looks whether one of the processes has failed, waiting a moment for one that is about to.

    Raises:
        LinkError: with what it said; of several what was first, for the others only missed it.
    """
    deadline = time.monotonic() + grace_s
    failures: list[VeilgraphError] = []
    while others and not failures:
        failures = [failure for other in others if (failure := other.outcome(0)) is not None]
        if time.monotonic() >= deadline:
            break
    if failures:
        raise LinkError(f"{party}: {min(failures, key=lambda failure: type(failure) is LinkError)}") from error


MACHINES: Final = SeveralMachines()
