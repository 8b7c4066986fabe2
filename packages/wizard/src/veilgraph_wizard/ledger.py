"""A bank's own transfers, read in pieces from tables of its own or of a payment network: arrays, of both sides each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from veilgraph.core.errors import DataError
from veilgraph.tables.column_settings import IdSettings
from veilgraph.tables.source import (
    Bools,
    Codes,
    Column,
    Floats,
    Format,
    Times,
    is_null,
    stream,
)
from veilgraph_wizard.sampling import Sample, SampledColumn
from veilgraph_wizard.transfer_columns import Names, TransferColumns

PAYING, PAID = 0, 1
"""Sides of a transfer, as places in pairs."""
_BETWEEN: Final = "\x1f"
"""Between a bank's name and an account's id: the same id at two banks is two accounts."""
_MOST_NAMED: Final = 10


@dataclass(frozen=True, eq=False)
class Ledger:
    """T transfers, with an end at one bank at least, in the order of the files.

    Attributes:
        holder: the bank.
        names: bank and id of each account that is an end; codes are places in it.
        ends: int32 [2, T] codes, the paying side first.
        own: bool [2, T], whether an end is the bank's.
        times: datetime64[us] [T]; None where the files have none.
        amounts: float32 [2, T], finite, at least 0; None where the files have none.
        currencies: int32 [2, T], a number of each currency; None where the files have none.
        categories: name → its values, and int32 [2, T] places in these, −1 where there is none.
        flags: float32 [T], 1 suspicious, 0 not, NaN unknown; None where no column says it.
        left_out: why → how many rows were left out.
        rows: how many there were.
    """

    holder: str
    names: pa.StringArray
    ends: Codes
    own: Bools
    times: Times | None
    amounts: Floats | None
    currencies: Codes | None
    categories: Mapping[str, tuple[tuple[str, ...], Codes]]
    flags: Floats | None
    left_out: Mapping[str, int]
    rows: int

    def ids(self, codes: NDArray[np.int64]) -> list[str]:
        """The ids of some of the bank's accounts, as they are written alike."""
        start = len(self.holder) + len(_BETWEEN)
        found: list[str] = pc.utf8_slice_codeunits(self.names.take(pa.array(codes)), start).to_pylist()
        return found


def read_ledger(tables: Sequence[tuple[Sample, TransferColumns]], holder: str, spelling: IdSettings) -> Ledger:
    """Read all rows of tables, each of which has the same kinds of columns, and keep those with an end at ``holder``.

    Raises:
        DataError: a value is not of its column's type, a file cannot be read, or no end is at ``holder``.
    """
    reading = _Reading(holder, spelling, tables[0][1])
    for sample, columns in tables:
        reading.add(sample, columns)
    return reading.ledger()


