"""Transfers: one row each, a column an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
