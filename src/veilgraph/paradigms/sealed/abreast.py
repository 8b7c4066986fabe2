"""What steps of trials that are made side by side have reached, until the job comes to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.plan import Context, Plan

MOST_ROWS_ABREAST: Final = 1 << 9
"""Training rows up to which trials are made side by side: what all steps of other trials reach is kept until the job
comes to them, and with few rows most of a step is waiting."""


@dataclass(frozen=True)
class Reached:
    """What a program has after a step.

    Attributes:
        state: its attributes, by name.
        told: what its score will reveal; None: it is not judged.
    """

    state: Mapping[str, object]
    told: Wire | None


def are_abreast(context: Context) -> bool:
    """Whether all trials are made side by side: there are several, and none is judged beside an earlier one."""
    plan, sizes = context.plan, context.sizes
    return len(plan.trials) > 1 and not plan.standard and sizes.training <= MOST_ROWS_ABREAST


def stretches_of(plan: Plan, trial: int) -> list[list[int]]:
    """Return a trial's steps, counted from 0 over all, in stretches that end where range tests are due."""
    found: list[list[int]] = [[]]
    for number in range(plan.steps):
        if plan.trial_of(number) == trial:
            found[-1].append(number)
            if plan.is_tested(number + 1):
                found.append([])
    return [stretch for stretch in found if stretch]
