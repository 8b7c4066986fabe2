"""The history of benchmarks, and the page's section of goals."""

from pathlib import Path

import pytest

from benchmarks import goals


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "speed.json"
    monkeypatch.setattr(goals, "HISTORY", path)
    monkeypatch.setattr(goals, "PICTURE", tmp_path / "speed.svg")
    return path


def test_the_page_has_the_newest_figure_of_each_processor(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, value in (("slow", 9.0), ("slow", 8.0), ("fast", 2.0)):
        monkeypatch.setattr(goals, "processor", lambda kind=kind: kind)
        goals.keep("digits", value, 1.5)
    rows = [line for line in goals.section(goals.history()) if line.startswith("| digits")]
    assert [row.split(" | ")[1:4] for row in rows] == [["3 s", "2 s", "1.5 s"], ["3 s", "8 s", "1.5 s"]]


def test_what_has_no_goal_is_not_kept(history: Path) -> None:
    goals.keep("sealed 10", 1.0)
    assert not history.exists()


def test_writing_replaces_the_section_alone(history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n## Goals\n\na stale row\n\n## A training step\n\nkept\n", encoding="utf-8")
    monkeypatch.setattr(goals, "find_page", lambda name: page)
    goals.keep("digits", 4.0)
    for _ in range(2):
        goals.write()
        text = page.read_text(encoding="utf-8")
        assert text.startswith("# Page\n\n## Goals\n\nOn ")
        assert text.endswith("\n\n## A training step\n\nkept\n")
        assert "stale" not in text
        assert "| 4 s |" in text