class _Reading:
    def __init__(self, holder: str, spelling: IdSettings, columns: TransferColumns) -> None:
        self._holder, self._spelling, self._kinds = holder, spelling, columns
        self._own: list[Bools] = []
        self._times: list[Times] = []
        self._amounts: list[Floats] = []
        self._flags: list[Floats] = []
        self._texts: dict[str, tuple[list[pa.Array], list[pa.Array]]] = {}
        self._left_out = Counter[str]()
        self._banks = Counter[str]()
        self._rows = 0

    def add(self, sample: Sample, columns: TransferColumns) -> None:
        """The rows of a table."""
        named: dict[str, Names | None] = {"account": columns.accounts, "bank": columns.banks}
        named |= {"amount": columns.amounts, "currency": columns.currencies}
        named |= {f"of {name}": pair for name, pair in columns.categories}
        asked = {(key, side): pair[side] for key, pair in named.items() if pair for side in (PAYING, PAID)}
        single = {"time": columns.time, "flag": columns.flag}
        asked |= {(key, PAYING): name for key, name in single.items() if name is not None}
        form, formats = _form(sample), _formats(sample, columns.time)
        for batch in stream(sample.path, [*asked.values()], None, form):
            self._add(dict(zip(asked, batch, strict=True)), formats)

    def _add(self, raw: dict[tuple[str, int], Column], formats: Sequence[str] | None) -> None:
        self._rows += len(raw["account", PAYING].rows)
        banks = [raw["bank", side].text() for side in (PAYING, PAID)]
        if not self._own:  # of the first piece, for whoever names a bank that has none
            for each in pc.value_counts(pa.concat_arrays(banks)).to_pylist():
                self._banks[each["values"] or ""] += each["counts"]
        own = [pc.fill_null(pc.equal(bank, self._holder), False).to_numpy(zero_copy_only=False) for bank in banks]
        raw = self._keep(raw, own[PAYING] | own[PAID], "no end at this bank")
        raw = self._keep(
            raw,
            ~np.any([is_null(raw[key, side].text()) for key in ("account", "bank") for side in (PAYING, PAID)], 0),
            "no account or no bank at an end",
        )
        if self._kinds.time is not None:
            times = raw["time", PAYING].times(formats)
            raw = self._keep(raw, known := ~np.isnat(times), "no time")
            self._times.append(times[known])
        if self._kinds.amounts is not None:
            amounts = np.stack([raw["amount", side].numbers() for side in (PAYING, PAID)])
            raw = self._keep(raw, known := np.asarray((amounts >= 0).all(0)), "no amount, or one below 0")
            self._amounts.append(amounts[:, known])
            if self._kinds.time is not None:
                self._times[-1] = self._times[-1][known]
        self._append(raw)

    def _keep(self, raw: dict[tuple[str, int], Column], keep: Bools, why: str) -> dict[tuple[str, int], Column]:
        self._left_out[why] += int((~keep).sum())
        return {key: column.filter(keep) for key, column in raw.items()}

    def _append(self, raw: dict[tuple[str, int], Column]) -> None:
        banks = [raw["bank", side].text() for side in (PAYING, PAID)]
        self._own.append(np.stack([_true(pc.equal(bank, self._holder)) for bank in banks]))
        for side, bank in enumerate(banks):
            ids = raw["account", side].ids(self._spelling)
            self._text("account", side, pc.binary_join_element_wise(bank, ids, _BETWEEN))
        if self._kinds.flag is not None:
            self._flags.append(raw["flag", PAYING].truths())
        for (key, side), column in raw.items():
            if key == "currency" or key.startswith("of "):
                self._text(key, side, pc.utf8_trim_whitespace(column.text()))

    def _text(self, key: str, side: int, text: pa.Array) -> None:
        self._texts.setdefault(key, ([], []))[side].append(pc.dictionary_encode(text))

    def ledger(self) -> Ledger:
        """All that was added."""
        kinds = self._kinds
        if not any(own.shape[1] for own in self._own):
            self._refuse_none()
        coded = {key: _coded([*sides[PAYING], *sides[PAID]]) for key, sides in self._texts.items()}
        names, ends = coded["account"]
        return Ledger(
            holder=self._holder,
            names=names,
            ends=ends,
            own=np.concatenate(self._own, axis=1),
            times=np.concatenate(self._times) if kinds.time is not None else None,
            amounts=np.concatenate(self._amounts, axis=1) if kinds.amounts is not None else None,
            currencies=coded["currency"][1] if kinds.currencies is not None else None,
            categories={
                name: (tuple(coded[f"of {name}"][0].to_pylist()), coded[f"of {name}"][1])
                for name, _ in kinds.categories
            },
            flags=np.concatenate(self._flags) if kinds.flag is not None else None,
            left_out={why: count for why, count in self._left_out.items() if count},
            rows=self._rows,
        )

    def _refuse_none(self) -> NoReturn:
        most = [name for name, _ in self._banks.most_common(_MOST_NAMED) if name]
        raise DataError(
            f"--holder {self._holder}: none of {self._rows} transfers has an end at a bank of that name in "
            f"{' and '.join(map(repr, self._kinds.banks))}; most are at {', '.join(most)}; name one of these, as it "
            "is written there"
        )


def _true(found: pa.Array) -> Bools:
    known: Bools = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return known


def _coded(chunks: Sequence[pa.DictionaryArray]) -> tuple[pa.StringArray, Codes]:
    """The texts of both sides, one after the other, as places [2, T] in all that there are; −1 where there is none."""
    whole = pa.chunked_array(chunks).unify_dictionaries()
    codes = np.concatenate([pc.fill_null(each.indices, -1).to_numpy() for each in whole.chunks], dtype=np.int32)
    return whole.chunk(0).dictionary, codes.reshape(2, -1)


def column_of(sample: Sample, name: str) -> SampledColumn:
    """The column of that name, which there is."""
    return next(column for column in sample.columns if column.name == name)


def _form(sample: Sample) -> Format:
    numbers = {column.name: column.number(sample.decimal) for column in sample.columns if column.written == "number"}
    return replace(sample.form, missing=sample.markers, numbers=numbers)


def _formats(sample: Sample, time: str | None) -> list[str] | None:
    """How times are written; None: in ISO."""
    if time is None:
        return None
    column = column_of(sample, time)
    found = [*column.formats[:1]] or [*column.mixed]
    return found if any(found) else None
