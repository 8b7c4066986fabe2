"""Laundering: shapes filled with customers of several banks, times and amounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph.graph.payments.customers import NONE, Customers
from veilgraph.graph.payments.ordinary import cents
from veilgraph.graph.payments.shapes import Shapes, draw_shapes
from veilgraph.graph.payments.transfers import SECONDS_A_DAY, Transfers, Whole, draw_methods
from veilgraph.graph.payments_settings import PaymentsSettings

_DAYS_A_STAGE: Final = (0.5, 2.0)
_MARGIN: Final = 0.05
"""Of a stage, at its beginning and end, in which nothing is sent: stages stay apart when times are rounded."""
_MEDIAN, _SPREAD = 2000.0, 0.8
_JITTER: Final = 0.2
_DRAWS: Final = 1000


@dataclass(frozen=True, eq=False)
class Patterns:
    """P patterns whose S slots are customers, no two the same.

    Attributes:
        shapes: who pays whom.
        member: int32 [S], the customer in each slot.
        transfers: M, in the shapes' order.
        begin: int64 [P], seconds, of the first stage.
        span: int64 [P], seconds from there to the end of the last stage.
    """

    shapes: Shapes
    member: Whole
    transfers: Transfers
    begin: Whole
    span: Whole


def draw_patterns(settings: PaymentsSettings, customers: Customers, generator: np.random.Generator) -> Patterns:
    """Draws them: members evenly among customers, whatever these are, such that no bank sees a whole pattern.

    The middle of a fan has accounts at two banks and uses them in turn; all others use the account at their first bank.

    Raises:
        DataError: a bank has too few customers.
    """
    for_shapes, for_members, for_money = generator.spawn(3)
    shapes = draw_shapes(round(settings.laundering * settings.customers), settings.patterns, for_shapes)
    member, payer_bank, payee_bank = _members(shapes, customers, settings.banks, for_members)
    time, begin, span = _times(shapes, settings.days, for_money)
    first_member = member[np.searchsorted(shapes.pattern, np.arange(len(shapes.kind)))]
    currency = customers.currency[first_member][shapes.of]
    transfers = Transfers(
        time=time.astype(np.int32),
        payer=member[shapes.source],
        payee=member[shapes.target],
        payer_bank=payer_bank,
        payee_bank=payee_bank,
        amount=_amounts(shapes, currency, settings.fee, for_money),
        currency=currency,
        method=draw_methods(len(shapes.of), for_money),
        pattern=shapes.of,
    )
    return Patterns(shapes, member, transfers, begin, span)


def _members(
    shapes: Shapes, customers: Customers, banks: int, generator: np.random.Generator
) -> tuple[Whole, Whole, Whole]:
    """The customer in each slot, [S], and the banks of payer and payee, [M]."""
    middles = generator.permutation(np.flatnonzero(customers.second != NONE))[: int(shapes.middle.sum())]
    member = np.empty(len(shapes.pattern), np.int32)
    member[shapes.middle] = middles
    first = np.zeros(len(member), np.int8)
    first[shapes.middle] = customers.first[middles]
    second = first.copy()
    second[shapes.middle] = customers.second[middles]
    payer_bank, payee_bank = _draw_banks(shapes, first, second, customers, banks, generator)
    free = np.ones(len(customers), np.bool_)
    free[middles] = False
    for bank in range(banks):
        slots = np.flatnonzero(~shapes.middle & (first == bank))
        found = generator.permutation(np.flatnonzero(free & (customers.first == bank)))[: len(slots)]
        if len(found) < len(slots):
            raise DataError(
                f"payments.laundering: {len(slots)} members are to be of one bank, which has {len(found)} customers; "
                "take more customers, fewer banks or less laundering"
            )
        member[slots] = found
    return member, payer_bank, payee_bank


def _draw_banks(
    shapes: Shapes,
    first: Whole,
    second: Whole,
    customers: Customers,
    banks: int,
    generator: np.random.Generator,
) -> tuple[Whole, Whole]:
    """Fills ``first`` and ``second`` of all but middles, by the banks' sizes, anew wherever one bank sees all."""
    shares = np.bincount(customers.first, minlength=banks) / len(customers)
    wrong = np.ones(len(shapes.kind), np.bool_)
    odd = shapes.number % 2 == 1
    for _ in range(_DRAWS):
        slots = np.flatnonzero(~shapes.middle & wrong[shapes.pattern])
        first[slots] = second[slots] = generator.choice(banks, size=len(slots), p=shares)
        payer, payee = (np.where(odd, second[ends], first[ends]) for ends in (shapes.source, shapes.target))
        wrong = _seen_whole(shapes, payer, payee, banks) | _often_inside(shapes, payer, payee, crossing_share(banks))
        if not wrong.any():
            return payer, payee
    raise DataError(
        f"payments.banks: {int(wrong.sum())} patterns could not be divided among {banks} banks in {_DRAWS} draws; take "
        "another seed"
    )


