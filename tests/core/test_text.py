"""Cells that a spreadsheet would run, and sizes in words."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilgraph.core.text import csv_cell, human_bytes, text_of_cell

RUN = re.compile(r"[\s\x00-\x1f\x7f\ufeff]*[=+\-@＝＋－＠]|[\t\r\n]")
ATTACKS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-1+1",
    '@SUM(1+1)*HYPERLINK("https://e.org")',
    "\t=1",
    "\rx",
    " =1",
    "\ufeff=1",
    "＝1",
    "x;=1",
    "x,-1",
    "x|@y",
    "'=1",
    "''-1",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_no_separator_leaves_a_cell_that_runs(text: str) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow([csv_cell(text), "0.5"])
    for separator in ",;|\t":
        for cell in line.getvalue().split(separator):
            assert not RUN.match(cell.strip('"')), (separator, cell)
    assert text_of_cell(csv_cell(text)) == text


@pytest.mark.parametrize("text", ["", "C-12", "007", "O'Brien", "'quoted'", "a b", "fraud", "3.5", "x'=1"])
def test_other_text_is_as_it_was(text: str) -> None:
    assert csv_cell(text) == text
    assert text_of_cell(text) == text


@given(st.text(st.sampled_from("=+-@'\t\r\n,;| a\ufeff")) | st.text())
def test_every_text_is_read_back(text: str) -> None:
    assert text_of_cell(csv_cell(text)) == text
    assert not RUN.match(csv_cell(text))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (999, "999 B"),
        (1_500_000, "1.5 MB"),
        (999_400_000, "999 MB"),
        (999_960_000, "1.0 GB"),
        (1_953_200_000, "2.0 GB"),
    ],
)
def test_sizes_from_1000_of_a_unit_on_are_of_the_next(count: int, said: str) -> None:
    assert human_bytes(count) == said
