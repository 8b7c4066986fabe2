"""Which program the parties of a sealed job run."""

from __future__ import annotations

from collections.abc import Callable

from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import PartyId
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.paradigms.sealed.plan import Context
from veilgraph.paradigms.sealed.program import Program, SealedProgram
from veilgraph.paradigms.sealed.records.bits import BitProgram
from veilgraph.paradigms.sealed.records.program import RecordProgram


def program_of(machine: Machine, context: Context, source: Callable[[PartyId], SecretSource]) -> Program:
    """Make a party's program of a sealed job; ``source`` gives the secret source of a holder's own noise."""
    if context.plan.records is None:
        return SealedProgram(machine, context)
    return (RecordProgram if context.plan.flips is None else BitProgram)(machine, context, source)