def _seen_whole(shapes: Shapes, payer: Whole, payee: Whole, banks: int) -> NDArray[np.bool_]:
    """Which patterns some bank sees whole, [P]."""
    found = np.zeros(len(shapes.kind), np.bool_)
    for bank in range(banks):
        found |= np.logical_and.reduceat((payer == bank) | (payee == bank), shapes.first_transfers)
    return found


def crossing_share(banks: int) -> float:
    """The least share of a pattern's transfers that are between accounts at different banks.

    Of two banks more cannot be, as neither sees all: a cycle of five then has two such transfers.
    """
    return 2 / 3 if banks > 2 else 2 / 5


def _often_inside(shapes: Shapes, payer: Whole, payee: Whole, least: float) -> NDArray[np.bool_]:
    """Of which patterns less than the least share of the transfers crosses banks, [P]."""
    crossing = np.add.reduceat((payer != payee).astype(np.float64), shapes.first_transfers)
    return np.asarray(crossing < least * np.bincount(shapes.of) - 1e-9)


def _times(shapes: Shapes, days: int, generator: np.random.Generator) -> tuple[Whole, Whole, Whole]:
    """Seconds, [M], each within its stage; and the patterns' begins and spans, [P]: at most half of all days."""
    stages, whole = shapes.stages, days * SECONDS_A_DAY
    wanted = stages * generator.uniform(*_DAYS_A_STAGE, len(stages)) * SECONDS_A_DAY
    span = np.minimum(wanted, whole / 2).astype(np.int64)
    begin = (generator.random(len(stages)) * (whole - span)).astype(np.int64)
    within = generator.uniform(_MARGIN, 1 - _MARGIN, len(shapes.of))
    share = (shapes.stage + within) / stages[shapes.of]
    return begin[shapes.of] + (share * span[shapes.of]).astype(np.int64), begin, span


def _amounts(shapes: Shapes, currency: Whole, fee: float, generator: np.random.Generator) -> Whole:
    """Hundredths, [M]. Who passes money on pays in all what it got, less between a fifth of ``fee`` and all of it.

    The fee is of what came in, and rounded down. Where it goes to several, they get about as much each.
    """
    base = generator.lognormal(np.log(_MEDIAN), _SPREAD, len(shapes.kind))
    jitter = generator.uniform(1 - _JITTER, 1 + _JITTER, len(shapes.of))
    amount = cents(base[shapes.of] * jitter, currency)
    kept = generator.uniform(fee / 5, fee, len(shapes.pattern))  # of each slot
    for stage in range(1, int(shapes.stage.max()) + 1):
        before, now = shapes.stage == stage - 1, np.flatnonzero(shapes.stage == stage)
        came = np.zeros(len(shapes.pattern), np.int64)
        np.add.at(came, shapes.target[before], amount[before])
        goes = came - np.floor(came * kept).astype(np.int64)
        amount[now] = _divided(goes, shapes.source[now], jitter[now])
    return amount


def _divided(goes: Whole, source: Whole, weight: NDArray[np.float64]) -> Whole:
    """What each transfer carries, where every source gives away all that it has by weight; rows of one lie together."""
    share = weight / np.bincount(source, weights=weight, minlength=len(goes))[source]
    part = np.floor(goes[source] * share).astype(np.int64)
    given = np.zeros_like(goes)
    np.add.at(given, source, part)
    first = np.flatnonzero(np.diff(source, prepend=-1))
    part[first] += (goes - given)[source[first]]
    return part
