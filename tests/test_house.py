"""The house: nothing outside a part's own package asks for it by name; tests share helpers, not test modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from veilgraph.nn.combine.strategy import COMBINES
from veilgraph.nn.local.model import LOCAL_MODELS
from veilgraph.protocol.paradigm import PARADIGMS

SOURCE = Path(__file__).parents[1] / "src" / "veilgraph"
NAMES = frozenset(PARADIGMS)


PARTS = frozenset((*LOCAL_MODELS.own, *COMBINES.own)) - {"mean", "concat", "gcn"}
"""Names of local models and strategies, less those that name an aggregate or an update too."""


def asks(path: Path, names: frozenset[str] = NAMES) -> Iterator[int]:
    """Lines of a file that compare something with one of some names, or look it up by one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        if isinstance(node, ast.MatchValue):
            parts = [node.value]
        held = [each for part in parts for each in (part.elts if isinstance(part, ast.Tuple | ast.Set) else [part])]
        yield from [each.lineno for each in held if isinstance(each, ast.Constant) and each.value in names]


def test_nobody_outside_asks_which_paradigm_a_job_is_of() -> None:
    inside = SOURCE / "paradigms"
    files = [path for path in SOURCE.rglob("*.py") if inside not in path.parents]
    found = {f"{path.relative_to(SOURCE)}:{line}" for path in files for line in asks(path)}
    assert found == set()


def test_nobody_asks_which_local_model_or_strategy_a_job_has() -> None:
    """Its class says what holds of it; a model's own file alone compares its name, for others have its settings too."""
    files = [path for path in SOURCE.rglob("*.py") if path.name != "sage_mean.py"]
    assert {f"{path.relative_to(SOURCE)}:{line}" for path in files for line in asks(path, PARTS)} == set()


def test_asking_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "room.py"
    path.write_text('if job.paradigm == "vertical" or name in ("horizontal", "x"):\n    pass\n', encoding="utf-8")
    assert list(asks(path)) == [1, 1]
    assert list(asks(path, frozenset({"x"}))) == [1]


TESTS = Path(__file__).parent


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Module and name of everything that a file imports from a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def test_no_test_module_is_imported() -> None:
    """What several need is in a plain module beside them, or a fixture of a conftest."""
    found = {
        f"{path.relative_to(TESTS)}: {module}"
        for path in TESTS.rglob("*.py")
        for module, name in imports(path)
        if any(part.startswith("test_") for part in (*module.split(".")[1:], name)) and module.startswith("tests")
    }
    assert found == set()
