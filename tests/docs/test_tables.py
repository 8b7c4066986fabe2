"""The tables of the documentation that follow from the rows of what is sent are those of the rows."""

from pathlib import Path

import pytest

from docs import tables
from docs.pages import find_page
from veilgraph.link.codec import VERSION
from veilgraph.protocol.agreement import PROTOCOL_VERSION


@pytest.mark.parametrize("page", tables.TABLES)
def test_the_tables_are_as_the_rows_have_them(page: str) -> None:
    assert tables.renewed(page) == find_page(page).read_text(encoding="utf-8"), "make docs"


def test_what_stands_between_the_comments_is_written_anew_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "threat-model.md"
    whole = find_page(page.name).read_text(encoding="utf-8")
    page.write_text(whole.replace("additive shares of h0 (share;", "additive shares of h0 (none;"), encoding="utf-8")
    monkeypatch.setattr(tables, "find_page", lambda name: tmp_path / name)
    assert page.read_text(encoding="utf-8") != whole
    assert tables.renewed(page.name) == whole


def test_the_protocol_page_is_of_this_protocol() -> None:
    page = find_page("protocol.md").read_text(encoding="utf-8")
    assert f"protocol version {PROTOCOL_VERSION}, wire version {VERSION}, sealing" in page
