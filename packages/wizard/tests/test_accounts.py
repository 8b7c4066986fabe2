"""A node table made of a bank's transfers is what slow loops over the rows find, and says what it took and left."""

import csv
import random
from collections import defaultdict
from datetime import date, datetime
from math import log1p
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
from veilgraph_wizard.sampling import sample
from veilgraph_wizard.transfer_columns import sides

from tests.cli.commands import one_error, veilgraph
from tests.tables.writing import write

AMLWORLD = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,Amount Paid,Payment Currency,"
    "Payment Format,Is Laundering"
)
CURRENCIES = {"Euro": 1.0, "Yen": 160.0}
FORMATS = ("ACH", "Cheque", "Wire")
AS_OF = date(2022, 9, 6)

Row = dict[str, Any]


def drawn(count: int = 600, seed: int = 0) -> list[Row]:
    """Transfers between some accounts of three banks; ids are the same at several banks; some are to oneself."""
    seeded = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        ends = [(f"0{seeded.choice('123')}0", f"8{seeded.randrange(25):03}") for _ in range(2)]
        if seeded.random() < 0.1:
            ends[1] = ends[0]
        paid = seeded.choice([*CURRENCIES])
        euros = round(seeded.lognormvariate(3, 1), 2)
        rows.append(
            {
                "time": datetime(2022, 9, seeded.randrange(1, 12), seeded.randrange(24), seeded.randrange(60)),
                "ends": ends,
                "amounts": (round(euros * CURRENCIES[paid], 2), euros),
                "currencies": (paid, "Euro"),
                "format": seeded.choice(FORMATS),
                "flag": int(seeded.random() < 0.03),
            }
        )
    return rows


def written(rows: list[Row], path: Path) -> Path:
    lines = [
        [
            f"{row['time']:%Y/%m/%d %H:%M}",
            *(text for end in row["ends"] for text in end),
            *(row["amounts"][1], row["currencies"][1], row["amounts"][0], row["currencies"][0]),
            *(row["format"], row["flag"]),
        ]
        for row in rows
    ]
    path.write_text("\n".join([AMLWORLD, *(",".join(map(str, line)) for line in lines)]) + "\n")
    return path


