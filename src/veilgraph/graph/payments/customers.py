"""Who the customers are, where they have accounts, and who knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.graph.payments.transfers import CURRENCIES, Whole
from veilgraph.graph.payments_settings import PaymentsSettings

NONE: Final = -1
"""In place of a second bank."""
_COMPANIES: Final = 0.15
_CURRENCY_SHARES: Final = (0.6, 0.15, 0.1, 0.1, 0.05)


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
    company = generator.permutation(count) < round(_COMPANIES * count)
    return Customers(
        first=first,
        second=second,
        company=company,
        age=np.where(company, generator.exponential(12, count), generator.uniform(18, 90, count)).astype(np.float32),
        income=generator.lognormal(np.where(company, 13.0, 10.4), np.where(company, 1.2, 0.5)).astype(np.float32),
        currency=generator.choice(len(CURRENCIES), size=count, p=_CURRENCY_SHARES).astype(np.int8),
        at_shop=generator.random(count) < settings.reach,
        at_telecom=generator.random(count) < settings.reach,
    )


def bank_sizes(customers: int, banks: int) -> Whole:
    """How many customers each bank is the first bank of, [banks]."""
    ends = np.cumsum(1 / np.sqrt(1 + np.arange(banks)))
    return np.asarray(np.diff(np.round(ends / ends[-1] * customers).astype(np.int64), prepend=0))
