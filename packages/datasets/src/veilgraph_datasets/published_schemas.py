"""A world of payments in the columns of published data sets: what each bank, and a payment network, would export.

The columns are those of AMLworld (Altman et al., *Realistic Synthetic Financial Transactions for Anti-Money Laundering
Models*, 2023) and of the PETs prize challenge's track on financial crime (2022). No row of either is in it: accounts,
names and addresses are made up, and countries have codes that ISO 3166 leaves to users.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from veilgraph.core.files import private_folder
from veilgraph.core.types import PartyId
from veilgraph.samples.organisations import Rows, TableFormat, writing
from veilgraph_datasets.payments_tables import NETWORK, ROWS_AT_ONCE, write_parts
from veilgraph_datasets.settings import PaymentsSettings
from veilgraph_datasets.transfers import BANK_FACTS, CURRENCIES, LAWFUL, METHODS, NONE, Transfers
from veilgraph_datasets.world import PaymentsWorld, payments_world

_BEGIN: Final = np.datetime64("2022-09-01T00:00:00", "s")
_MONEY: Final = {"EUR": "Euro", "USD": "US Dollar", "GBP": "UK Pound", "CHF": "Swiss Franc", "SEK": "Swedish Krona"}
_FORMATS: Final = {"transfer": "ACH", "instant": "Wire", "card": "Credit Card", "cheque": "Cheque"}
_SYLLABLES: Final = (
    "ba",
    "dor",
    "el",
    "fen",
    "gri",
    "hal",
    "ko",
    "lu",
    "mir",
    "na",
    "os",
    "pel",
    "ra",
    "sti",
    "tum",
    "ve",
)
_WAYS: Final = ("Street", "Lane", "Road", "Square")
_LIKELY: Final = 0.5
_FIRST_ACCOUNT: Final = 0x800000000


@dataclass(frozen=True, eq=False)
class Books:
    """A world whose banks have codes, and whose accounts, one of a customer at a bank, have numbers of their own."""

    world: PaymentsWorld

    @cached_property
    def accounts(self) -> Rows:
        """A number of each customer's account at each bank, in no order: int64 [banks, N]; −1 where it has none."""
        customers, banks = self.world.customers, len(self.world.banks)
        own = np.stack([customers.of_bank(bank) for bank in range(banks)])
        found = np.full(own.shape, NONE, np.int64)
        found[own] = np.random.default_rng(self.world.seed).permutation(int(own.sum()))
        return found

    @cached_property
    def people(self) -> tuple[list[str], list[str], list[str]]:
        """Name, street, and country, city and postcode of every customer."""
        numbers = range(len(self.world.customers))
        return (
            [f"{_word(f'given {each}')} {_word(f'family {each}')}" for each in numbers],
            [f"{1 + each % 199} {_word(f'street {each % 997}')} {_WAYS[each % len(_WAYS)]}" for each in numbers],
            [
                f"X{chr(65 + each % 7)} {_word(f'city {each % 211}')} {10_000 + each * 7919 % 90_000}"
                for each in numbers
            ],
        )

    def own(self, bank: int) -> Rows:
        """A bank's customers, in the order of their accounts' numbers."""
        customers = np.flatnonzero(self.world.customers.of_bank(bank))
        return customers[np.argsort(self.accounts[bank, customers])]


def export_amlworld(settings: PaymentsSettings, out: Path, seed: int, suffix: TableFormat) -> dict[PartyId, Path]:
    """Write each bank's transactions and accounts in AMLworld's columns, in a folder called by the bank's code.

    Returns:
        Bank → its transactions.

    Raises:
        DataError: a bank has too few customers for the patterns.
        RunError: ``out`` is in use or cannot be written.
    """
    with writing(out):
        books = Books(payments_world(settings, seed))
        banks = [f"0{10 * (1 + place)}" for place in range(len(books.world.banks))]
        files = {name: private_folder(out / name) / f"transactions.{suffix}" for name in banks}
        again = "Account" if suffix == "csv" else "Account.1"  # a Parquet file with a name twice is read by few
        for place, name in enumerate(banks):
            _write_transfers(books, place, files[name], lambda rows: _aml_transactions(books, rows, banks, again))
            _write(_aml_accounts(books, place, banks), files[name].with_name(f"accounts.{suffix}"))
    return files


def export_pets(settings: PaymentsSettings, out: Path, seed: int, suffix: TableFormat) -> dict[PartyId, Path]:
    """Write each bank's transactions and accounts, and a network's transactions, in the PETs prize challenge's columns.

    The network has what crosses banks, and no bank's table of accounts.

    Returns:
        Bank, or the network → its transactions.

    Raises:
        DataError: a bank has too few customers for the patterns.
        RunError: ``out`` is in use or cannot be written.
    """
    with writing(out):
        books = Books(payments_world(settings, seed))
        banks = [f"BANK{1 + place}" for place in range(len(books.world.banks))]
        files = {name: private_folder(out / name) / f"transactions.{suffix}" for name in (*banks, NETWORK)}
        for place, (name, file) in enumerate(files.items()):
            of = None if name == NETWORK else place
            _write_transfers(books, of, file, lambda rows: _pets_transactions(books, rows, banks))
            if of is not None:
                _write(_pets_accounts(books, of, banks), file.with_name(f"accounts.{suffix}"))
    return files


SCHEMAS: Final[Mapping[str, Callable[[PaymentsSettings, Path, int, TableFormat], dict[PartyId, Path]]]] = (
    MappingProxyType({"amlworld": export_amlworld, "pets": export_pets})
)
"""Name of a published schema → what writes a world in it."""


