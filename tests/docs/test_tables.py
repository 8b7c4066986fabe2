"""The tables of the documentation that follow from the rows of what is sent are those of the rows."""

from pathlib import Path

import pytest

from docs import tables
from veilgraph.link.codec import VERSION
from veilgraph.protocol.agreement import PROTOCOL_VERSION


@pytest.mark.parametrize("page", tables.TABLES)
def test_the_tables_are_as_the_rows_have_them(page: str) -> None:
    assert tables.renewed(page) == (tables.FOLDER / page).read_text(encoding="utf-8"), "make docs"


def test_marks_stay_behind_their_lines_and_all_else_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "threat-model.md"
    whole = (tables.FOLDER / page.name).read_text(encoding="utf-8")
    kept = next(line for line in whole.splitlines() if "<!-- claim: share -->" in line)
    page.write_text(whole.replace("additive shares of h0 (share;", "additive shares of h0 (none;"), encoding="utf-8")
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    assert kept not in page.read_text(encoding="utf-8")
    assert tables.renewed(page.name) == whole


def test_the_protocol_page_is_of_this_protocol() -> None:
    page = (tables.FOLDER / "protocol.md").read_text(encoding="utf-8")
    assert f"protocol version {PROTOCOL_VERSION}, wire version {VERSION}, sealing" in page
