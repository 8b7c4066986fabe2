"""docs/claims.md is whole: every promise of privacy has a mark, every mark a row, every row tests that exist."""

import re
from collections import Counter
from pathlib import Path

import pytest

import tests.docs.claims
from docs.tables import TABLES
from tests.docs.claims import (
    CLAIMS,
    FIGURES,
    MARK,
    NO_PROMISES,
    PAGES,
    REASONS,
    ROOT,
    TELLS,
    claims,
    file_of,
    page_sentences,
    plain,
    runs,
    sentences,
    tells,
)
from veilgraph.audit.attack import ATTACKS
from veilgraph.protocol.job import UNLIMITED

BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@BY_PAGE
def test_every_mark_has_a_row_and_every_row_a_mark_in_the_order_of_the_page(page: Path) -> None:
    marks = MARK.findall(page.read_text(encoding="utf-8"))
    assert marks == [claim.slug for claim in claims() if claim.page == name(page)]


def test_rows_are_of_pages_and_their_names_are_unique() -> None:
    assert {claim.page for claim in claims()} <= {name(page) for page in PAGES}
    counted = Counter(claim.slug for claim in claims())
    assert [slug for slug, times in counted.items() if times > 1] == []
    rows = [line for line in CLAIMS.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(claims()) > 200


def test_no_other_page_and_no_misspelt_comment_has_a_mark() -> None:
    for page in [*PAGES, *(ROOT / "docs" / figures for figures in FIGURES)]:
        text = page.read_text(encoding="utf-8")
        found = len(MARK.findall(text)) if page in PAGES else 0
        tables = sum(1 + text.count(f"<!-- table: {name} -->") for name in TABLES.get(page.name, ()))
        assert len(re.findall("<!--", text)) == found + tables, page.name


@BY_PAGE
def test_a_mark_stands_behind_words_and_starts_no_block(page: Path) -> None:
    """At the beginning of a line GitHub would take it, and the line, for HTML."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(^|[|])[ \t]*<!-- claim", text, flags=re.MULTILINE)
    assert sorted(MARK.findall(text)) == sorted(slug for each in page_sentences(page) for slug in MARK.findall(each))


def test_a_rows_words_are_in_the_marked_sentence() -> None:
    marked = {
        (name(page), slug): plain(sentence)
        for page in PAGES
        for sentence in page_sentences(page)
        for slug in MARK.findall(sentence)
    }
    for claim in claims():
        pieces = [plain(piece) for piece in re.sub(r"\[[^]]*\] ", "", claim.words).split(" … ")]
        assert all(pieces), claim
        pattern = ".*".join(re.escape(piece) for piece in pieces)
        assert re.search(pattern, marked[claim.page, claim.slug]), claim


def test_every_row_names_tests_that_exist_and_run() -> None:
    for claim in claims():
        assert claim.tests, claim
        assert [test for test in claim.tests if not runs(test)] == [], claim.slug


def test_a_test_that_is_not_there_or_never_runs_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    mark = "@pytest.mark.{}\ndef test_{}(): assert True\n"
    some = "".join(mark.format(*each) for each in (("skip", "a"), ("skip('x')", "b"), ("skipif(WINDOWS)", "c")))
    inside = "def test_d(): pytest.skip('x')\nclass Group:\n    def test_e(self): assert True\ndef f(): assert True\n"
    (tmp_path / "tests" / "one.py").write_text(some + inside, encoding="utf-8")
    (tmp_path / "tests" / "none.py").write_text(f"pytestmark = pytest.mark.skip\n{some}", encoding="utf-8")
    monkeypatch.setattr(tests.docs.claims, "ROOT", tmp_path)
    names = [
        f"{file}.py::{name}" for file in ("one", "none", "gone") for name in ("f", *map("test_{}".format, "abcde"))
    ]
    assert [each for each in names if runs(each)] == ["one.py::test_c"]


def test_every_row_names_an_attack_or_why_none_can_tell() -> None:
    for claim in claims():
        assert claim.attacks in [(reason,) for reason in REASONS] or set(claim.attacks) <= {*ATTACKS, *UNLIMITED}, claim
    head = CLAIMS.read_text(encoding="utf-8").split("\n## ")[0]
    assert [reason for reason in REASONS if f"*{reason}*" not in head] == []


@BY_PAGE
def test_what_sounds_like_a_promise_has_a_mark(page: Path) -> None:
    assert [plain(each) for each in page_sentences(page) if tells(each) and not MARK.search(each)] == []


def test_what_is_said_to_be_no_promise_is_there_and_would_be_asked_for() -> None:
    """Words that have gone, or that have no tell, need no leave."""
    unmarked = [plain(each) for page in PAGES for each in page_sentences(page) if not MARK.search(each)]
    for words, reason in NO_PROMISES.items():
        assert reason
        assert len([each for each in unmarked if words in each and TELLS.search(each)]) == 1, words
    assert len(NO_PROMISES) <= 15, "choose other tells"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The server\nlearns nothing of it. Others do.", ["The server learns nothing of it.", "Others do."]),
        ("- **One.** Two <!-- claim: a -->\n- Three. <!-- claim: b --> Four",
         ["**One.**", "Two <!-- claim: a -->", "Three. <!-- claim: b -->", "Four"]),
        ("# Nobody learns\n\nText.\n\n    code that sends nothing\n\n```\nnobody learns\n```\n", ["Text."]),
        ("10. A list\n    that goes on.", ["A list that goes on."]),
        ("| who | does not see |\n|---|---|\n| A. B | c <!-- claim: a --> |", ["| A. B | c <!-- claim: a --> |"]),
    ],
)  # fmt: skip
def test_sentences_of_a_page(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_promise_without_a_mark_would_be_found() -> None:
    for text in ("W never leaves\nthe holder.", "The **server learns nothing** of it.", "Its rows stay at home."):
        (sentence,) = sentences(text)
        assert tells(sentence)
    assert not tells("It sends a matrix.")


def test_the_attackers_of_the_threat_model_have_files_of_tests() -> None:
    text = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:tests/)?([\w/]+/)?(test_\w+)(?:\.py)?`", text.split("### Attackers")[1].split("\n## ")[0])
    assert len(named) > 30
    for folder, file in named:
        assert file_of(f"{folder or 'attacks/'}{file}.py").is_file(), file
