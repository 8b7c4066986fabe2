import importlib.metadata
import shutil
import sys
from pathlib import Path

import pytest

from tests.toys.installed import install
from veilgraph.core import settings as registry
from veilgraph.core.settings import Registry

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


def test_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def look(*, group: str) -> importlib.metadata.EntryPoints:
        looks.append(group)
        return importlib.metadata.entry_points(group=group)

    monkeypatch.setattr(registry, "entry_points", look)
    parts = Registry[object](f"{GROUP}.once", {}, "builtins:object")
    assert [list(parts), list(parts), "a" in parts, len(parts)] == [[], [], False, 0]
    assert looks == [f"{GROUP}.once"]
