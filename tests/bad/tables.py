"""Tables of which something is wrong, in both formats, read by ``data check``, ``train`` and ``data align``."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tests.bad.case import Arguments, Case, Material, copied

Spoil = Callable[[Path], object]


def _lines(change: Callable[[list[str]], list[str]]) -> Spoil:
    def spoil(file: Path) -> None:
        file.write_text("\n".join(change(file.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")

    return spoil


def _cell(row: int, column: int, value: str) -> Spoil:
    """Another value in a row (the header is 0); the tables have no commas in their values."""

    def change(lines: list[str]) -> list[str]:
        cells = lines[row].split(",")
        cells[column] = value
        lines[row] = ",".join(cells)
        return lines

    return _lines(change)


def _bytes(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda file: file.write_bytes(change(file.read_bytes()))


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


ANY: Final[dict[str, Spoil]] = {
    "missing": Path.unlink,
    "a folder": _folder,
    "a link to itself": _loop,
    "empty": _bytes(lambda content: b""),
    "binary": _bytes(lambda content: bytes(range(256)) * 40),
    "NUL bytes": _bytes(lambda content: content[:300] + b"\x00" * 50 + content[300:]),
    "only NUL bytes": _bytes(lambda content: b"\x00" * len(content)),
    "a web page": _bytes(lambda content: b"<!doctype html><html><body>Please log in</body></html>"),
}
"""Of tables in any format."""

CSV: Final[dict[str, Spoil]] = {
    **ANY,
    "the header alone": _lines(lambda lines: lines[:1]),
    "no header": _lines(lambda lines: lines[1:]),
    "not UTF-8": _bytes(lambda content: content.replace(b"C0000", b"C\xe4\xf6", 3)),
    "an open quote": _lines(lambda lines: [*lines, '"C1']),
    "a short row": _lines(lambda lines: [*lines[:7], lines[7].rpartition(",")[0], *lines[8:]]),
    "a long row": _lines(lambda lines: [*lines[:7], lines[7] + ",1", *lines[8:]]),
    "a column twice": _lines(lambda lines: [lines[0].replace(lines[0].split(",")[1], lines[0].split(",")[0])]),
    "a column renamed": _lines(lambda lines: ['"other",' + lines[0].partition(",")[2], *lines[1:]]),
    "gzip": _bytes(lambda content: b"\x1f\x8b\x08\x00" + content[:100]),
}
NODES: Final[dict[str, Spoil]] = {
    "the same id twice": _lines(lambda lines: [*lines, lines[3]]),
    "an empty id": _cell(4, 0, ""),
    "an id of spaces": _cell(4, 0, '"   "'),
    "text for a number": _cell(4, 1, "abc"),
    "nan": _cell(4, 1, "nan"),
    "inf": _cell(4, 1, "inf"),
    "-inf": _cell(4, 2, "-inf"),
    "1e999": _cell(4, 1, "1e999"),
    "1e300": _cell(4, 1, "1e300"),
    "1e39, beyond float32": _cell(4, 1, "1e39"),
    "a missing number": _cell(4, 1, ""),
    "a decimal comma": _cell(4, 1, '"1,5"'),
    "an unknown class": _cell(4, -2, '"9"'),
    "a class with a space": _cell(4, -2, '"1 "'),
    "an unknown split": _cell(4, -1, '"dev"'),
    "no training row": _lines(lambda lines: [line.replace('"train"', '"test"') for line in lines]),
    "one row": _lines(lambda lines: lines[:2]),
}
EDGES: Final[dict[str, Spoil]] = {
    "an unknown source": _cell(2, 0, '"nobody"'),
    "an unknown target": _cell(2, 1, '"nobody"'),
    "an empty source": _cell(2, 0, ""),
    "an id with a space": _cell(2, 1, '" C000001"'),
}
WEIGHTS: Final = {"negative": "-1", "nan": "nan", "inf": "inf", "text": "much", "missing": "", "huge": "1e300"}


def _weighted(value: str) -> Spoil:
    """A column of weights, one of them wrong, and a party file that asks for it."""

    def spoil(file: Path) -> None:
        head, *rows = file.read_text(encoding="utf-8").splitlines()
        rows = [f"{row},{value if number == 2 else 1}" for number, row in enumerate(rows)]
        file.write_text("\n".join([head + ',"weight"', *rows]) + "\n", encoding="utf-8")
        party = file.with_name("party.yaml")
        text = party.read_text(encoding="utf-8")
        party.write_text(text.replace("  target: target\n", "  target: target\n  weight: weight\n"), encoding="utf-8")

    return spoil


def _retyped(change: Callable[[pa.Table], pa.Table]) -> Spoil:
    return lambda file: pa.parquet.write_table(change(pa.parquet.read_table(file)), file)


def _with(column: int, values: Callable[[pa.Array], Any]) -> Spoil:
    def change(table: pa.Table) -> pa.Table:
        found = values(table.column(column).combine_chunks())
        return table.set_column(column % table.num_columns, table.column_names[column], found)

    return _retyped(change)


def _put(row: int, value: object) -> Callable[[pa.Array], pa.Array]:
    return lambda found: pa.array([*found.to_pylist()[:row], value, *found.to_pylist()[row + 1 :]])


PARQUET: Final[dict[str, Spoil]] = {
    **ANY,
    "truncated": _bytes(lambda content: content[: len(content) // 2]),
    "without its end": _bytes(lambda content: content[:-20]),
    "its end alone": _bytes(lambda content: content[-200:]),
    "damaged in the middle": _bytes(lambda content: content[:400] + b"\xff" * 400 + content[800:]),
    "damaged metadata": _bytes(lambda content: content[:-300] + b"\xff" * 200 + content[-100:]),
    "no row": _retyped(lambda table: table.slice(0, 0)),
    "no column": _retyped(lambda table: table.select([])),
    "without its first column": _retyped(lambda table: table.drop_columns(table.column_names[:1])),
    "lists for ids": _with(0, lambda found: pa.array([[1]] * len(found))),
    "numbers with a fraction for ids": _with(0, lambda found: pa.array([0.5] * len(found))),
    "binary ids": _with(0, lambda found: pa.array([b"\xff\xfe"] * len(found))),
    "null ids": _with(0, lambda found: pa.array([None] * len(found), pa.string())),
    "CSV under that name": lambda file: pa.csv.write_csv(pa.parquet.read_table(file), file),
}
PARQUET_NODES: Final[dict[str, Spoil]] = {
    "a null feature": _with(1, _put(4, None)),
    "nan": _with(1, _put(4, float("nan"))),
    "inf": _with(1, _put(4, float("inf"))),
    "1e300": _with(1, _put(4, 1e300)),
    "words for features": _with(1, lambda found: pa.array(["word"] * len(found))),
    "lists for features": _with(1, lambda found: pa.array([[0.5]] * len(found))),
    "structs for features": _with(1, lambda found: pa.array([{"a": 1.0}] * len(found))),
    "times for features": _with(1, lambda found: pa.array([0] * len(found), pa.timestamp("s"))),
    "null labels": _with(-2, lambda found: pa.array([None] * len(found), pa.string())),
    "numbers for labels": _with(-2, lambda found: pa.array([7.5] * len(found))),
}


RIGHT: Final = {("edges", "the header alone"), ("edges", "no row")}
"""A holder may have no edge."""


def _all() -> Iterator[tuple[str, str, str, Spoil]]:
    """(format, file, name, what is done to it)."""
    for table, own in (("nodes", NODES), ("edges", EDGES)):
        yield from (("csv", table, name, spoil) for name, spoil in {**CSV, **own}.items() if (table, name) not in RIGHT)
    yield from (("csv", "edges", f"{name} weight", _weighted(value)) for name, value in WEIGHTS.items())
    for table, of_parquet in (("nodes", PARQUET_NODES), ("edges", dict[str, Spoil]())):
        yield from (
            ("parquet", table, name, spoil)
            for name, spoil in {**PARQUET, **of_parquet}.items()
            if (table, name) not in RIGHT
        )


FINE: Final = {"csv nodes: one row", "csv nodes: no training row", "csv nodes: a class with a space"}
"""What one organisation's check does not judge, or what is right in a table: a job is what refuses it."""


