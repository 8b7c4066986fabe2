"""Lawful transfers: wages, purchases, people among themselves, suppliers, each over contacts that recur."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.graph.payments.customers import NONE, Customers
from veilgraph.graph.payments.transfers import LAWFUL, RATES, SECONDS_A_DAY, Transfers, Whole, draw_methods

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
_WAGE, _PURCHASE = 0, 1


def ordinary_transfers(customers: Customers, count: int, days: int, generator: np.random.Generator) -> Transfers:
    """``count`` transfers over about a quarter as many contacts, one at least for each, at times drawn evenly.

    A contact has its two accounts, its kind and its usual amount. Every person is some company's employee. A company is
    drawn with the density 1/√rank: the largest have many contacts.
    """
    kinds, payer, payee = _contacts(customers, count, generator)
    pairs = len(kinds)
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
