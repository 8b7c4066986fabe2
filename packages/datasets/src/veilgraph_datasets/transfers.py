"""Customers, what organisations have recorded of them, and their lawful transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph_datasets.settings import PaymentsSettings

CURRENCIES: Final = ("EUR", "USD", "GBP", "CHF", "SEK")
RATES: Final = np.array([1.0, 1.08, 0.85, 0.95, 11.3])
"""What a euro is worth in each, throughout."""
METHODS: Final = ("transfer", "instant", "card", "cheque")
LAWFUL: Final = -1
"""In place of a pattern's number."""
SECONDS_A_DAY: Final = 86_400

Whole = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Transfers:
    """T transfers; each column is an array [T].

    Attributes:
        time: int32, seconds since the beginning.
        payer: int32, a customer, 0 to N − 1.
        payee: int32, another.
        payer_bank: int8, where the payer's account is: 0 is bank A.
        payee_bank: int8.
        amount: int64, hundredths of the currency.
        currency: int8, place in ``CURRENCIES``.
        method: int8, place in ``METHODS``.
        pattern: int32, number of the pattern that it is part of, or ``LAWFUL``.
    """

    time: Whole
    payer: Whole
    payee: Whole
    payer_bank: Whole
    payee_bank: Whole
    amount: Whole
    currency: Whole
    method: Whole
    pattern: Whole

    def __len__(self) -> int:
        return len(self.time)

    def take(self, rows: NDArray[Any]) -> Transfers:
        """Some of them: row numbers, or a mask."""
        return Transfers(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})

    def euros(self) -> NDArray[np.float64]:
        """Amounts, [T]."""
        return np.asarray(self.amount / (100 * RATES[self.currency]), np.float64)

    def seen_by(self, bank: int) -> NDArray[np.bool_]:
        """Which a bank sees, [T]: those from or to an account of its own."""
        return np.asarray((self.payer_bank == bank) | (self.payee_bank == bank))


DTYPES: Final = {
    "time": np.int32,
    "payer": np.int32,
    "payee": np.int32,
    "payer_bank": np.int8,
    "payee_bank": np.int8,
    "amount": np.int64,
    "currency": np.int8,
    "method": np.int8,
    "pattern": np.int32,
}


def in_order(parts: Sequence[Transfers]) -> Transfers:
    """All of them, by time; of one time in the order that they are given."""
    order = np.argsort(np.concatenate([part.time for part in parts]), kind="stable")
    columns = {}
    for name, dtype in DTYPES.items():  # one after the other: there may be many rows
        columns[name] = np.concatenate([getattr(part, name) for part in parts], dtype=dtype, casting="same_kind")[order]
    return Transfers(**columns)


def draw_methods(count: int, generator: np.random.Generator) -> Whole:
    """How money is moved between people, of which laundering is no exception: [count]."""
    return generator.choice(len(METHODS), size=count, p=(0.6, 0.3, 0.05, 0.05)).astype(np.int8)


NONE: Final = -1
"""In place of a second bank."""


@dataclass(frozen=True, eq=False)
class Customers:
    """N customers; each column is an array [N].

    Attributes:
        first: int8, the bank that knows whether the customer launders.
        second: int8, where it has an account too, or ``NONE``.
        company: bool; others are persons.
        age: float32, years, of a company too.
        income: float32, euros a year, or turnover.
        currency: int8, of what it mostly pays.
        at_shop: bool, whether the shop knows it.
        at_telecom: bool.
    """

    first: Whole
    second: Whole
    company: NDArray[np.bool_]
    age: NDArray[np.float32]
    income: NDArray[np.float32]
    currency: Whole
    at_shop: NDArray[np.bool_]
    at_telecom: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.first)

    def of_bank(self, bank: int) -> NDArray[np.bool_]:
        """Who has an account at a bank, [N]."""
        return np.asarray((self.first == bank) | (self.second == bank))


