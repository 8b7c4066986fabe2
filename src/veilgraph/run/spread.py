"""A holder's local part over several machines: those that its party file names, or processes of this one."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Final

import torch

from veilgraph.core.errors import ConfigError, LinkError, VeilgraphError
from veilgraph.core.types import PartyId
from veilgraph.nn.partitioned.group import MachineGroup
from veilgraph.nn.partitioned.rendezvous import lead, open_door
from veilgraph.nn.partitioned.secret import new_secret, read_secret
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.party_settings import MachineSettings
from veilgraph.protocol.role import Role
from veilgraph.run.machine import MachineProcess

log = logging.getLogger("veilgraph")

Machines = MachineSettings | int
"""What a party file names; or how many processes of this machine."""

_GRACE_S: Final = 2.0
_IDLE_S: Final = 3600.0


def check_spread(settings: JobSettings) -> None:
    """Whether a job's holders can have several machines.

    Raises:
        ConfigError: they cannot.
    """
    reason = paradigm_of(settings).unspreadable(settings)
    if reason is not None:
        raise ConfigError(reason)


@contextmanager
def spread(role: Role, machines: Machines | None) -> Iterator[None]:
    """Has the role's local part computed on several machines while the block lasts.

    Args:
        role: a data holder, not yet set up.
        machines: which; None: this one alone.

    Raises:
        ConfigError: the job or the role has no such part.
        LinkError: a machine did not come, or is gone.
    """
    if machines is None:
        yield
        return
    session = role.session
    check_spread(session.settings)
    if (share := role.sharing()) is None:
        raise ConfigError(f"machines: {session.link.party} has no graph to share; leave them out")
    with _group(machines, session.link.party, session.settings.timeout_s) as group:
        several = share(group)
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
