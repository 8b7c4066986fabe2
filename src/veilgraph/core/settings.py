"""What all settings have in common."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from veilgraph.core.errors import ConfigError
from veilgraph.core.registry import Registry
from veilgraph.core.types import PartyId

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
_NEAR: Final = "near_miss"
"""Type of the problem of a key that is almost one of a group's."""
_LONGEST: Final = 200
"""So many characters of a value are shown in an error."""
PartyName = Annotated[PartyId, Field(pattern=NAME_PATTERN)]


class Settings(BaseModel):
    """Frozen; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_slips(cls, content: object) -> object:
        """``epsilon_total: yes`` is no ε of 1, and ``epoch`` is probably ``epochs``."""
        for name, value in content.items() if isinstance(content, Mapping) else ():
            field = cls.model_fields.get(name)
            if field is None and (near := get_close_matches(str(name), cls.model_fields, 1)):
                raise PydanticCustomError(_NEAR, "no setting", {"name": name, "value": value, "near": near[0]})
            if isinstance(value, bool) and field is not None and not _has_truth(field.annotation):
                raise ValueError(f"{name}={value}: must be no truth value, as which YAML reads yes, no, on and off too")
        return content


def _has_truth(annotation: object) -> bool:
    """Whether a truth value is of a type, or of a part of it."""
    if annotation in (Any, object) or isinstance(annotation, bool) or annotation is bool:
        return True
    return any(_has_truth(part) for part in get_args(annotation))


def named_in(parts: Registry[Any]) -> AfterValidator:
    """Validates the name of one of some parts, ours or another package's; none is loaded for it."""

    def check(name: str) -> str:
        if name not in parts:
            raise ValueError(parts.choices())
        return name

    return AfterValidator(check)


def unsettled(error: ValidationError, source: str, way_out: str = "") -> ConfigError:
    """The error of settings that break a rule: names the first broken key, its value and the rule.

    Args:
        error: of their model.
        source: where they were read.
        way_out: where the rule does not say it.
    """
    problem = error.errors(include_url=False)[0]
    key, value = ".".join(map(str, problem["loc"])), problem["input"]
    if problem["type"] == _NEAR:
        key, value = ".".join(map(str, (*problem["loc"], problem["ctx"]["name"]))), problem["ctx"]["value"]
    elif isinstance(value, dict | BaseModel):  # a rule between settings: what it says of them
        rule = ConfigError(problem["msg"].removeprefix("Value error, "))
        key, value = rule.key or key, rule.value
    return ConfigError(f"{source}: {first_problem(error)}{way_out}", key=key, value=value)


def first_problem(error: ValidationError) -> str:
    """The first broken key of settings, its value and the rule, on one line."""
    problem = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"]) or "job"
    shown = _shown(problem["input"])
    if problem["type"] == "extra_forbidden":
        return f"{key} is not a setting (value {shown}); remove it or mend its name"
    if problem["type"] == _NEAR:
        found = problem["ctx"]
        key = ".".join(map(str, (*problem["loc"], found["name"])))
        return f"{key} is not a setting (value {_shown(found['value'])}); did you mean {found['near']}? Else remove it"
    message = problem["msg"].removeprefix("Value error, ")
    if isinstance(problem["input"], dict | BaseModel):
        return f"{key}: {message}"
    return f"{key}={shown}: {message}"


def _shown(value: object) -> str:
    """A value in an error, of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
