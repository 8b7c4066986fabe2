import shutil
import sys
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path

import pytest

from tests.toys.installed import install
from veilgraph.core.settings import Registry, installed

GROUP = "veilgraph.toys_of_this_test"


def test_a_package_is_found_when_it_is_installed_and_no_longer_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though packages are looked through once."""
    parts = Registry[object](GROUP, {"ours": "math:pi"}, "builtins:object")
    assert list(parts) == ["ours"]
    monkeypatch.syspath_prepend(tmp_path)
    assert list(parts) == ["ours"]
    install(tmp_path, "link", {GROUP: {"a": "x", "ours": "y"}})
    assert list(parts) == ["ours", "a"]
    install(tmp_path, "attack", {GROUP: {"b": "x"}})
    assert "b" in parts
    shutil.rmtree(tmp_path / "toy_link-1.0.dist-info")
    assert list(parts) == ["ours", "b"]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    assert "b" not in parts


def test_packages_are_looked_through_once_for_all_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count(1)
    monkeypatch.setattr("veilgraph.core.settings.entry_points", lambda: (next(looks), entry_points())[1])
    install(
        tmp_path, "link", {GROUP: {"b": "x", "a": "y"}, f"{GROUP}.too": {"c": "z"}, "others.of_this_test": {"d": "x"}}
    )
    monkeypatch.syspath_prepend(tmp_path)
    groups = (GROUP, f"{GROUP}.too", "others.of_this_test", "veilgraph.none")
    assert [[each.name for each in installed(group)] for group in groups] == [["a", "b"], ["c"], [], []]
    assert next(looks) == 2, "one look was before"
