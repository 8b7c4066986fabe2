"""Rules of settings hold in subclasses too: pydantic replaces a validator by one of the same name, without a word."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest
from pydantic import ValidationError, model_validator

from tests.modules import ROOT
from veilgraph.core.settings import Settings
from veilgraph.graph.settings import DataSettings, PartitionSettings
from veilgraph.nn.combine import CombineSettings
from veilgraph.paradigms.horizontal.settings import HorizontalSettings
from veilgraph.paradigms.horizontal.tally import LearntSettings
from veilgraph.paradigms.vertical.network import InitialSettings, ModelSettings
from veilgraph.protocol.job import RecordSettings, TrainSettings
from veilgraph.tables.column_settings import NumericFeatures

REFUSED: Mapping[type[Settings], dict[str, Any]] = {
    CombineSettings: {"strategy": "concat", "masked": True},
    DataSettings: {"label_holder": "nobody"},
    HorizontalSettings: {"update": "difference"},
    InitialSettings: {"learning_rate": 10, "weight_decay": 0.5},
    LearntSettings: {"low": 0, "high": 1},
    ModelSettings: {"rounds": 2, "combine": {"strategy": "concat"}},
    NumericFeatures: {"columns": ["age"], "missing": 9, "scale": {"low": 0, "high": 1}},
    PartitionSettings: {"by": "nodes", "overlap": 0.5},
    RecordSettings: {},
    TrainSettings: {"refresh_every": 2},
}
"""Parts of a job that a package may extend → what they refuse by a rule between their own settings."""


@pytest.mark.parametrize("base", REFUSED, ids=lambda base: base.__name__)
def test_a_package_that_adds_a_check_leaves_the_rules_of_its_base(base: type[Settings]) -> None:
    class Extended(base):  # type: ignore[valid-type,misc]
        @model_validator(mode="after")
        def _check(self) -> "Extended":
            return self

    for kind in (base, Extended):
        with pytest.raises(ValidationError):
            kind.model_validate(REFUSED[base])


def validators(kind: type[Settings]) -> Iterator[str]:
    """Names of the validators that a class has in its own body."""
    found = kind.__pydantic_decorators__
    yield from (name for each in fields(found) for name in getattr(found, each.name) if name in vars(kind))


def replaced(kind: type[Settings]) -> Iterator[str]:
    """Validators of a class that silence its base's of the same name, for they do not call it."""
    bases = [base for base in kind.__mro__[1:] if issubclass(base, Settings)]
    for name in validators(kind):
        if any(name in validators(base) for base in bases):
            made = ast.parse(textwrap.dedent(inspect.getsource(getattr(kind, name))))
            if not any(isinstance(each, ast.Name) and each.id == "super" for each in ast.walk(made)):
                yield f"{kind.__module__}.{kind.__qualname__}.{name}"


def subclasses(kind: type[Settings]) -> Iterator[type[Settings]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def test_no_settings_class_replaces_a_validator_of_its_base() -> None:
    for folder in (ROOT / "src" / "veilgraph", *ROOT.glob("packages/*/src/veilgraph_*")):
        for found in walk_packages([str(folder)], f"{folder.name}."):
            if not found.name.endswith("__main__"):
                import_module(found.name)
    classes = {kind for kind in subclasses(Settings) if kind.__module__.startswith("veilgraph")}
    assert len(classes) > 80, "these are not all"
    assert {name for kind in classes for name in replaced(kind)} == set()


def test_what_replaces_a_validator_is_noticed() -> None:
    class Base(Settings):
        @model_validator(mode="after")
        def _rule(self) -> "Base":
            return self

    class Silent(Base):
        @model_validator(mode="after")
        def _rule(self) -> "Silent":
            return self

    class Both(Base):
        @model_validator(mode="after")
        def _rule(self) -> "Both":
            super()._rule()  # type: ignore[operator]
            return self

    assert [name.rpartition(".")[2] for name in replaced(Silent)] == ["_rule"]
    assert list(replaced(Both)) == list(replaced(Base)) == []
