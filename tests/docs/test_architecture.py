"""What the architecture page says is so: the picture, the paths, the walks, and where calls climb."""

import re
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from docs.pages import find_page
from docs.picture import PICTURE, draw, imports, needed, reachable
from tests.docs.walks import SOURCE, Walk, recorded_walks

PAGE = find_page("architecture.md").read_text(encoding="utf-8")
EXTENDING = find_page("extending.md").read_text(encoding="utf-8")
ROOMS = imports()
FLOORS = list(ROOMS)


def rows_of(text: str) -> dict[str, Walk]:
    """Moment → the files of its row."""
    found = re.findall(r"^\|.*?\| ([^|]+) \| `([^`|]+ → [^`|]+)` \|$", text, re.MULTILINE)
    return {moment: tuple(files.split(" → ")) for moment, files in found}


def test_the_picture_is_that_of_the_imports() -> None:
    assert PICTURE.read_text(encoding="utf-8") == draw(), "make docs"


def found(path: str) -> Any:
    """What a path such as ``core.settings.Registry`` in the page is."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"veilgraph.{module}"), name)


def test_the_table_of_seams_is_true() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (class|object) \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 8
    tables = {}
    for seam, is_a, table, groups, suite, toy in rows:
        assert found(seam).__doc__
        for module, name in re.findall(r"`(\w+)\.(\w+)`", suite):
            assert getattr(import_module(f"veilgraph_testing.{module}"), name).__doc__
        assert all((SOURCE.parents[1] / "tests" / "toys" / name).is_file() for name in re.findall(r"`(.*?)`", toy))
        if "`" not in table:
            continue
        registry = tables[seam] = found(table.strip("`"))
        assert groups.partition("`, `")[0].strip("`") == registry.group
        part = next(iter(registry.values()))
        assert isinstance(part, found(seam)) if is_a == "object" else issubclass(part, found(seam))
    assert len({each.group for each in tables.values()}) == len(tables) == 7


def test_the_picture_leaves_out_no_room_and_no_import_that_does_not_follow_from_others() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(ROOMS)
    few = needed(ROOMS)
    assert all(reachable(few, room) == reachable(ROOMS, room) for room in ROOMS)
    assert needed({"a": frozenset("bc"), "b": frozenset("c"), "c": frozenset()})["a"] == {"b"}
    table = re.findall(r"^\| ((?:`\w+/?`(?:, )?)+) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)/`", " ".join(table))) == set(ROOMS)


def test_every_path_leads_somewhere() -> None:
    paths = {
        path.strip()
        for span in re.findall(r"`([^`\n]+)`", PAGE + EXTENDING)
        for path in span.split("→")
        if path.strip().split("/")[0] in ROOMS and "/" in path and "*" not in path
    }
    assert len(paths) > 30
    assert [path for path in sorted(paths) if not _exists(SOURCE / path.removesuffix("/"))] == []


def _exists(path: Path) -> bool:
    return path.exists() or path.with_suffix(".py").is_file()


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[Walk]]:
    with pytest.MonkeyPatch.context() as patch:
        return recorded_walks(tmp_path_factory.mktemp("walks"), patch)


def test_walks_pass_the_files_that_the_page_says(walks: Mapping[str, set[Walk]]) -> None:
    told = rows_of(PAGE)
    assert len(told) >= 12
    start = ("runtime/launch/processes", "runtime/launch/jobs", "runtime/session/party")
    assert {moment: walk for moment, walk in told.items() if (*start, *walk) not in walks[moment]} == {}


def test_no_call_climbs_but_by_the_callbacks_that_the_page_names(walks: Mapping[str, set[Walk]]) -> None:
    climbs = {
        (caller, called)
        for walk in set().union(*walks.values())
        for caller, called in pairwise(walk)
        if FLOORS.index(called.split("/")[0]) < FLOORS.index(caller.split("/")[0])
    }
    named = re.findall(r"^- `([\w/]+) → ([\w/]+)`: ", PAGE, re.MULTILINE)
    assert climbs == set(named)
