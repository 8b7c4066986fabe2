"""Which column of a table of transfers is what: both accounts, both banks, time, amounts, currencies, formats, a flag.

Columns are told by the words of their names, in which the two sides of a transfer stand against each other. The
published schemas that it has to know are AMLworld's, in which both accounts are called ``Account``, and that of the
PETs prize challenge, in which ``Sender`` and ``Receiver`` are banks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from veilgraph.tables.source import TRUTHS
from veilgraph_wizard.sampling import Sample, SampledColumn

Pair = tuple[SampledColumn, SampledColumn]
"""The paying side's column, and the paid side's."""
Names = tuple[str, str]

_SIDES: Final = (
    ("from", "to"),
    ("source", "target"),
    ("src", "dst"),
    ("payer", "payee"),
    ("sender", "receiver"),
    ("sender", "recipient"),
    ("ordering", "beneficiary"),
    ("originator", "beneficiary"),
    ("orig", "bene"),
    ("debtor", "creditor"),
    ("von", "nach"),
)
_MONEY: Final = (
    ("paid", "received"),
    ("payment", "receiving"),
    ("sent", "received"),
    ("instructed", "settlement"),
    ("debited", "credited"),
)
_BANK: Final = frozenset({"bank", "bic", "institution", "holder"})
_ACCOUNT: Final = frozenset({"account", "acct", "iban", "konto", "id", "number", "no", "nr"})
_AMOUNT: Final = frozenset({"amount", "value", "sum", "betrag"})
_CURRENCY: Final = frozenset({"currency", "ccy", "waehrung", "währung"})
_FLAG: Final = re.compile(r"(is[_ -]?)?(label|fraud|fraudulent|laundering|suspicious|flag|flagged)", re.I)
_WORD: Final = re.compile(r"[^\W\d_]+")
_CAMEL: Final = re.compile(r"(?<=[a-zß-ÿ])(?=[A-ZÀ-Þ])")
_AGAIN: Final = ".1"
"""Behind the name of a column that a header has twice."""


@dataclass(frozen=True)
class TransferColumns:
    """Columns by their names; a pair is of the paying and the paid side, which may be one column.

    Attributes:
        accounts: ids of the accounts.
        banks: whose they are.
        time: when a transfer was made; None: unknown.
        amounts: what was paid, and what was received; None: unknown.
        currencies: of the amounts.
        categories: few values each, and what such a pair is called.
        flag: truth values that a transfer is suspicious; None: there is none.
    """

    accounts: Names
    banks: Names
    time: str | None
    amounts: Names | None
    currencies: Names | None
    categories: tuple[tuple[str, Names], ...]
    flag: str | None


def sides(sample: Sample, ends: Names | None = None, banks: Names | None = None) -> tuple[Pair, Pair] | None:
    """Both accounts and both banks of a table of transfers; None where it does not seem to be one.

    ``ends`` and ``banks`` are the columns of either, where they are known.
    """
    rests: dict[tuple[str, ...], Pair] = {}
    for rest, pair in _pairs(sample.columns, _SIDES):
        rests.setdefault(rest, pair)
    bare = rests.get(())
    accounts, whose = _called(sample, ends), _called(sample, banks)
    if ends is None:
        accounts = next((pair for rest, pair in rests.items() if {*rest} & _ACCOUNT and not {*rest} & _BANK), None)
        accounts = accounts or _twice(sample.columns)
    if banks is None:
        whose = next((pair for rest, pair in rests.items() if {*rest} & _BANK and _recurs(pair)), None)
    if accounts is None and whose is not None:
        accounts = bare
    elif accounts is not None and whose is None and bare is not None and _recurs(bare) and _are_fewer(bare, accounts):
        whose = bare
    if accounts is None or whose is None or {*map(id, whose)} & {*map(id, accounts)}:
        return None
    return accounts, whose


def transfer_columns(
    sample: Sample, accounts: Pair, banks: Pair, *, left_out: Sequence[str] = (), flag: str | None = None
) -> TransferColumns:
    """What the other columns of a table of transfers are; ``flag`` is the name of that column, where it is known."""
    taken = {id(each) for each in (*accounts, *banks)}
    rest = [column for column in sample.columns if id(column) not in taken and column.name not in left_out]
    flagged = flag or next((each.name for each in rest if _FLAG.fullmatch(each.name) and _is_flag(each)), None)
    of_sides = {id(each) for _, pair in _pairs(rest, _SIDES) for each in pair}
    rest = [column for column in rest if column.name != flagged and id(column) not in of_sides]
    dates = sorted((each for each in rest if each.written == "date"), key=lambda each: ":" not in each.known[0])
    amounts = _money([each for each in rest if each.written == "number" and _AMOUNT & {*_words(each.name)}])
    currencies = _money([each for each in rest if _CURRENCY & {*_words(each.name)}])
    kinds = [each for each in rest if each.written == "category" and each.has_few]
    kinds = [each for each in kinds if not _CURRENCY & {*_words(each.name)}]
    categories = [(each.name, (each.name, each.name)) for each in kinds]
    if currencies is not None and all(each.has_few for each in currencies):
        categories = [("currency", _names(currencies)), *categories]
    return TransferColumns(
        accounts=_names(accounts),
        banks=_names(banks),
        time=dates[0].name if dates else None,
        amounts=None if amounts is None else _names(amounts),
        currencies=None if currencies is None else _names(currencies),
        categories=tuple(categories),
        flag=flagged,
    )


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(_CAMEL.sub(" ", name)))


def _pairs(columns: Sequence[SampledColumn], sides: Sequence[Names]) -> Iterator[tuple[tuple[str, ...], Pair]]:
    """Columns whose words differ by the side alone, as From Bank and To Bank, and the words beside it."""
    of = {_words(column.name): column for column in reversed(columns)}
    for first, second in sides:
        for words, column in reversed(of.items()):
            other = of.get(tuple(second if word == first else word for word in words))
            if first in words and other is not None:
                yield tuple(word for word in words if word != first), (column, other)


def _twice(columns: Sequence[SampledColumn]) -> Pair | None:
    """An account's column that the header has twice."""
    named = {column.name: column for column in columns}
    return next(
        (
            (column, named[column.name + _AGAIN])
            for column in columns
            if column.name + _AGAIN in named and {*_words(column.name)} & _ACCOUNT
        ),
        None,
    )


def _money(columns: Sequence[SampledColumn]) -> Pair | None:
    """What was paid and what was received, or the first column for both; None where there is none."""
    pairs = (pair for _, pair in _pairs(columns, _MONEY))
    return next(pairs, (columns[0], columns[0]) if columns else None)


def _called(sample: Sample, names: Names | None) -> Pair | None:
    columns = {column.name: column for column in sample.columns}
    return None if names is None or not {*names} <= columns.keys() else (columns[names[0]], columns[names[1]])


def _recurs(pair: Pair) -> bool:
    """Whether both columns have each value several times, as banks are."""
    return all(2 * len(column.distinct) <= len(column.known) for column in pair)


def _are_fewer(banks: Pair, accounts: Pair) -> bool:
    """Whether there are fewer than half as many banks as accounts: else they may be names of the same."""
    return all(2 * len(bank.distinct) < len(ids.distinct) for bank, ids in zip(banks, accounts, strict=True))


def _is_flag(column: SampledColumn) -> bool:
    return {value.lower() for value in column.distinct} <= {word for words in TRUTHS for word in words}


def _names(pair: Pair) -> Names:
    return pair[0].name, pair[1].name
