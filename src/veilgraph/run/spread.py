"""A holder's local part over several machines: those that its party file names, or processes of this one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import Role
from veilgraph.protocol.spreading import Machines, installed_spreading


def check_spread(settings: JobSettings) -> None:
    """Whether a job's holders can have several machines.

    Raises:
        ConfigError: they cannot, or nothing is installed that computes on several.
    """
    reason = paradigm_of(settings).unspreadable(settings)
    if reason is not None:
        raise ConfigError(reason)
    installed_spreading()


def spread(role: Role, machines: Machines | None) -> AbstractContextManager[None]:
    """A block in which the role's local part is computed on several machines.

    Args:
        role: a data holder, not yet set up.
        machines: which; None: this one alone.

    Raises:
        ConfigError: the job or the role has no such part, or nothing is installed that computes on several.
        LinkError: a machine did not come, or is gone.
    """
    if machines is None:
        return nullcontext()
    session = role.session
    check_spread(session.settings)
    if (part := role.local_part()) is None:
        raise ConfigError(f"machines: {session.link.party} has no graph to share; leave them out")
    return installed_spreading().spread(part, machines, session.link.party, session.settings.timeout_s)
