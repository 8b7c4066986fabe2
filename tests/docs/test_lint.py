"""The text of the documentation keeps the rules of docs/lint.py, and the rules find what breaks them."""

from pathlib import Path

import pytest

from docs import lint


@pytest.mark.parametrize("page", lint.PAGES, ids=lambda page: page.name)
def test_a_page_keeps_the_rules(page: Path) -> None:
    assert list(lint.faults(page)) == []


def test_all_pages_together_are_short() -> None:
    assert lint.total() <= lint.MOST_WORDS


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("For administrators of a site.\n\n" + "word " * 35 + "\n", []),
        ("# A page\n\nThis page is for administrators.\n\n| a table |\n|---|\n| " + "word " * 50 + "|\n", []),
        ("For anyone.\n\n<!-- table: a -->\n- " + "word " * 50 + "\n<!-- end of the table -->\n", []),
        ("A page.\n\nFor administrators.\n", ["does not name the reader"]),
        ("For administrators.\n\nIt has " + "*many* " * 34 + "words.\n", ["37 words, and 35 at most"]),
        ("For administrators.\n\n- Parties are\n  honest-but-curious.\n", ["should be 'semi-honest'"]),
    ],
)
def test_what_breaks_a_rule_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    faults = list(lint.faults(page))
    assert len(faults) == len(found)
    assert all(part in fault for part, fault in zip(found, faults, strict=True))
