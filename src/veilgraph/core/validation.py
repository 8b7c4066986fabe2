"""Errors of pydantic in our own words: the key as its writer knows it, the value, the rule, the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from veilgraph.core.errors import ConfigError

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
NEAR: Final = "near_miss"
"""Type of the problem of a key that is almost one of a group's."""
_LONGEST: Final = 200  # so many characters of a value are shown in an error
_GROUP: Final = "must be names with values; write them as in {{name: value}}"
_WHOLE: Final = "must be a whole number; write one, as in 3"
_NUMBER: Final = "must be a number; write one, as in 0.5"
_TRUTH: Final = "must be true or false; write one of them"
_TEXT: Final = "must be text; write it between quotes"
_LIST: Final = "must be a list; write one, as in [a, b]"
_DATE: Final = "must be a date; write one, as in 2024-01-31"
_RULES: Final[Mapping[str, str]] = {
    "bool_parsing": _TRUTH,
    "bool_type": _TRUTH,
    "date_from_datetime_parsing": _DATE,
    "date_type": _DATE,
    "datetime_parsing": _DATE,
    "datetime_type": _DATE,
    "dict_type": _GROUP,
    "enum": "must be {expected}; choose one",
    "extra_forbidden": "is no key here; remove it",
    "finite_number": "must be a finite number; write one",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "frozen_set_type": _LIST,
    "greater_than": "must be more than {gt}; raise it",
    "greater_than_equal": "must be at least {ge}; raise it",
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_parsing_size": "has too many digits; write fewer",
    "int_type": _WHOLE,
    "less_than": "must be less than {lt}; lower it",
    "less_than_equal": "must be at most {le}; lower it",
    "list_type": _LIST,
    "literal_error": "must be {expected}; choose one",
    "mapping_type": _GROUP,
    "missing": "is needed; add it",
    "model_attributes_type": _GROUP,
    "model_type": _GROUP,
    "multiple_of": "must be a multiple of {multiple_of}; change it",
    "none_required": "must be null; write that, or leave it out",
    "path_type": "must be a path; write it between quotes",
    "set_type": _LIST,
    "string_pattern_mismatch": "must match {pattern}; mend it",
    "string_too_long": "has more than {max_length} characters; shorten it",
    "string_too_short": "must be text of at least {min_length} characters; write it, or leave the key out",
    "string_type": _TEXT,
    "string_unicode": "must be text in UTF-8; write it so",
    "too_long": "must have at most {max_length} entries; remove some",
    "too_short": "must have at least {min_length} entries; add some",
    "tuple_type": _LIST,
    "union_tag_invalid": "must be {expected_tags}; choose one",
    "union_tag_not_found": "needs {discriminator}; add it",
}
"""Type of a problem → the rule and the way out, with the fields of the problem's context."""
_NAME_RULE: Final = (
    "must have letters, digits, '.', '_' and '-' alone, at most 64, a letter or a digit first; rename it"
)
_ALONE: Final = re.compile(r"'?(\w+)'?")
_BRANCH: Final = re.compile(r"\(\w+\)|.*\[.*\]|(constrained|function|lax)-.*|str|int|float|[A-Z]\w*(Settings|Features)")
"""A place in pydantic's path that is no key: a part of a union."""


def problem_of(error: ValidationError) -> tuple[str, object, str]:
    """Return the first broken key, its value, and a line that says both, the rule and the way out."""
    problems = error.errors(include_url=False)
    problem = _most_specific(problems)
    found, value, place = problem.get("ctx", {}), problem["input"], key_of(problem)
    if problem["type"] == NEAR:
        key, value = ".".join(filter(None, (place, found["name"]))), found["value"]
        near = f"did you mean {found['near']}? Else remove it"
        return key, value, f"{key} is not a setting (value {_shortened(value)}); {near}"
    if problem["type"] == "extra_forbidden":
        return place, value, f"{place} is not a setting (value {_shortened(value)}); remove it or mend its name"
    alike = [each for each in problems[problems.index(problem) :] if key_of(each) == place]
    rule = _joined([rule_of(each) for each in alike]) if problem["type"] in _RULES else rule_of(problem)
    if isinstance(value, dict | BaseModel) and problem["type"] not in _RULES:  # a rule between settings
        said = ConfigError(rule)
        return said.key or place, said.value, f"{place}: {rule}" if place else rule
    if problem["type"] == "missing":  # of which pydantic gives the group that lacks it
        return place, None, f"{place} {rule}"
    if problem["type"] == "union_tag_invalid":
        place, value = f"{place}.{str(found['discriminator']).strip(chr(39))}", found["tag"]
    if problem["type"] == "literal_error" and isinstance(value, str):
        near_by = get_close_matches(value, re.findall(r"'([^']*)'", found["expected"]), 1)
        rule += f" (did you mean {near_by[0]!r}?)" if near_by else ""
    return place, value, f"{place or 'job'}={_shortened(value)}: {rule}"


def key_of(problem: Mapping[str, Any]) -> str:
    """Return the dotted key that a problem is about, as its writer knows it: without the parts of unions.

    A problem of a name in a group of names is about the group, and the name is its value.
    """
    place = problem["loc"][:-2] if problem["loc"][-1:] == ("[key]",) else problem["loc"]
    return ".".join(str(each) for each in place if isinstance(each, int) or not _BRANCH.fullmatch(each))


def rule_of(problem: Mapping[str, Any]) -> str:
    """Return the rule that a problem breaks, and the way out; nothing of the value, which others may not see."""
    said = _RULES.get(problem["type"])
    if said is None:
        words: str = problem["msg"].removeprefix("Value error, ")
        return re.sub(r"\b(Input|String|Value) should", "it must", words)
    found = problem.get("ctx", {})
    if found.get("pattern") == NAME_PATTERN:
        return _NAME_RULE
    if problem["type"] == "literal_error" and (only := _ALONE.fullmatch(found["expected"])):
        return f"must be {only[1].lower() if only[1] in ('True', 'False') else only[1]}; write that, or leave it out"
    return said.format(**{key: f"{each:g}" if isinstance(each, float) else each for key, each in found.items()})


def _most_specific(problems: Sequence[Any]) -> Any:  # noqa: ANN401 - pydantic's ErrorDetails
    """Return the first problem or, where it is of a part of a union that takes no such value, one of a part that does.

    The other part's problem is of something in the value, or not of its type.
    """
    first, place = problems[0], key_of(problems[0])
    if not (first["type"].endswith("_type") and isinstance(first["input"], list | tuple | dict)):
        return first
    others = (each for each in problems if f"{key_of(each)}.".startswith(f"{place}."))
    return next((each for each in others if key_of(each) != place or not each["type"].endswith("_type")), first)


def _joined(rules: Sequence[str]) -> str:
    """Join the rules of a union's parts: one of them must hold."""
    rules = list(dict.fromkeys(rules))
    if len(rules) == 1 or not all(each.startswith("must be ") and "; " in each for each in rules):
        return rules[0]
    parts = [each.partition("; ")[0].removeprefix("must be ") for each in rules]
    return f"must be {' or '.join(parts)}; write one of these"


def _shortened(value: object) -> str:
    """Return a value's ``repr``, of which at most 200 characters."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
