"""Laundering: who pays whom in which stage, filled with customers, times and amounts; and lawful lookalikes.

The members of a pattern are slots, numbered over all patterns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph_datasets.settings import PATTERN_KINDS, PatternKind, PaymentsSettings
from veilgraph_datasets.transfers import LAWFUL, NONE, SECONDS_A_DAY, Customers, Transfers, Whole, cents, draw_methods

_FEWEST_MEMBERS: Final = 4
_ONE: Final = (1, 1)
_NONE: Final = (0, 0)
_LAYERS: Final[dict[PatternKind, tuple[tuple[int, int], ...]]] = {
    "fan-in": ((4, 10), _ONE, _NONE),
    "fan-out": (_ONE, (4, 10), _NONE),
    "cycle": ((4, 10), _NONE, _NONE),
    "scatter-gather": (_ONE, (4, 9), _ONE),
    "bipartite": ((2, 4), (2, 4), _NONE),
    "stack": ((2, 3), (2, 3), (2, 3)),
}
"""Fewest and most members in each layer; every one of a layer pays every one of the next. A cycle is a ring of one."""
_MIDDLES: Final[dict[PatternKind, int]] = {"fan-in": 1, "fan-out": 0}
"""Layer of the one whom all others of a fan pay, or who pays them."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """P patterns of S slots in all, and their M transfers.

    Attributes:
        kind: int8 [P], place in ``PATTERN_KINDS``.
        pattern: int32 [S], which pattern a slot belongs to, ascending.
        middle: bool [S], the one in the middle of a fan.
        layers: int64 [P, 3], members in each layer.
        of: int32 [M], which pattern a transfer belongs to, ascending, in each by stage.
        source: int64 [M], the slot that pays.
        target: int64 [M].
        stage: int64 [M], from 0: all transfers of a stage come before those of the next.
        number: int64 [M], the transfer's place in its pattern.
    """

    kind: Whole
    pattern: Whole
    middle: NDArray[np.bool_]
    layers: Whole
    of: Whole
    source: Whole
    target: Whole
    stage: Whole
    number: Whole

    @property
    def stages(self) -> Whole:
        """How many stages each pattern has, [P]."""
        cycles = self.kind == PATTERN_KINDS.index("cycle")
        return np.where(cycles, self.layers[:, 0], 1 + (self.layers[:, 2] > 0))

    @property
    def first_transfers(self) -> Whole:
        """Where each pattern's transfers begin, [P]."""
        return np.searchsorted(self.of, np.arange(len(self.kind)))


