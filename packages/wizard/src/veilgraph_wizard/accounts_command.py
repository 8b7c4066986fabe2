"""The command that makes a bank's node table of its own transfers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Final

from veilgraph.cli.app import Replace, check_new, command, data
from veilgraph.cli.output import echo
from veilgraph.core.deferred import deferred
from veilgraph.core.errors import ConfigError, DataError

with deferred():
    from veilgraph.samples.organisations import write_table
    from veilgraph.tables.column_settings import IdSettings
    from veilgraph_wizard.accounts import AccountChoices, AccountTable, SplitByDays, account_table
    from veilgraph_wizard.choices import Choices
    from veilgraph_wizard.ledger import column_of, read_ledger
    from veilgraph_wizard.sampling import Sample, sample
    from veilgraph_wizard.transfer_columns import Names, TransferColumns

_CALLED: Final = {
    "accounts": "--ends SOURCE:TARGET",
    "banks": "--banks SOURCE:TARGET",
    "time": "--time COLUMN",
    "amounts": "--amount PAID:RECEIVED",
    "currencies": "",
    "flag": "--label-from COLUMN",
}
"""What a column can be taken for, and the option that says so."""


@command("accounts", "veilgraph data accounts transfers.csv --holder north --out accounts.csv", data)
def accounts_command(
    transfers: list[Path],
    holder: str,
    out: Path = Path("accounts.csv"),
    label_from: str | None = None,
    no_label: bool = False,
    as_of: str | None = None,
    split: str | None = None,
    ends: str | None = None,
    banks: str | None = None,
    time: str | None = None,
    amount: str | None = None,
    category: list[str] | None = None,
    leave_out: list[str] | None = None,
    ids: str | None = None,
    missing: list[str] | None = None,
    encoding: str | None = None,
    replace: Replace = False,
) -> None:
    """Make a node table of a bank's transfers: a row per account of its own, its columns, a label and a split.

    Options:
        FILES... (transfers): Tables of transfers, this bank's own or a network's; those of other banks are left out.
        --holder NAME: This bank, as the tables and the job call it.
        --out FILE: The table to write, ending in .csv or .parquet.
        --label-from COLUMN: Flags of transfers: an account of a flagged one is positive. Default: guessed.
        --no-label: Make no label.
        --as-of DATE: Make columns of transfers before this day, and labels of flags from it on.
        --split SPLIT: Add a column of splits: random; random:FILE, by a key; or DATE:DATE, to train on what was before
            the first and validate on what was before the second.
        --ends SOURCE:TARGET: Columns of the accounts, payer first. Default: guessed.
        --banks SOURCE:TARGET: Columns of their banks. Default: guessed.
        --time COLUMN: When a transfer was made. Default: guessed.
        --amount PAID:RECEIVED: What was paid and received; one column may be both. Default: guessed.
        --category NAME=VALUE,…: Values that have a column, which all banks are to have alike; may be given several
            times. Default: those that are found.
        --leave-out COLUMN: Not to use; may be given several times.
        --ids strip,lower: How ids are written alike, as for data init. Default: as they stand.
        --missing TEXT: What is no value; may be given several times.
        --encoding NAME: Of text that is not UTF-8, as cp1252.
    """
    check_new(out, replace=replace)
    if out.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"--out {out}: ends in neither .csv nor .parquet; name it so")
    if no_label and label_from is not None:
        raise ConfigError(f"--label-from {label_from}: --no-label says that there is none; leave one out")
    chosen = Choices.read(
        ids=ids, as_of=as_of, missing=tuple(missing or ()), encoding=encoding, ends=() if ends is None else (ends,)
    )
    named = _Named(
        ends=chosen.ends[0] if chosen.ends else None,
        banks=_pair(banks, "--banks", "from_bank:to_bank"),
        time=time,
        amounts=_pair(amount, "--amount", "paid:received"),
        flag=label_from,
        left_out=tuple(leave_out or ()),
        no_label=no_label,
    )
    choices = AccountChoices(chosen.as_of, dict(map(_category, category or ())), _split(split))
    samples = [sample(path, chosen.encoding, chosen.missing) for path in transfers]
    tables = [(each, named.columns(each)) for each in samples]
    _check_alike(tables)
    spelling = IdSettings(**dict.fromkeys(chosen.ids or (), True))
    made = account_table(read_ledger(tables, holder, spelling), choices)
    write_table({name: made.columns[name] for name in made.columns.column_names}, out)
    for line in _said(tables, made):
        echo(line)
    labelled = "label" in made.columns.column_names
    more = f"{' --label label' if labelled else ' --no-label'}{' --split random' if labelled and split is None else ''}"
    more += "" if as_of is None else f" --as-of {as_of}"
    files = " ".join(map(str, (out, *transfers)))
    echo(f"{out} is written; next: veilgraph data init {files} --party {holder} --id account_id{more}")


class _Named:
    """The columns that somebody has named; others are guessed."""

    def __init__(
        self,
        *,
        ends: Names | None,
        banks: Names | None,
        time: str | None,
        amounts: Names | None,
        flag: str | None,
        left_out: Sequence[str],
        no_label: bool,
    ) -> None:
        self._ends, self._banks, self._left_out, self._no_label = ends, banks, left_out, no_label
        self._time, self._amounts, self._flag = time, amounts, flag

    def columns(self, sample: Sample) -> TransferColumns:
        """What the columns of a table are.

        Raises:
            DataError: it has not a column that is named, or no accounts or banks are found.
        """
        from veilgraph_wizard.transfer_columns import sides, transfer_columns  # noqa: PLC0415

        there = {column.name: column for column in sample.columns}
        several: dict[str, Sequence[str]] = {
            "--ends": self._ends or (),
            "--banks": self._banks or (),
            "--amount": self._amounts or (),
        }
        single = {"--time": self._time, "--label-from": self._flag}
        several |= {option: (name,) for option, name in single.items() if name is not None}
        for option_, names in (*several.items(), ("--leave-out", self._left_out)):
            for name in names:
                if name not in there:
                    raise DataError(
                        f"{sample.path}: {option_} {name}: no column has that name; there are {', '.join(there)}"
                    )
        found = sides(sample, self._ends, self._banks)
        if found is None:
            raise DataError(
                f"{sample.path}: which columns are both accounts, and which both banks, cannot be told from "
                f"{', '.join(there)}; name them: --ends SOURCE:TARGET --banks SOURCE:TARGET"
            )
        columns = transfer_columns(sample, *found, left_out=self._left_out, flag=self._flag)
        return replace(
            columns,
            time=self._time or columns.time,
            amounts=self._amounts or columns.amounts,
            flag=None if self._no_label else columns.flag,
        )


def _pair(text: str | None, option_: str, example: str) -> Names | None:
    match (text or "").split(":"):
        case [""]:
            return None
        case [one, other] if one and other:
            return one, other
        case [one]:
            return one, one
    raise ConfigError(f"{option_} {text}: is not two columns, as {example}")


def _category(text: str) -> tuple[str, tuple[str, ...]]:
    name, equals, values = text.partition("=")
    found = tuple(dict.fromkeys(value.strip() for value in values.split(",") if value.strip()))
    if not equals or not name:
        raise ConfigError(f"--category {text}: is not NAME=VALUE,VALUE, as in format=wire,cheque; NAME= gives it none")
    return name, found


def _split(text: str | None) -> SplitByDays | str | None:
    from veilgraph_wizard.choices import RANDOM, SplitByKey  # noqa: PLC0415

    if text is None or text == RANDOM:
        return None if text is None else ""
    if text.startswith(f"{RANDOM}:"):
        found = Choices.read(split=text).split
        return found.key if isinstance(found, SplitByKey) else ""
    try:
        first, second = map(date.fromisoformat, text.split(":"))
    except ValueError as error:
        raise ConfigError(
            f"--split {text}: is neither random, random:FILE nor DATE:DATE, as in 2024-05-01:2024-06-01"
        ) from error
    if first >= second:
        raise ConfigError(f"--split {text}: {first} must be earlier than {second}; training comes before validation")
    return SplitByDays(first, second)


def _check_alike(tables: Sequence[tuple[Sample, TransferColumns]]) -> None:
    """Refuses tables of which one has a kind of column that another lacks."""
    first, columns = tables[0]
    for sample, others in tables[1:]:
        for kind in ("time", "amounts", "currencies", "flag"):
            mine, theirs = getattr(columns, kind), getattr(others, kind)
            if (mine is None) != (theirs is None):
                has, lacks = (first, sample) if mine is not None else (sample, first)
                name = mine if mine is not None else theirs
                raise DataError(
                    f"{lacks.path}: has no {kind} as {has.path} has ({name}); {_CALLED[kind] or 'mend the table'}, "
                    "leave that column out (--leave-out), or give one of the files"
                )


def _said(tables: Sequence[tuple[Sample, TransferColumns]], made: AccountTable) -> Iterator[str]:
    """What columns were taken for, what was left out, and what is left to agree on."""
    sample, columns = tables[0]
    for kind, option_ in _CALLED.items():
        found = getattr(columns, kind)
        names = (found,) if isinstance(found, str) else tuple(dict.fromkeys(found or ()))
        way_out = f" ({option_})" if option_ and (kind in ("accounts", "banks") or not names) else ""
        yield f"{kind}: {', '.join(names) or 'none'}{way_out}"
    if columns.time is not None and len(written := column_of(sample, columns.time).formats) > 1:
        yield f"to decide: is {columns.time} written {' or '.join(written)}? The first was taken; else write it anew"
    rows = made.columns.num_rows
    yield f"accounts: {rows}, of {made.used} of {made.rows} transfers; columns: {made.columns.num_columns}"
    for why, count in made.left_out.items():
        yield f"left out: {count} transfers, {why}"
    for name in ("label", "split"):
        if name in made.columns.column_names:
            counts = made.columns[name].value_counts().to_pylist()
            said = sorted(f"{each['values'] or 'none'} {each['counts']}" for each in counts)
            yield f"{name}: {', '.join(said)}"
    for name, values in made.categories.items():
        yield f"to agree with the other banks: --category '{name}={','.join(values)}'"