def draw_customers(settings: PaymentsSettings, generator: np.random.Generator) -> Customers:
    """Deals N customers to banks of sizes that fall as 1/√rank, so many of them to a second bank."""
    count, banks = settings.customers, settings.banks
    first = generator.permutation(np.repeat(np.arange(banks, dtype=np.int8), bank_sizes(count, banks)))
    second = np.full(count, NONE, np.int8)
    shared = generator.permutation(count)[: round(settings.overlap * count)]
    second[shared] = (first[shared] + 1 + generator.integers(banks - 1, size=len(shared))) % banks
    company = generator.permutation(count) < round(0.15 * count)
    return Customers(
        first=first,
        second=second,
        company=company,
        age=np.where(company, generator.exponential(12, count), generator.uniform(18, 90, count)).astype(np.float32),
        income=generator.lognormal(np.where(company, 13.0, 10.4), np.where(company, 1.2, 0.5)).astype(np.float32),
        currency=generator.choice(len(CURRENCIES), size=count, p=(0.6, 0.15, 0.1, 0.1, 0.05)).astype(np.int8),
        at_shop=generator.random(count) < settings.reach,
        at_telecom=generator.random(count) < settings.reach,
    )


def bank_sizes(customers: int, banks: int) -> Whole:
    """How many customers each bank is the first bank of, [banks]."""
    ends = np.cumsum(1 / np.sqrt(1 + np.arange(banks)))
    return np.asarray(np.diff(np.round(ends / ends[-1] * customers).astype(np.int64), prepend=0))


_COMMUNITY: Final = 30


@dataclass(frozen=True, eq=False)
class Communities:
    """Groups of customers who deal with one another, of 30 each; the last has up to 29 more.

    Attributes:
        order: int32 [N], customers, a community's beside one another.
        share: how many of the dealings between persons stay within a community.
    """

    order: Whole
    share: float

    def divert(self, one: Whole, other: Whole, generator: np.random.Generator) -> Whole:
        """Replace so many of the other ends of dealings by somebody of the first end's community: [len(one)].

        Within a community too customers are drawn with the density 1/√rank: some have many dealings.
        """
        if not self.share:
            return other
        customers = len(self.order)
        place = np.empty_like(self.order)
        place[self.order] = np.arange(customers)
        number, last = place[one] // _COMMUNITY, customers // _COMMUNITY - 1
        begin = np.minimum(number, last) * _COMMUNITY
        size = np.where(number < last, _COMMUNITY, customers - last * _COMMUNITY)
        drawn = (generator.random(len(one)) ** 2 * size).astype(np.int64)
        drawn = np.where(begin + drawn == place[one], (drawn + 1) % size, drawn)
        return np.where(generator.random(len(one)) < self.share, self.order[begin + drawn], other)


BANK_FACTS: Final = ("cash_share", "night_share", "abroad_share", "new_devices")
SHOP_FACTS: Final = ("returns_share", "voucher_share", "new_addresses")
TELECOM_FACTS: Final = ("prepaid_share", "night_calls", "new_numbers")

Column = NDArray[np.floating[Any]]
Columns = Mapping[str, Column]


def draw_facts(
    members: NDArray[np.bool_], signal: float, generator: np.random.Generator
) -> tuple[Columns, Columns, Columns]:
    """Columns [N] of bank, shop and telecom: those above, and how much a customer orders and telephones.

    The former are Φ(z − 1) of normal z with variance 1 whose mean is 0, and of ``members``, bool [N], signal/√k with k
    columns: the best guess from one row, a sum over z, has AUC Φ(signal/√2). The latter say nothing.
    """
    bank, shop, telecom = (
        _leaning(members, names, signal, generator) for names in (BANK_FACTS, SHOP_FACTS, TELECOM_FACTS)
    )
    shop["orders"] = generator.gamma(2.0, 1.5, len(members)).astype(np.float32)
    telecom["calls"] = generator.gamma(2.0, 3.0, len(members)).astype(np.float32)
    return bank, shop, telecom


def _leaning(
    members: NDArray[np.bool_], names: tuple[str, ...], signal: float, generator: np.random.Generator
) -> dict[str, Column]:
    from scipy.special import ndtr  # noqa: PLC0415  (slow to import)

    found: dict[str, Column] = {}
    for name in names:
        z = generator.standard_normal(len(members), dtype=np.float32) - 1
        z[members] += np.float32(signal / len(names) ** 0.5)
        found[name] = ndtr(z)
    return found


