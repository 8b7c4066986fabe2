"""Every promise of privacy has a row in docs/explanation/claims.md, every row one sentence and tests that exist."""

import re
from collections import Counter
from pathlib import Path

import pytest

import tests.docs.claims
from docs.pages import find_page
from docs.prose import plain, sentences
from docs.tables import TABLES
from tests.docs.claims import (
    CLAIMS,
    LEAST_WORDS,
    NO_PROMISES,
    PAGES,
    REASONS,
    ROOT,
    TELLS,
    Claim,
    claims,
    file_of,
    page_sentences,
    runs,
    tells,
)
from veilgraph.audit.attack import ATTACKS
from veilgraph.protocol.job import UNLIMITED

BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_a_rows_words_are_in_one_sentence_of_its_page() -> None:
    found = {claim: claim.sentences() for claim in claims()}
    assert {claim.words: each for claim, each in found.items() if len(each) != 1} == {}


def test_rows_are_of_pages_and_say_enough() -> None:
    assert {claim.page for claim in claims()} <= {name(page) for page in PAGES}
    counted = Counter((claim.page, claim.words) for claim in claims())
    assert [words for words, times in counted.items() if times > 1] == []
    assert [claim.words for claim in claims() if len(" ".join(claim.pieces).split()) < LEAST_WORDS] == []
    rows = [line for line in CLAIMS.read_text(encoding="utf-8").splitlines() if re.match(r"\| [^|]* \| `", line)]
    assert len(rows) == len(claims()) > 200


def test_pages_have_no_comments_but_those_around_tables_that_are_generated() -> None:
    for page in [CLAIMS, *PAGES]:
        text = page.read_text(encoding="utf-8")
        tables = sum(1 + text.count(f"<!-- table: {name} -->") for name in TABLES.get(page.name, ()))
        assert text.count("<!--") == tables, page.name


def test_every_row_names_tests_that_exist_and_run() -> None:
    for claim in claims():
        assert claim.tests, claim
        assert [test for test in claim.tests if not runs(test)] == [], claim.words


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
def test_what_sounds_like_a_promise_has_a_row(page: Path) -> None:
    claimed = {sentence for claim in claims() if claim.page == name(page) for sentence in claim.sentences()}
    assert [each for each in page_sentences(page) if tells(each) and each not in claimed] == []


def test_what_is_said_to_be_no_promise_is_there_and_would_be_asked_for() -> None:
    """Words that have gone, or that have no tell, need no leave."""
    claimed = {sentence for claim in claims() for sentence in claim.sentences()}
    others = [each for page in PAGES for each in page_sentences(page) if each not in claimed]
    for words, reason in NO_PROMISES.items():
        assert reason
        assert len([each for each in others if words in each and TELLS.search(each)]) == 1, words
    assert len(NO_PROMISES) <= 15, "choose other tells"


def test_a_promise_without_a_row_would_be_found() -> None:
    for text in ("W never leaves\nthe holder.", "The **server learns nothing** of it.", "Its rows stay at home."):
        (sentence,) = map(plain, sentences(text))
        assert tells(sentence)
    assert not tells("It sends a matrix.")


def test_words_are_found_across_what_they_leave_out_and_are_missed_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.md").write_text(
        "A *holder* sends `W`,\nas shares. A holder sends more.\n\n| server | nothing of W |\n", encoding="utf-8"
    )
    monkeypatch.setattr(tests.docs.claims, "ROOT", tmp_path)
    found = {
        words: len(Claim("page.md", words, (), ()).sentences())
        for words in ("holder sends … as shares", "A holder sends", "[sees] nothing of W", "nothing of h0")
    }
    assert list(found.values()) == [1, 2, 1, 0]


def test_the_attackers_of_the_threat_model_have_files_of_tests() -> None:
    text = find_page("threat-model.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:tests/)?([\w/]+/)?(test_\w+)(?:\.py)?`", text.split("### Attackers")[1].split("\n## ")[0])
    assert len(named) > 30
    for folder, file in named:
        assert file_of(f"{folder or 'attacks/'}{file}.py").is_file(), file