def found(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table by their ids."""
    with path.open(newline="") as file:
        return {row["account_id"]: row for row in csv.DictReader(file)}


def slowly(rows: list[Row], bank: str) -> dict[str, dict[str, float]]:
    """Account → what each column is to be."""
    of: dict[str, list[tuple[int, Row]]] = defaultdict(list)
    for row in rows:
        for side in range(1 if row["ends"][0] == row["ends"][1] else 2):
            if row["ends"][side][0] == bank:
                of[row["ends"][side][1]].append((side, row))
    mine = [row for row in rows if any(end[0] == bank for end in row["ends"])]
    middle = {
        each: median(row["amounts"][side] for row in mine for side in (0, 1) if row["currencies"][side] == each)
        for each in CURRENCIES
    }
    return {account: columns_of(account, bank, each, middle) for account, each in of.items()}


def columns_of(account: str, bank: str, of: list[tuple[int, Row]], middle: dict[str, float]) -> dict[str, float]:
    result: dict[str, float] = {}
    sums, partners = {}, {}
    for way, side in (("in", 1), ("out", 0)):
        moved = [row for at, row in of if at == side and row["ends"][0] != row["ends"][1]]
        amounts = [row["amounts"][side] / middle[row["currencies"][side]] for row in moved]
        logs = [log1p(each) for each in amounts] or [0.0]
        sums[way], partners[way] = sum(amounts), {row["ends"][1 - side] for row in moved}
        result |= {
            "log_received" if way == "in" else "log_sent": log1p(len(moved)),
            f"log_amount_{way}": log1p(sums[way]),
            f"mean_{way}": fmean(logs),
            f"spread_{way}": pstdev(logs),
            f"largest_{way}": max(logs),
            f"other_banks_{way}": share([row["ends"][1 - side][0] != bank for row in moved]),
        }
    both, either = partners["in"] & partners["out"], partners["in"] | partners["out"]
    more = max(sums.values())
    return result | {
        "passed_on": min(sums.values()) / more if more else 0,
        "log_payers": log1p(len(partners["in"])),
        "log_payees": log1p(len(partners["out"])),
        "both_ways": len(both) / len(either) if either else 0,
        "to_itself": share([row["ends"][0] == row["ends"][1] for _, row in of]),
        "log_days": log1p(len({row["time"].date() for _, row in of})),
        "night": share([row["time"].hour < 6 for _, row in of]),
        "weekend": share([row["time"].isoweekday() > 5 for _, row in of]),
        **{f"currency {each}": share([row["currencies"][side] == each for side, row in of]) for each in CURRENCIES},
        **{f"Payment Format {each}": share([row["format"] == each for _, row in of]) for each in FORMATS},
    }


def share(which: list[bool]) -> float:
    return sum(which) / len(which) if which else 0


def flagged(rows: list[Row], bank: str) -> set[str]:
    return {end[1] for row in rows if row["flag"] for end in row["ends"] if end[0] == bank}


def test_columns_and_labels_are_what_loops_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, over two files, of the columns of AMLworld as they are."""
    monkeypatch.setattr("veilgraph.tables.source.CSV_BLOCK_BYTES", 4096)
    rows = drawn()
    files = [written(rows[:350], tmp_path / "a.csv"), written(rows[350:], tmp_path / "b.csv")]
    said = veilgraph("data", "accounts", *files, "--holder", "020", "--out", tmp_path / "n.csv")
    assert said.exit_code == 0, said.output
    table, expected = found(tmp_path / "n.csv"), slowly(rows, "020")
    assert [*table] == sorted(expected)
    assert {*next(iter(table.values()))} == {"account_id", "label", *next(iter(expected.values()))}
    for account, columns in expected.items():
        assert {name: float(table[account][name]) for name in columns} == pytest.approx(columns, abs=2e-6), account
    positive = flagged(rows, "020")
    assert positive
    assert {account for account, row in table.items() if row["label"] == "yes"} == positive
    elsewhere = sum(all(end[0] != "020" for end in row["ends"]) for row in rows)
    for line in (
        "accounts: Account, Account.1",
        "banks: From Bank, To Bank",
        "amounts: Amount Paid, Amount Received",
        f"left out: {elsewhere} transfers, no end at this bank",
        f"label: no {len(table) - len(positive)}, yes {len(positive)}",
        "--category 'currency=Euro,Yen'",
        "--category 'Payment Format=ACH,Cheque,Wire'",
    ):
        assert line in said.stdout, line
    assert "--no-label" not in said.stdout


def test_columns_are_made_before_a_day_and_labels_from_it_on(tmp_path: Path) -> None:
    rows = drawn()
    rows += [row | {"time": datetime(AS_OF.year, AS_OF.month, AS_OF.day)} for row in drawn(50, seed=1)]  # to the second
    file = written(rows, tmp_path / "t.csv")
    early, late = ([row for row in rows if (row["time"].date() < AS_OF) == first] for first in (True, False))
    words = ("--holder", "010", "--out", tmp_path / "n.csv", "--as-of", AS_OF.isoformat())
    said = veilgraph("data", "accounts", file, *words).stdout
    assert said.endswith(f"--label label --split random --as-of {AS_OF}\n"), "edges are to end there too"
    table, expected = found(tmp_path / "n.csv"), slowly(early, "010")
    assert [*table] == sorted(expected)
    for account, columns in expected.items():
        assert {name: float(table[account][name]) for name in columns} == pytest.approx(columns, abs=2e-6), account
    assert {each for each, row in table.items() if row["label"] == "yes"} == flagged(late, "010") & {*expected}
    assert flagged(early, "010") - flagged(late, "010"), "some were flagged before alone"


def test_splits_are_by_the_id_and_by_days(tmp_path: Path) -> None:
    rows = drawn(2000)
    file, out = written(rows, tmp_path / "t.csv"), tmp_path / "n.csv"

    def splits(*options: str) -> dict[str, str]:
        result = veilgraph("data", "accounts", file, "--holder", "010", "--out", out, "--replace", *options)
        assert result.exit_code == 0, result.output
        return {account: row["split"] for account, row in found(out).items()}

    at_random = splits("--split", "random")
    assert set(at_random.values()) == {"train", "val", "test"}
    written([row | {"flag": 0} for row in rows[::-1]], file)
    assert splits("--split", "random") == at_random, "of the id alone"
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert splits("--split", f"random:{tmp_path / 'key'}") != at_random

    written(rows, file)
    by_days = splits("--split", "2022-09-05:2022-09-08")
    days: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for bank, account in row["ends"]:
            if bank == "010":
                days[account].add(part(row["time"]))
    first = {
        account: part(min(row["time"] for row in rows if row["flag"] and ("010", account) in row["ends"]))
        for account in flagged(rows, "010")
    }
    assert {account: by_days[account] for account in first} == first
    assert all(by_days[account] in parts for account, parts in days.items())
    assert {by_days[account] for account in days.keys() - first.keys()} == {"train", "val", "test"}


def part(time: datetime) -> str:
    return "train" if time < datetime(2022, 9, 5) else "val" if time < datetime(2022, 9, 8) else "test"


PLAIN: dict[str, list[Any]] = {
    "payer": ["a", "b", " C ", "c", "x", ""],
    "payer_bank": ["N", "N", "N", "S", "S", "N"],
    "payee": ["b", "A", "a", "a", "y", "b"],
    "payee_bank": ["N", "N", "S", "N", "S", "N"],
    "amount": [0.0, None, -2.0, 4.0, 5.0, 6.0],
    "suspicious": [None, "no", "no", None, "yes", "yes"],
}


def plain(path: Path, **changes: list[Any]) -> Path:
    """Several times the same rows, as in life."""
    write(path, {name: values * 4 for name, values in (PLAIN | changes).items()})
    return path


def test_rows_that_say_nothing_are_left_out_and_counted(tmp_path: Path) -> None:
    """Without times, of Parquet; ids as they are told to be written alike."""
    file, out = plain(tmp_path / "t.parquet"), tmp_path / "n.parquet"
    said = veilgraph("data", "accounts", file, "--holder", "N", "--out", out, "--ids", "strip,lower").stdout
    for line in (
        "left out: 4 transfers, no end at this bank",
        "left out: 4 transfers, no account or no bank at an end",
        "left out: 8 transfers, no amount, or one below 0",
        "time: none (--time COLUMN)",
        "label: none 2",
        "accounts: 2, of 8 of 24 transfers",
    ):
        assert line in said, said
    table = pyarrow.parquet.read_table(out).to_pydict()
    assert table["account_id"] == ["a", "b"]
    assert table["log_payers"] == pytest.approx([log1p(1), log1p(1)])
    assert table["other_banks_in"] == [1, 0]
    assert "night" not in table
    said = veilgraph(
        "data", "accounts", file, "--holder", "N", "--out", out, "--replace", "--no-label", "--leave-out", "amount"
    ).stdout
    assert "--no-label" in said
    assert pyarrow.parquet.read_table(out).column_names == [
        *("account_id", "log_received", "log_sent", "log_payers", "log_payees", "both_ways", "other_banks_in"),
        *("other_banks_out", "to_itself"),
    ]


def test_times_are_those_of_rows_that_are_kept(tmp_path: Path) -> None:
    """Where others are left out before them and between them, for their amounts and for their times."""
    days = ["2022-09-01T12:00", "2022-09-02T12:00", None, "2022-09-03T05:00", "2022-09-03T12:00", "2022-09-05T05:00"]
    amounts = [None, 1.0, 1.0, 1.0, -1.0, 1.0]
    ends = {
        name: [text] * 6 for name, text in {"payer": "a", "payer_bank": "N", "payee": "b", "payee_bank": "S"}.items()
    }
    write(tmp_path / "t.csv", ends | {"amount": amounts, "booked_at": days})
    said = veilgraph("data", "accounts", tmp_path / "t.csv", "--holder", "N", "--out", tmp_path / "n.csv")
    assert "left out: 1 transfers, no time" in said.stdout, said.output
    assert "left out: 2 transfers, no amount, or one below 0" in said.stdout
    (row,) = found(tmp_path / "n.csv").values()
    assert float(row["night"]) == pytest.approx(2 / 3, abs=1e-6)
    assert float(row["weekend"]) == pytest.approx(1 / 3, abs=1e-6)
    assert float(row["log_days"]) == pytest.approx(log1p(3), abs=1e-6)


def test_categories_are_those_that_banks_agree_on(tmp_path: Path) -> None:
    file, out = written(drawn(), tmp_path / "t.csv"), tmp_path / "n.csv"
    options = ("--category", "Payment Format=Wire,Cash", "--category", "currency=")
    assert veilgraph("data", "accounts", file, "--holder", "010", "--out", out, *options).exit_code == 0
    names = [*next(iter(found(out).values()))]
    assert [name for name in names if " " in name] == ["Payment Format Wire", "Payment Format Cash"]
    assert all(row["Payment Format Cash"] == "0" for row in found(out).values())


def test_columns_of_other_names_are_named(tmp_path: Path) -> None:
    columns = {
        "buyer": "payer",
        "shop": "payee",
        "b1": "payer_bank",
        "b2": "payee_bank",
        "eur": "amount",
        "odd": "suspicious",
    }
    write(tmp_path / "t.csv", {name: PLAIN[known] * 4 for name, known in columns.items()})
    base = ("data", "accounts", tmp_path / "t.csv", "--holder", "N", "--out", tmp_path / "n.csv")
    assert "--ends SOURCE:TARGET --banks SOURCE:TARGET" in one_error(veilgraph(*base))
    told = ("--ends", "buyer:shop", "--banks", "b1:b2", "--amount", "eur", "--label-from", "odd")
    result = veilgraph(*base, *told)
    assert result.exit_code == 0, result.output
    assert "amounts: eur" in result.stdout
    assert "label" in next(iter(found(tmp_path / "n.csv").values()))


def test_names_of_people_beside_their_ids_are_no_banks(tmp_path: Path) -> None:
    """As Sender and Receiver are in the PETs challenge, where many accounts have the same one."""
    for each, banks in ((7, True), (20, False)):
        rows = [(f"n{place % each}", f"n{place % (each - 1)}") for place in range(200)]
        columns = {"sender": [one for one, _ in rows], "receiver": [other for _, other in rows]}
        ids = {f"{name}_id": [f"k{place % 20}" for place in range(200)] for name in columns}
        write(tmp_path / "t.csv", columns | ids)
        assert (sides(sample(tmp_path / "t.csv")) is not None) == banks


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--holder", "030x"), "--holder 030x: none of 600 transfers"),
        (("--out", "n.txt"), "--out n.txt: ends in neither"),
        (("--ends", "Account"), "--ends Account: is not SOURCE:TARGET"),
        (("--ends", "Account:Konto"), "--ends Konto: no column has that name"),
        (("--banks", ":x"), "--banks :x: is not two columns"),
        (("--time", "When"), "--time When: no column has that name"),
        (("--leave-out", "When"), "--leave-out When: no column has that name"),
        (("--label-from", "When"), "--label-from When: no column has that name"),
        (("--label-from", "Payment Format"), "is no truth value"),
        (("--label-from", "Account", "--no-label"), "--label-from Account: --no-label says"),
        (("--no-label", "--split", "random"), "--split: there is no label"),
        (("--split", "2022-09-05"), "--split 2022-09-05: is neither random"),
        (("--split", "2022-09-05:2022-09-05"), "must be earlier"),
        (
            ("--as-of", "2022-09-01"),
            "--as-of 2022-09-01: no account has an earlier transfer; the first is of 2022-09-01",
        ),
        (("--as-of", "soon"), "--as-of soon"),
        (("--leave-out", "Timestamp", "--as-of", "2022-09-05"), "--as-of 2022-09-05: no column of times is known"),
        (("--leave-out", "Timestamp", "--split", "2022-09-05:2022-09-06"), "--split DATE:DATE: no column of times"),
        (
            ("--category", "format=Wire"),
            "--category format: the transfers have no such column of few values; there are",
        ),
        (("--category", "Wire"), "--category Wire: is not NAME=VALUE"),
        (("--time", "Amount Paid"), "is no date"),
        (("--amount", "Payment Format"), "is not a number"),
    ],
)
def test_what_cannot_be_is_refused_with_one_error(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    file = written(drawn(), tmp_path / "t.csv")
    usual: dict[str, str | Path] = {"--holder": "010", "--out": tmp_path / "n.csv"}
    usual = {name: value for name, value in usual.items() if name not in options}
    words = [word for pair in usual.items() for word in pair]
    assert why in one_error(veilgraph("data", "accounts", file, *words, *options))
    assert not (tmp_path / "n.csv").exists()


def test_files_that_are_not_alike_are_refused(tmp_path: Path) -> None:
    one, other = plain(tmp_path / "a.csv"), tmp_path / "b.csv"
    write(other, {name: values * 4 for name, values in PLAIN.items() if name != "amount"})
    base = ("data", "accounts", one, other, "--holder", "N", "--out", tmp_path / "n.csv")
    assert f"{other}: has no amounts as {one} has" in one_error(veilgraph(*base))
    assert veilgraph("data", "accounts", one, one, "--holder", "N", "--out", tmp_path / "n.csv").exit_code == 0
    assert "exists" in one_error(veilgraph("data", "accounts", one, "--holder", "N", "--out", tmp_path / "n.csv"))
