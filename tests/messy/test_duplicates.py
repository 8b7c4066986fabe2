"""Several rows of one id: refused with some of the ids and the way out, or one of them taken as the party file says."""

from pathlib import Path
from typing import Any

import pytest

from tests.tables.writing import party, write
from veilgraph.core.errors import DataError
from veilgraph.report.tables import party_tables
from veilgraph.tables.describe import describe_party
from veilgraph.tables.nodes import NodeTable, read_nodes

LABEL = {"column": "y", "classes": ["no", "yes"], "file": "labels.csv"}
SPLIT = {"train": 0.5, "val": 0.25, "test": 0.25}
IDS = ["a", "b", "A", "c", "b", "d", "B "]


def read(folder: Path, **more: Any) -> NodeTable:
    write(folder / "nodes.csv", {"id": IDS, "x": [1.0, 2, 3, 4, 5, 6, 7]})
    write(folder / "usage.csv", {"id": ["d", "c", "x", "d", "d"], "calls": [1.0, 2, 3, 4, 5]})
    write(folder / "labels.csv", {"id": ["a", "c", "a", "d", "b"], "y": ["no", "yes", "yes", "no", "no"]})
    joined = {"join": [{"file": "usage.csv"}], "ids": {"strip": "true", "lower": "true"}}
    settings = party([{"columns": ["x", "calls"], "missing": "zero"}], LABEL, SPLIT, **joined, **more)
    described = describe_party(settings, folder)
    assert [each.repeated for each in described.files] == [3, 2, 1]
    assert [each.unknown for each in described.files] == [None, 1, 0]
    assert "repeated ids" in {str(column.header) for column in party_tables(described)[1].columns}
    return read_nodes(settings, folder)


@pytest.mark.parametrize(
    ("which", "named", "x", "calls", "labels"),
    [
        ("first", ["a", "b", "c", "d"], [1, 2, 4, 6], [None, None, 2, 1], [0, 0, 1, 0]),
        ("last", ["A", "c", "d", "B "], [3, 4, 6, 7], [None, 2, 5, None], [1, 1, 0, 0]),
    ],
)
def test_one_row_of_an_id_counts_in_every_file(
    tmp_path: Path, which: str, named: list[str], x: list[float], calls: list[float | None], labels: list[int]
) -> None:
    found = read(tmp_path, duplicates=which)
    assert found.labels is not None
    assert found.written.to_pylist() == named
    assert found.ids.to_pylist() == [each.strip().lower() for each in named]
    assert found.values[0].tolist() == x
    assert [None if each != each else each for each in found.values[1].tolist()] == calls
    assert found.labels.tolist() == labels


def test_the_error_counts_such_ids_and_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        read(tmp_path)
    said = str(error.value)
    assert "'A' is as 'a' is, the id of row 1 (2 ids have several rows: 'a', 'b')" in said
    assert "set nodes.duplicates to first or last" in said


def test_a_row_more_of_a_joined_file_is_refused_too(tmp_path: Path) -> None:
    write(tmp_path / "nodes.csv", {"id": ["a", "b"], "x": [1.0, 2]})
    write(tmp_path / "usage.csv", {"id": ["x", "a", "b", "a"], "calls": [0.0, 1, 2, 3]})
    with pytest.raises(DataError) as error:
        read_nodes(party(["x", "calls"], join=[{"file": "usage.csv"}]), tmp_path)
    assert "row 4: 'a' is also the id of row 2" in str(error.value)
