"""A holder's local part over several machines: those that its party file names, or processes of this one."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

import torch
from torch.distributed import FileStore
from typing_extensions import override

from veilgraph.core.errors import LinkError, VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.protocol.party_settings import MachineSettings
from veilgraph.protocol.role import LocalPart, Machines, Spreading
from veilgraph_machines.group import MachineGroup
from veilgraph_machines.local import distribute
from veilgraph_machines.machine import LOOPBACK, MachineProcess
from veilgraph_machines.rendezvous import lead, listening_store, private_address

log = logging.getLogger("veilgraph")

_GRACE_S: Final = 2.0
_IDLE_S: Final = 3600.0


class SeveralMachines(Spreading):
    """Machines that find each other at the one that joins."""

    @override
    @contextmanager
    def spread(self, part: LocalPart, machines: Machines, party: PartyId, timeout_s: float) -> Iterator[None]:
        joined = _processes(machines, party, timeout_s) if isinstance(machines, int) else _named(machines, timeout_s)
        with joined as group:
            several = distribute(part, group)
            yield
            several.close()


@contextmanager
def _named(machines: MachineSettings, timeout_s: float) -> Iterator[MachineGroup]:
    """The group of the machines of a party file."""
    host = private_address(machines.host, "machines.address")
    store = listening_store(host, machines.port)
    log.info("waiting at %s for %d further machines", machines.address, machines.count - 1)
    with closing(lead(store, machines.count, host, timeout_s=timeout_s, idle_s=machines.idle_s)) as group:
        yield group


@contextmanager
def _processes(count: int, party: PartyId, timeout_s: float) -> Iterator[MachineGroup]:
    """A group of processes of this machine, which meet in a folder that this account alone can read."""
    with ExitStack() as stack:
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        threads = max(1, torch.get_num_threads() // count)
        torch.set_num_threads(threads)
        others = [stack.enter_context(MachineProcess(str(path), rank, count, threads)) for rank in range(1, count)]
        try:
            group = lead(
                FileStore(str(path)),
                count,
                LOOPBACK,
                timeout_s=timeout_s,
                idle_s=_IDLE_S,
                check=lambda: _check(others, party),
            )
            with closing(group):
                yield group
        except LinkError as error:  # of the group, or of the link to another party
            _check(others, party, _GRACE_S, error)
            raise
        for process in others:
            process.outcome(_GRACE_S)


def _check(
    others: Sequence[MachineProcess], party: PartyId, grace_s: float = 0.0, error: LinkError | None = None
) -> None:
    """Look whether one of the processes has failed, waiting a moment for one that is about to.

    Raises:
        LinkError: with what it said; of several what was first, for the others only missed it.
    """
    deadline = time.monotonic() + grace_s
    failures: list[VeilgraphError] = []
    while not failures:
        failures = [failure for other in others if (failure := other.outcome(0)) is not None]
        if time.monotonic() >= deadline:
            break
    if failures:
        raise LinkError(f"{party}: {min(failures, key=lambda failure: type(failure) is LinkError)}") from error


MACHINES: Final = SeveralMachines()
"""What the entry point names."""