_TRANSFERS_PER_CONTACT: Final = 4
_HABIT: Final = 0.15
"""σ of the logarithm of a contact's amounts around its usual one."""
_SHARES: Final = (0.05, 0.4, 0.4, 0.15)
"""Of the contacts beyond one employer for each person: as the rows below."""
_COMPANY_PAYS: Final = np.array([True, False, False, True])
_COMPANY_IS_PAID: Final = np.array([False, True, False, True])
_MEDIANS: Final = np.array([2500.0, 60.0, 120.0, 4000.0])
_SPREADS: Final = np.array([0.4, 0.9, 1.0, 1.0])
_CARD: Final = 2
_WAGE, _PURCHASE, _FRIEND = 0, 1, 2


def ordinary_transfers(
    customers: Customers, communities: Communities, count: int, days: int, generator: np.random.Generator
) -> Transfers:
    """``count`` transfers over about a quarter as many contacts, one at least for each, at times drawn evenly.

    A contact has its two accounts, its kind and its usual amount. Every person is some company's employee. A company is
    drawn with the density 1/√rank: the largest have many contacts.
    """
    kinds, payer, payee = _contacts(customers, count, generator)
    pairs, friends = len(kinds), np.flatnonzero(kinds == _FRIEND)
    payee[friends] = communities.divert(payer[friends], payee[friends], generator.spawn(1)[0])
    usual = np.log(_MEDIANS)[kinds] + _SPREADS[kinds] * generator.standard_normal(pairs)
    payer_bank, payee_bank = (_banks(customers, each, generator) for each in (payer, payee))
    currency = customers.currency[np.where(generator.random(pairs) < 0.9, payer, payee)]
    method = np.where((kinds == _PURCHASE) & (generator.random(pairs) < 0.7), _CARD, draw_methods(pairs, generator))

    again = generator.integers(pairs, size=count - pairs, dtype=np.int32)
    of = np.concatenate([np.arange(pairs, dtype=np.int32), again])
    euros = _HABIT * generator.standard_normal(count, dtype=np.float32)
    euros += usual.astype(np.float32)[of]
    np.exp(euros, out=euros)
    return Transfers(
        time=generator.integers(days * SECONDS_A_DAY, size=count, dtype=np.int32),
        payer=payer[of],
        payee=payee[of],
        payer_bank=payer_bank[of],
        payee_bank=payee_bank[of],
        amount=cents(euros, currency[of]),
        currency=currency[of],
        method=method.astype(np.int8)[of],
        pattern=np.full(count, LAWFUL, np.int32),
    )


def cents(euros: NDArray[np.floating[Any]], currency: Whole) -> NDArray[np.int64]:
    """Amounts in hundredths of currencies, at least 1."""
    return np.asarray(np.maximum(np.rint(euros * (100 * RATES)[currency]), 1).astype(np.int64))


def _banks(customers: Customers, of: Whole, generator: np.random.Generator) -> Whole:
    """At which of its banks each of some customers pays or is paid, [len(of)]."""
    other = (customers.second[of] != NONE) & (generator.random(len(of)) < 0.5)
    return np.where(other, customers.second[of], customers.first[of])


def _contacts(customers: Customers, count: int, generator: np.random.Generator) -> tuple[Whole, Whole, Whole]:
    """Kind, payer and payee of every contact."""
    companies, persons = (
        generator.permutation(np.flatnonzero(each)) for each in (customers.company, ~customers.company)
    )
    companies, persons = companies.astype(np.int32), persons.astype(np.int32)
    pairs = min(count, max(count // _TRANSFERS_PER_CONTACT, len(persons)))
    employed = persons[:pairs]
    rest = pairs - len(employed)
    kinds = np.concatenate(
        [np.full(len(employed), _WAGE, np.int8), generator.choice(4, size=rest, p=_SHARES).astype(np.int8)]
    )
    payer = _drawn(_COMPANY_PAYS[kinds], companies, persons, generator)
    payee = _drawn(_COMPANY_IS_PAID[kinds], companies, persons, generator)
    payee[: len(employed)] = employed
    same = payer == payee
    while same.any():
        payee[same] = _drawn(_COMPANY_IS_PAID[kinds[same]], companies, persons, generator)
        same = payer == payee
    return kinds, payer, payee


def _drawn(company: NDArray[np.bool_], companies: Whole, persons: Whole, generator: np.random.Generator) -> Whole:
    uniform = generator.random(len(company))
    return np.where(
        company,
        companies[(uniform**2 * len(companies)).astype(np.int32)],
        persons[(uniform**2 * len(persons)).astype(np.int32)],
    )
