"""The house: nothing outside a part's own package asks for it by name; tests share helpers, not test modules."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.modules import ROOT, all_modules
from veilgraph.nn.combine import COMBINES
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.protocol.paradigm import PARADIGMS

SOURCE = Path(__file__).parents[1] / "src" / "veilgraph"
NAMES = frozenset(PARADIGMS)


PARTS = frozenset((*LOCAL_MODELS.own, *COMBINES.own)) - {"mean", "concat", "gcn"}
"""Names of local models and strategies, less those that name an aggregate or an update too."""


@dataclass(frozen=True)
class Facts:
    """What is asked of a file here, for it is parsed once.

    Attributes:
        compared: line and value of every constant that something is compared with or looked up by.
        imported: module and name of everything that it imports from a module.
        replaced: names that a test replaces, by ``setattr`` or by assigning to what is another's.
        matches: how many errors it knows by their words.
    """

    compared: tuple[tuple[int, object], ...]
    imported: tuple[tuple[str, str], ...]
    replaced: tuple[str, ...]
    matches: int


ASKED = (ast.Attribute, ast.Call, ast.Compare, ast.Import, ast.ImportFrom, ast.MatchValue, ast.keyword)


@cache
def facts(path: Path) -> Facts:
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ASKED)]
    return Facts(
        tuple(each for node in nodes for each in compared(node)),
        tuple(each for node in nodes for each in imports(node)),
        tuple(each for node in nodes for each in replaced(node)),
        sum(isinstance(node, ast.keyword) and node.arg == "match" for node in nodes),
    )


def asks(path: Path, names: frozenset[str] = NAMES) -> list[int]:
    """Lines of a file that compare something with one of some names, or look it up by one."""
    return [line for line, value in facts(path).compared if value in names]


def compared(node: ast.AST) -> Iterator[tuple[int, object]]:
    parts: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
    if isinstance(node, ast.MatchValue):
        parts = [node.value]
    held = [each for part in parts for each in (part.elts if isinstance(part, ast.Tuple | ast.Set) else [part])]
    yield from ((each.lineno, each.value) for each in held if isinstance(each, ast.Constant))


def imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from ((node.module, alias.name) for alias in node.names)
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)


PATCHING = frozenset({"setattr", "delattr", "object", "patch"})


def replaced(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PATCHING:
        yield from (str(each.value) for each in node.args[:2] if isinstance(each, ast.Constant))
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) != "self":
        yield node.attr


def test_nobody_outside_asks_which_paradigm_a_job_is_of() -> None:
    inside = SOURCE / "paradigms"
    files = [path for path in SOURCE.rglob("*.py") if inside not in path.parents]
    found = {f"{path.relative_to(SOURCE)}:{line}" for path in files for line in asks(path)}
    assert found == set()


def test_nobody_asks_which_local_model_or_strategy_a_job_has() -> None:
    """Its class says what holds of it."""
    files = SOURCE.rglob("*.py")
    assert {f"{path.relative_to(SOURCE)}:{line}" for path in files for line in asks(path, PARTS)} == set()


def test_asking_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "room.py"
    path.write_text('if job.paradigm == "vertical" or name in ("horizontal", "x"):\n    pass\n', encoding="utf-8")
    assert asks(path) == [1, 1]
    assert asks(path, frozenset({"x"})) == [1]


def is_of_tests(module: str) -> bool:
    return module.startswith(("tests", "packages"))


def test_no_test_module_is_imported() -> None:
    """What several need is in a plain module beside them, or a fixture of a conftest."""
    found = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in all_modules()
        for module, name in facts(path).imported
        if any(part.startswith("test_") for part in (*module.split(".")[1:], name)) and is_of_tests(module)
    }
    assert found == set()


MATCHED = 150
"""Most errors that tests may know by their words; the others by code, key, value and party (tests/errors.py)."""


def is_private(name: str) -> bool:
    last = name.rsplit(".", 1)[-1]
    return last.startswith("_") and not last.startswith("__")


def test_no_test_replaces_a_private_name_or_imports_one() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in all_modules()
        for name in (
            *facts(path).replaced,
            *(name for module, name in facts(path).imported if module.startswith("veilgraph")),
        )
        if is_private(name)
    }
    assert found == set()


def test_no_private_name_is_imported_across_modules() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {module}.{name}"
        for path in SOURCE.rglob("*.py")
        for module, name in facts(path).imported
        if module.startswith("veilgraph") and is_private(name)
    }
    assert found == set()


def test_replacing_a_private_name_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "test_room.py"
    path.write_text(
        'monkeypatch.setattr(room, "_door", None)\npatch.setattr("veilgraph.room._wall", 1)\nroom._roof = self._roof\n'
        "from veilgraph.room import _floor\n",
        encoding="utf-8",
    )
    assert {name for name in facts(path).replaced if is_private(name)} == {"_door", "veilgraph.room._wall", "_roof"}
    assert [name for _, name in facts(path).imported if is_private(name)] == ["_floor"]


def test_few_errors_are_known_by_their_words() -> None:
    found = sum(facts(path).matches for path in all_modules())
    assert found <= MATCHED


@pytest.mark.cases(3)
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", ["a", "b", "c"])
def test_three_cases_of_a_grid_have_every_value(first: int, second: str, request: pytest.FixtureRequest) -> None:
    """``make test`` plays as many cases as a mark says, and while these last every value of each parameter."""
    played = [
        (each.callspec.params["first"], each.callspec.params["second"])
        for each in request.session.items
        if isinstance(each, pytest.Function) and each.function is request.function
    ]
    assert (first, second) in played
    alone = len(played) == 1  # asked for by its name
    assert alone or [set(values) for values in zip(*played, strict=True)] == [{0, 1, 2}, {"a", "b", "c"}]


def test_stored_and_foreign_json_is_parsed_to_a_bounded_depth() -> None:
    """``json.loads`` ends in a ``RecursionError`` where lists are nested too deep; pydantic's in a ``ValueError``."""
    own = {"core/errors.py", "cli/output.py", "report/noise.py", "runtime/launch/fork_server.py"}  # or caught there
    files = {path for path in SOURCE.rglob("*.py") if "json.load" in path.read_text(encoding="utf-8")}
    assert {str(path.relative_to(SOURCE)) for path in files} == own


def test_every_process_of_ours_leaves_without_its_interpreter() -> None:
    """Which would look through all objects of PyTorch, and may abort beneath a daemon thread."""
    packages = SOURCE.parents[1].glob("packages/*/src/*")
    mains = [
        (path, path.read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')[2])
        for folder in (SOURCE, *packages)
        for path in folder.rglob("*.py")
    ]
    found = {path.name: code for path, code in mains if code}
    assert {"fork_server.py", "worker.py", "part.py", "machine.py"} <= found.keys()
    assert [name for name, code in found.items() if not code.startswith("    run_and_leave(")] == []
