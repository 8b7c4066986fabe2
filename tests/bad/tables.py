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


def _retyped(change: Callable[[pa.Table], pa.Table]) -> Spoil:
    return lambda file: pa.parquet.write_table(change(pa.parquet.read_table(file)), file)


def _with(column: int, values: Callable[[pa.Array], Any]) -> Spoil:
    def change(table: pa.Table) -> pa.Table:
        found = values(table.column(column).combine_chunks())
        return table.set_column(column % table.num_columns, table.column_names[column], found)

    return _retyped(change)


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
RIGHT: Final = {("edges", "the header alone"), ("edges", "no row")}
"""A holder may have no edge."""


def _all() -> Iterator[tuple[str, str, str, Spoil]]:
    """(format, file, name, what is done to it); ``tests/tables/test_refused.py`` has what cells cannot be."""
    for form, faults in (("csv", CSV), ("parquet", PARQUET)):
        for table in ("nodes", "edges"):
            yield from ((form, table, name, spoil) for name, spoil in faults.items() if (table, name) not in RIGHT)


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

        yield Case(f"data check, {of}", check, says=says)
        yield Case(f"{' '.join(together)}, {of}", train, "out", says=says, changes="out")
