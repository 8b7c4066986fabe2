"""A node table of a bank's accounts, made of its own transfers: a row per account, columns that a fraud team makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.tables.nodes import draw_splits
from veilgraph.tables.settings import SplitFractions
from veilgraph.tables.source import Bools, Codes
from veilgraph_wizard.ledger import PAID, PAYING, Ledger

ACCOUNT: Final = "account_id"
LABEL: Final = "label"
SPLIT: Final = "split"
_SPLITS: Final = ("train", "val", "test")
_SHARES: Final = (0.6, 0.2, 0.2)
_CLASSES: Final = ("no", "yes")
_WAYS: Final = {PAID: "in", PAYING: "out"}
_MOST_VALUES: Final = 20
_DIGITS: Final = 6
_MORNING: Final = 6
"""Hours until which it is night."""
_FRIDAY: Final = 4

Rows = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class SplitByDays:
    """Training on what was flagged, or not, before one day, validation before the other."""

    train_before: date
    val_before: date


@dataclass(frozen=True)
class AccountChoices:
    """What to make of a ledger.

    Attributes:
        as_of: columns are made of earlier transfers, and labels of flags from this day on; None: both of all.
        categories: name → the values that have a column; of others those that are found.
        split: by days; by a key of a drawing, empty for a public one; None: no column of splits.
    """

    as_of: date | None = None
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    split: SplitByDays | str | None = None


@dataclass(frozen=True, eq=False)
class AccountTable:
    """What a ledger became.

    Attributes:
        columns: the table.
        categories: name → its values that have columns.
        rows: how many transfers were read, of which ``used`` have an account with a row.
        left_out: why → how many were not used.
    """

    columns: pa.Table
    categories: Mapping[str, tuple[str, ...]]
    rows: int
    used: int
    left_out: Mapping[str, int]


def account_table(ledger: Ledger, choices: AccountChoices) -> AccountTable:
    """Make a row per account of the bank, in the order of ids.

    Raises:
        ConfigError: a choice needs a column that the ledger has not.
        DataError: no account has a transfer before ``as_of``.
    """
    _check(ledger, choices)
    early = np.ones(ledger.own.shape[1], np.bool_)
    if choices.as_of is not None and ledger.times is not None:
        early = np.asarray(ledger.times < np.datetime64(choices.as_of, "us"))
    making = _Making(ledger, early)
    if not len(making.codes):
        raise DataError(
            f"--as-of {choices.as_of}: no account has an earlier transfer; the first is of {ledger.times.min()}"
            if ledger.times is not None
            else f"--holder {ledger.holder}: has no account"
        )
    categories = {
        name: choices.categories[name] if name in choices.categories else _found(values, codes[:, early])
        for name, (values, codes) in ledger.categories.items()
    }
    columns: dict[str, Any] = {ACCOUNT: making.ids, **making.columns(categories)}
    late = ~early if choices.as_of is not None else early
    if ledger.flags is not None:
        labels = making.labels(late)
        columns[LABEL] = pa.array(np.array([*_CLASSES, None], object)[labels], pa.string())
        if choices.split is not None:
            columns[SPLIT] = pa.array(np.array([*_SPLITS, None], object)[making.splits(labels, late, choices.split)])
    left_out = dict(ledger.left_out)
    if unused := int((~early).sum()):
        what = "used for labels alone" if ledger.flags is not None else "not used"
        left_out[f"of {choices.as_of} or later, {what}"] = unused
    return AccountTable(pa.table(columns), categories, ledger.rows, int(early.sum()), left_out)


def _check(ledger: Ledger, choices: AccountChoices) -> None:
    if ledger.times is None and choices.as_of is not None:
        raise ConfigError(f"--as-of {choices.as_of}: no column of times is known; name it (--time), or leave it out")
    if ledger.times is None and isinstance(choices.split, SplitByDays):
        raise ConfigError("--split DATE:DATE: no column of times is known; name it (--time), or split at random")
    if ledger.flags is None and choices.split is not None:
        raise ConfigError(
            "--split: there is no label to divide; name a column of flags (--label-from), or leave it out"
        )
    for name in choices.categories:
        if name not in ledger.categories:
            there = ", ".join(ledger.categories) or "none"
            raise ConfigError(f"--category {name}: the transfers have no such column of few values; there are: {there}")


def _found(values: Sequence[str], codes: Codes) -> tuple[str, ...]:
    """The most frequent values, in order."""
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    ranked = sorted(range(len(values)), key=lambda place: (-counts[place], values[place]))
    return tuple(sorted(values[place] for place in ranked[:_MOST_VALUES] if counts[place]))


class _Making:
    """The bank's accounts that have one of some transfers, and what is made of these."""

    def __init__(self, ledger: Ledger, used: Bools) -> None:
        self._ledger = ledger
        inside = ledger.own & used
        codes = _distinct(ledger.ends[inside].astype(np.int64))
        ids = ledger.ids(codes)
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__), np.int64)
        self.codes, self.ids = codes[order], [ids[place] for place in order]
        self._row = np.full(len(ledger.names), -1, np.int64)
        self._row[self.codes] = np.arange(len(self.codes))
        self._itself = ledger.ends[PAYING] == ledger.ends[PAID]
        self._used = used
        self._amounts = _comparable(ledger, used)

    def columns(self, categories: Mapping[str, tuple[str, ...]]) -> dict[str, Values]:
        """Name → a number of each account."""
        ledger, found = self._ledger, dict[str, Values]()
        count, total, other = dict[str, Values](), dict[str, Values](), dict[str, Values]()
        partners = dict[str, Rows]()
        for side, way in _WAYS.items():
            here = np.flatnonzero(ledger.own[side] & self._used & ~self._itself)
            rows = self._row[ledger.ends[side][here]]
            partner = ledger.ends[1 - side][here].astype(np.int64)
            count[way] = self._sum(rows)
            other[way] = self._sum(rows, ~ledger.own[1 - side][here])
            partners[way] = _distinct(rows * len(ledger.names) + partner)
            if self._amounts is not None:
                total[way] = self._amounts_of(self._amounts[side][here], rows, way, found)
        found = {"log_received": np.log1p(count["in"]), "log_sent": np.log1p(count["out"]), **found}
        if self._amounts is not None:
            more = np.maximum(total["in"], total["out"])
            found["passed_on"] = _share(np.minimum(total["in"], total["out"]), more)
        number = {way: self._sum(pairs // len(ledger.names)) for way, pairs in partners.items()}
        both = self._sum(np.intersect1d(partners["in"], partners["out"], assume_unique=True) // len(ledger.names))
        found |= {
            "log_payers": np.log1p(number["in"]),
            "log_payees": np.log1p(number["out"]),
            "both_ways": _share(both, number["in"] + number["out"] - both),
            "other_banks_in": _share(other["in"], count["in"]),
            "other_banks_out": _share(other["out"], count["out"]),
        }
        return {name: np.round(values, _DIGITS) for name, values in (found | self._shares(categories)).items()}

    def _amounts_of(self, amounts: Values, rows: Rows, way: str, found: dict[str, Values]) -> Values:
        """Adds what is made of amounts to ``found``; gives their sums."""
        logs, count = np.log1p(amounts), np.maximum(self._sum(rows), 1)
        mean = self._sum(rows, logs) / count
        largest = np.zeros(len(self.codes))
        np.maximum.at(largest, rows, logs)
        total = self._sum(rows, amounts)
        found |= {
            f"log_amount_{way}": np.log1p(total),
            f"mean_{way}": mean,
            f"spread_{way}": np.sqrt(self._sum(rows, (logs - mean[rows]) ** 2) / count),
            f"largest_{way}": largest,
        }
        return total

    def _shares(self, categories: Mapping[str, tuple[str, ...]]) -> dict[str, Values]:
        """What is made of all transfers of an account, those to itself among them once."""
        ledger, found = self._ledger, dict[str, Values]()
        mine = ledger.own & self._used
        mine[PAID] &= ~self._itself
        side, place = np.nonzero(mine)
        rows = self._row[ledger.ends[side, place]]
        count = self._sum(rows)
        found["to_itself"] = _share(self._sum(rows, self._itself[place]), count)
        if ledger.times is not None:
            times = ledger.times[place]
            days = times.astype("datetime64[D]").astype(np.int64)
            hours = (times - times.astype("datetime64[D]")) // np.timedelta64(1, "h")
            weekdays = (days + 3) % 7  # 1970 began on a Thursday
            apart = _distinct(rows * (days.max(initial=0) - days.min(initial=0) + 1) + days - days.min(initial=0))
            found["log_days"] = np.log1p(self._sum(apart // (days.max(initial=0) - days.min(initial=0) + 1)))
            found["night"] = _share(self._sum(rows, hours < _MORNING), count)
            found["weekend"] = _share(self._sum(rows, weekdays > _FRIDAY), count)
        for name, values in categories.items():
            known, codes = ledger.categories[name]
            of = codes[side, place]
            for value in values:
                is_it = of == known.index(value) if value in known else np.zeros(len(of), np.bool_)
                found[f"{name} {value}"] = _share(self._sum(rows, is_it), count)
        return found

    def labels(self, late: Bools) -> NDArray[np.int64]:
        """Places in the classes: yes with a flagged transfer, no without, 2 where no flag of its own is known."""
        flagged, known, of_account = (np.zeros(len(self.codes), np.bool_) for _ in range(3))
        for _, rows, place in self._of_accounts(late):
            flags = np.asarray(self._ledger.flags)[place]
            flagged[rows[flags == 1]] = known[rows[~np.isnan(flags)]] = of_account[rows] = True
        return np.where(flagged, 1, np.where(of_account & ~known, 2, 0))

    def splits(self, labels: NDArray[np.int64], late: Bools, split: SplitByDays | str) -> NDArray[np.int64]:
        """Places in the splits, 3 where there is no label."""
        if isinstance(split, str):
            train, val, test = _SHARES
            fractions = SplitFractions(train=train, val=val, test=test, stratify=False, key=split or None)
            drawn = draw_splits(np.zeros(len(labels), np.int32), fractions, self._ledger.holder, self.ids)
            return np.where(labels == len(_CLASSES), len(_SPLITS), drawn).astype(np.int64)
        days = self._days(labels, late)
        ends = np.array([split.train_before, split.val_before], "datetime64[us]")
        unknown = (labels == len(_CLASSES)) | np.isnat(days)
        return np.where(unknown, len(_SPLITS), np.searchsorted(ends, days, side="right"))

    def _days(self, labels: NDArray[np.int64], late: Bools) -> NDArray[np.datetime64]:
        """When each account was first flagged, and of others the time of one of their transfers, drawn by the id."""
        ledger = self._ledger
        parts = [(rows, place) for _, rows, place in self._of_accounts(late)]
        rows, place = (np.concatenate(each) for each in zip(*parts, strict=True))
        times, flags = np.asarray(ledger.times)[place], np.asarray(ledger.flags)[place]
        kept = (labels[rows] != 1) | (flags == 1)
        rows, times = rows[kept], times[kept]
        order = np.lexsort((times, rows))
        rows, times = rows[order], times[order]
        count = np.bincount(rows, minlength=len(self.codes))
        begin = np.cumsum(count) - count
        drawn = np.array(LearningStreams(0, ledger.holder).uniform("accounts/day", self.ids))
        at = begin + np.where(labels == 1, 0, (drawn * count).astype(np.int64))
        found = np.full(len(self.codes), np.datetime64("NaT", "us"))
        found[count > 0] = times[at[count > 0]]
        return found

    def _of_accounts(self, which: Bools) -> list[tuple[int, Rows, Rows]]:
        """Of each side: rows of the accounts of some transfers, and the places of these."""
        found = []
        for side in (PAYING, PAID):
            place = np.flatnonzero(self._ledger.own[side] & which)
            rows = self._row[self._ledger.ends[side][place]]
            found.append((side, rows[rows >= 0], place[rows >= 0]))
        return found

    def _sum(self, rows: Rows, weights: NDArray[Any] | None = None) -> Values:
        summed = np.bincount(rows, weights=weights, minlength=len(self.codes))
        return np.asarray(summed, np.float64)


def _comparable(ledger: Ledger, used: Bools) -> Values | None:
    """Amounts [2, T]; of several currencies as multiples of the median of those ``used`` in each at this bank."""
    if ledger.amounts is None:
        return None
    amounts = ledger.amounts.astype(np.float64)
    if ledger.currencies is None or len(kinds := _distinct(ledger.currencies.astype(np.int64).ravel())) == 1:
        return amounts
    for kind in kinds:
        here = ledger.currencies == kind
        if (here & used).any():
            amounts[here] /= np.median(amounts[here & used]) or 1
    return amounts


def _share(part: Values, whole: Values) -> Values:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def _distinct(codes: Rows) -> Rows:
    """Each code once, ascending; by a sort, for np.unique hashes, which takes several times as long."""
    codes = np.sort(codes)
    first = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=first[1:])
    return codes[first]
