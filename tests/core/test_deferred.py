"""Imports that wait: nothing is loaded before a name is used, and other imports go on as ever."""

import builtins
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from veilgraph.core.deferred import deferred, import_quickly

MODULE = """
from late import nothing_yet
VALUE = 3
class Point:
    def __init__(self, x):
        self.x = x
def double(number):
    return 2 * number
"""


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``late`` whose module ``of`` cannot be loaded before ``late`` has ``nothing_yet``."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "__init__.py").write_text("")
    (tmp_path / "late" / "of.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("late", "late.of"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path / "late" / "__init__.py"


def test_a_module_is_loaded_when_a_name_is_used_and_again_if_that_failed(late: Path) -> None:
    with deferred():
        from late import of  # type: ignore[import-not-found]  # noqa: PLC0415
        from late.of import Point, double  # type: ignore[import-not-found]  # noqa: PLC0415
    assert "late" not in sys.modules
    with pytest.raises(ImportError):
        double(2)
    late.write_text("nothing_yet = None\n")
    for name in ("late", "late.of"):
        sys.modules.pop(name, None)
    sys.path_importer_cache.clear()
    assert (of.VALUE, double(2), Point(1).x) == (3, 4, 1)
    assert [isinstance(each, Point) for each in (Point(1), 3)] == [True, False]


def test_a_module_under_another_name_is_loaded_when_it_is_asked_for_something(late: Path) -> None:
    late.write_text("nothing_yet = 7\n")
    with deferred():
        import late as other  # noqa: PLC0415
    assert "late" not in sys.modules
    with pytest.raises(TypeError):
        bool(other)
    assert other.nothing_yet == 7
    with pytest.raises(AttributeError):
        other.nothing_at_all  # noqa: B018


def test_other_threads_and_later_imports_are_as_ever(late: Path) -> None:
    usual, found = builtins.__import__, []
    with deferred():
        thread = Thread(target=lambda: found.append(__import__("json").dumps(1)))
        thread.start()
        thread.join()
    assert found == ["1"]
    assert builtins.__import__ is usual
    with pytest.raises(KeyError), deferred():
        raise KeyError
    assert builtins.__import__ is usual


def test_a_constant_is_not_taken_for_what_stands_in_for_it(late: Path) -> None:
    with deferred():
        from late.of import VALUE  # noqa: PLC0415
    for use in (str, bool, iter, lambda value: value == 3):
        with pytest.raises(TypeError):
            use(VALUE)


@pytest.fixture
def collector() -> Iterator[None]:
    """A collector that collects and has nothing frozen, whatever it had before."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.enable()
    if frozen:
        gc.freeze()


@pytest.mark.usefixtures("collector")
def test_no_garbage_is_collected_while_a_module_is_imported(late: Path) -> None:
    late.write_text("import gc\nnothing_yet = None\ncollected = gc.isenabled()\n")
    module = import_quickly("late")
    assert (module.collected, gc.isenabled(), gc.get_freeze_count()) == (False, True, 0)
    assert any(each is vars(module) for each in gc.get_objects(generation=2))
    gc.disable()
    import_quickly("late.of")
    assert not gc.isenabled()


@pytest.mark.usefixtures("collector")
def test_a_failed_import_leaves_the_collector_as_it_was_and_a_frozen_object_frozen(late: Path) -> None:
    gc.freeze()
    count = gc.get_freeze_count()
    with pytest.raises(ImportError):
        import_quickly("late.of")
    assert gc.isenabled()
    assert gc.get_freeze_count() > count / 2


@pytest.mark.usefixtures("collector")
def test_a_module_that_is_there_costs_the_collector_nothing(late: Path) -> None:
    late.write_text("nothing_yet = None\n")
    import_quickly("late")
    young: list[object] = [[]]
    import_quickly("late")
    assert any(each is young for each in gc.get_objects(generation=0))
