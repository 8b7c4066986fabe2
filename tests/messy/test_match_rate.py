"""Ids that differ in how they are written: folded alike where they can be, and else each holder is told."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.tables.writing import party, write
from veilgraph.tables.file_settings import IdSettings
from veilgraph.tables.matching import match_rate
from veilgraph.tables.nodes import read_nodes


def ids_of(folder, ids, **spelling):
    write(folder / "nodes.csv", {"id": ids, "x": [1.5] * len(ids)})
    table: pa.StringArray = read_nodes(party(ids=spelling), folder).ids
    return table.to_pylist()


def test_ids_that_look_the_same_are_the_same_where_case_does_not_count(tmp_path):
    one = ["Straße 1", "İzmir", "CAFE\u0301", "ΣΊΣΥΦΟΣ", "MÜLLER "]
    other = ["STRASSE 1", "i\u0307zmir", "café", "σίσυφος", "müller"]
    found = [ids_of(tmp_path, each, strip=True, lower=True) for each in (one, other)]
    assert found[0] == found[1] == ["strasse 1", "i\u0307zmir", "café", "σίσυφοσ", "müller"]


def test_as_written_a_letter_of_two_code_points_is_one(tmp_path):
    assert ids_of(tmp_path, ["CAFE\u0301", "Straße"]) == ["CAFÉ", "Straße"]


@pytest.mark.parametrize(
    ("ids", "hint"),
    [
        (["7", "12", "300"], "these have no leading zeros"),
        (["007", "012", "300"], "these have leading zeros"),
        (["KD-1", "KD-2", "KD-30"], "these all begin with 'KD-'"),
        (["a1", "b2 ", "c3"], "spaces at an end"),
        (["A1", "b2", "c3"], "some have capitals"),
        (["ä1", "b2", "c3"], "letters beyond ASCII"),
    ],
)
def test_few_common_ids_are_a_warning_with_what_may_differ(ids, hint):
    said, is_warning = match_rate(1, ids, IdSettings())
    assert is_warning
    assert said.startswith("1 of 3 own ids (33%) are common to all holders")
    assert hint in said
    others = {"no leading", "have leading", "all begin", "spaces", "capitals", "beyond ASCII"}
    assert sum(each in said for each in others) == (2 if hint.startswith("these all") else 1)


@pytest.mark.parametrize(("common", "warns"), [(80, False), (79, True)])
def test_the_warning_begins_below_four_fifths(common, warns):
    assert match_rate(common, [f"{each}x" for each in range(100)], IdSettings())[1] is warns