def table_cases(material: Material) -> Iterator[Case]:
    """Each fault by the organisation's own check, and by a training or an alignment over both tables."""
    for number, (form, table, name, spoil) in enumerate(_all()):
        of = f"{form} {table}: {name}"
        together = ("train",) if number % 3 else ("data", "align")

        def spoiled(folder: Path, form: str = form, table: str = table, spoil: Spoil = spoil) -> Path:
            tables = copied(material.tables if form == "csv" else material.parquet, folder / "tables")
            job = tables / "job.yaml"
            parties = r"(\w+): \S*/(\w+/party\.yaml)"
            job.write_text(re.sub(parties, rf"\1: {tables}/\2", job.read_text(encoding="utf-8")), encoding="utf-8")
            spoil(tables / "A" / f"{table}.{form}")
            return tables

        says = "tables/A/"

        def check(folder: Path, spoiled: Callable[[Path], Path] = spoiled) -> Arguments:
            return ["data", "check", spoiled(folder) / "A" / "party.yaml"]

        def train(
            folder: Path, spoiled: Callable[[Path], Path] = spoiled, words: tuple[str, ...] = together
        ) -> Arguments:
            return [*words, spoiled(folder) / "job.yaml", "--out", folder / "out", "--set", "train.epochs=1"]

        if of not in FINE:
            yield Case(f"data check, {of}", check, says=says)
        yield Case(f"{' '.join(together)}, {of}", train, "out", says="" if of in FINE else says, changes="out")