def _write_transfers(books: Books, bank: int | None, path: Path, table: Callable[[Rows], pa.Table]) -> None:
    """What a bank sees, or what crosses banks, as it came, some at a time."""
    transfers = books.world.transfers
    seen = transfers.payer_bank != transfers.payee_bank if bank is None else transfers.seen_by(bank)
    rows = np.flatnonzero(seen)
    write_parts(
        (table(rows[start : start + ROWS_AT_ONCE]) for start in range(0, max(len(rows), 1), ROWS_AT_ONCE)), path
    )


def _write(columns: Mapping[str, Any], path: Path) -> None:
    write_parts(iter([pa.table(dict(columns))]), path)


def _at(names: Sequence[str], places: Rows) -> pa.Array:
    return pa.array(names).take(pa.array(places))


def _aml_transactions(books: Books, rows: Rows, banks: Sequence[str], again: str) -> pa.Table:
    transfers = books.world.transfers.take(rows)
    amount = transfers.amount / 100
    currency = _at([_MONEY[each] for each in CURRENCIES], transfers.currency)
    columns = (
        ("Timestamp", pc.strftime(_times(transfers), format="%Y/%m/%d %H:%M")),
        ("From Bank", _at(banks, transfers.payer_bank)),
        ("Account", _aml_numbers(books.accounts[transfers.payer_bank, transfers.payer])),
        ("To Bank", _at(banks, transfers.payee_bank)),
        (again, _aml_numbers(books.accounts[transfers.payee_bank, transfers.payee])),
        ("Amount Received", pa.array(amount)),
        ("Receiving Currency", currency),
        ("Amount Paid", pa.array(amount)),
        ("Payment Currency", currency),
        ("Payment Format", _at([_FORMATS[each] for each in METHODS], transfers.method)),
        ("Is Laundering", _is_laundering(transfers)),
    )
    return pa.table([column for _, column in columns], [name for name, _ in columns])


def _aml_accounts(books: Books, bank: int, banks: Sequence[str]) -> Mapping[str, Any]:
    own = books.own(bank)
    company = books.world.customers.company[own]
    return {
        "Bank Name": [f"Bank of {_word(f'bank {bank}')} #{1 + bank}"] * len(own),
        "Bank ID": [banks[bank].removeprefix("0")] * len(own),
        "Account Number": _aml_numbers(books.accounts[bank, own]),
        "Entity ID": [f"{_FIRST_ACCOUNT + 16 * each:X}" for each in own.tolist()],
        "Entity Name": [
            f"{'Corporation' if is_one else 'Sole Proprietorship'} #{1 + each}"
            for each, is_one in zip(own.tolist(), company.tolist(), strict=True)
        ],
    }


def _aml_numbers(accounts: Rows) -> pa.Array:
    return pa.array([f"{_FIRST_ACCOUNT + 16 * each:X}" for each in accounts.tolist()], pa.string())


def _pets_transactions(books: Books, rows: Rows, banks: Sequence[str]) -> pa.Table:
    transfers = books.world.transfers.take(rows)
    times, amount = _times(transfers), transfers.amount / 100
    currency = _at(CURRENCIES, transfers.currency)
    ends = {}
    for side, of, at in (
        ("Ordering", transfers.payer, transfers.payer_bank),
        ("Beneficiary", transfers.payee, transfers.payee_bank),
    ):
        ends[side] = {f"{side}{key}": each for key, each in _pets_customers(books, of, at).items()}
    return pa.table(
        {
            "MessageId": [f"TR{row:010d}" for row in rows.tolist()],
            "UETR": [str(uuid.UUID(bytes=_digest(f"uetr {row}"), version=4)) for row in rows.tolist()],
            "TransactionReference": [_digest(f"reference {row}").hex()[:16].upper() for row in rows.tolist()],
            "Timestamp": pc.strftime(times, format="%Y-%m-%d %H:%M:%S"),
            "Sender": _at(banks, transfers.payer_bank),
            "Receiver": _at(banks, transfers.payee_bank),
            **ends["Ordering"],
            **ends["Beneficiary"],
            "SettlementDate": pc.strftime(times, format="%y%m%d"),
            "SettlementCurrency": currency,
            "SettlementAmount": amount,
            "InstructedCurrency": currency,
            "InstructedAmount": amount,
            "Label": _is_laundering(transfers),
        }
    )


def _pets_accounts(books: Books, bank: int, banks: Sequence[str]) -> Mapping[str, Any]:
    """A bank's table; ``Flags`` is how many of the bank's facts are out of the ordinary: a hint, and no more."""
    own = books.own(bank)
    facts = np.stack([books.world.bank_facts[name][own] for name in BANK_FACTS])
    return {
        "Bank": [banks[bank]] * len(own),
        **_pets_customers(books, own, np.full(len(own), bank)),
        "Flags": (facts > _LIKELY).sum(axis=0),
    }


def _pets_customers(books: Books, customers: Rows, banks: Rows) -> Mapping[str, pa.Array]:
    def said(words: Sequence[str]) -> pa.Array:
        return pa.array(words).take(pa.array(customers))

    return {
        "Account": pa.array([f"ACCOUNT{each}" for each in books.accounts[banks, customers].tolist()], pa.string()),
        "Name": said(books.people[0]),
        "Street": said(books.people[1]),
        "CountryCityZip": said(books.people[2]),
    }


def _times(transfers: Transfers) -> pa.Array:
    return pa.array(_BEGIN + transfers.time.astype("timedelta64[s]"))


def _is_laundering(transfers: Transfers) -> pa.Array:
    return pa.array((transfers.pattern != LAWFUL).astype(np.int8))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]


def _word(text: str) -> str:
    """A made-up name."""
    return "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in _digest(text)[:3]).capitalize()