def draw_shapes(most_members: int, kinds: tuple[PatternKind, ...], generator: np.random.Generator) -> Shapes:
    """As many patterns as fit, in turn of each kind, of sizes drawn evenly.

    Args:
        most_members: S is at most that, and less than a pattern's below it.
        kinds: which there are.
        generator: of the sizes.
    """
    places = np.array([PATTERN_KINDS.index(kind) for kind in kinds])
    kind = np.resize(places, most_members // _FEWEST_MEMBERS + 1)
    fewest, most = np.array([_LAYERS[each] for each in PATTERN_KINDS]).transpose(2, 0, 1)
    layers = generator.integers(fewest[kind], most[kind] + 1)
    sizes = layers.sum(axis=1)
    fitting = np.cumsum(sizes) <= most_members
    kind, layers, sizes = kind[fitting].astype(np.int8), layers[fitting], sizes[fitting]
    first_slot = np.cumsum(sizes) - sizes
    pattern = np.repeat(np.arange(len(kind), dtype=np.int32), sizes)
    of, number = _counted(_transfer_counts(kind, layers))
    source, target, stage = _ends(kind[of], layers[of], number)
    middle = np.zeros(len(pattern), np.bool_)
    for name, layer in _MIDDLES.items():
        fans = kind == PATTERN_KINDS.index(name)
        middle[first_slot[fans] + layers[fans, :layer].sum(axis=1)] = True
    return Shapes(kind, pattern, middle, layers, of, first_slot[of] + source, first_slot[of] + target, stage, number)


def _transfer_counts(kind: Whole, layers: Whole) -> Whole:
    one, two, three = layers.T
    return np.asarray(np.where(kind == PATTERN_KINDS.index("cycle"), one, one * two + two * three))


def _counted(counts: Whole) -> tuple[Whole, Whole]:
    """0, 0, …, 1, …, each as often as said, and the place of each among those like it."""
    of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def _ends(kind: Whole, layers: Whole, number: Whole) -> tuple[Whole, Whole, Whole]:
    """Source, target and stage of the transfers of some numbers, slots counted from the pattern's first."""
    one, two, three = layers.T
    cycle, early = kind == PATTERN_KINDS.index("cycle"), number < one * two
    late = number - one * two
    wide, deep = np.maximum(two, 1), np.maximum(three, 1)
    source = np.where(cycle, number, np.where(early, number // wide, one + late // deep))
    target = np.where(cycle, (number + 1) % one, np.where(early, one + number % wide, one + two + late % deep))
    return source, target, np.where(cycle, number, ~early)


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


def lookalike_transfers(
    patterns: Patterns, customers: Customers, copies: int, days: int, generator: np.random.Generator
) -> list[Transfers]:
    """Two transfers for each of a pattern's and each copy: one by the payer's lookalike, one to the payee's.

    A lookalike has its first account at the member's bank, and two accounts where the member uses two. It pays and is
    paid what the member is, at the same times but for a shift that is one for all of a pattern and copy. The other ends
    are customers at large of the banks where the member's counterparties are.

    Returns:
        2·copies tables of M transfers each, all lawful.
    """
    shapes, original = patterns.shapes, patterns.transfers
    lawful = np.ones(len(customers), np.bool_)
    lawful[patterns.member] = False
    like = _assigned(patterns, customers, copies, lawful, generator)
    found = []
    for own in like:
        shift = (generator.random(len(patterns.span)) * (days * SECONDS_A_DAY - patterns.span)).astype(np.int64)
        time = original.time + (shift - patterns.begin)[shapes.of]
        for pays in (True, False):
            slot, bank, other = (
                (shapes.source, original.payer_bank, original.payee_bank)
                if pays
                else (shapes.target, original.payee_bank, original.payer_bank)
            )
            mine = own[slot]
            account = np.where(
                bank == customers.first[patterns.member[slot]], customers.first[mine], customers.second[mine]
            )
            partner = _at_large(customers, other, mine, generator)
            found.append(
                Transfers(
                    time=time.astype(np.int32),
                    payer=mine if pays else partner,
                    payee=partner if pays else mine,
                    payer_bank=account if pays else other,
                    payee_bank=other if pays else account,
                    amount=original.amount,
                    currency=original.currency,
                    method=original.method,
                    pattern=np.full(len(original), LAWFUL, np.int32),
                )
            )
    return found


def _assigned(
    patterns: Patterns, customers: Customers, copies: int, lawful: NDArray[np.bool_], generator: np.random.Generator
) -> Whole:
    """Each copy's customer for each slot, [copies, S]: as few are taken twice as can be."""
    own = np.empty((copies, len(patterns.member)), np.int32)
    middle, bank = patterns.shapes.middle, customers.first[patterns.member]
    groups = [(middle, lawful & (customers.second != NONE))]
    groups += [(~middle & (bank == each), lawful & (customers.first == each)) for each in np.unique(bank)]
    for slots, candidates in groups:
        some = generator.permutation(np.flatnonzero(candidates))
        own[:, slots] = np.resize(some, (copies, int(slots.sum())))
    return own


def _at_large(customers: Customers, bank: Whole, than: Whole, generator: np.random.Generator) -> Whole:
    """A customer whose first bank is as given, another than ``than``: [len(bank)]."""
    order = np.argsort(customers.first, kind="stable").astype(np.int32)
    sizes = np.bincount(customers.first)
    starts = np.cumsum(sizes) - sizes
    place = (generator.random(len(bank)) * sizes[bank]).astype(np.int64)
    found = order[starts[bank] + place]
    following = order[starts[bank] + (place + 1) % sizes[bank]]
    return np.where(found == than, following, found)
