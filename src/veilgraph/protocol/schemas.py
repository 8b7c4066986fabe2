"""JSON Schemas of the files that people write, for editors that complete and check them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic.json_schema import models_json_schema

from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import DEFAULT_PARADIGM, JOBS
from veilgraph.protocol.party_settings import PartySettings

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"

_CHOSEN: Final = ("LocalSettings", "CombineSettings", "TaskSettings")
"""Parts that are chosen by name, each with keys of its own beside these."""


def job_schema() -> dict[str, Any]:
    """Of a job file: the keys are those of the paradigm that it names, of veilgraph's own."""
    kinds: dict[str, type[JobSettings]] = {name: JOBS[name] for name in JOBS.own}
    references, found = models_json_schema([(kind, "validation") for kind in kinds.values()])
    unnamed = {"if": {"not": {"required": ["paradigm"]}}, "then": references[kinds[DEFAULT_PARADIGM], "validation"]}
    named = [
        {
            "if": {"properties": {"paradigm": {"const": name}}, "required": ["paradigm"]},
            "then": references[kind, "validation"],
        }
        for name, kind in kinds.items()
    ]
    for name in _CHOSEN:
        found["$defs"][name]["additionalProperties"] = True
    return {
        "$schema": _DRAFT,
        "title": "A job of veilgraph",
        "type": "object",
        "properties": {"paradigm": {"enum": list(kinds)}},
        "allOf": [unnamed, *named],
        **found,
    }


def party_schema() -> dict[str, Any]:
    """Of a party file, whose values are text: what YAML makes of ``no`` or ``007`` is taken as it is written."""
    found = PartySettings.model_json_schema()
    _as_written(found)
    return {"$schema": _DRAFT, **found, "title": "A party file of veilgraph"}


def _as_written(schema: object) -> None:
    """Lets text be what YAML takes for a number or a truth value, in place."""
    if isinstance(schema, dict):
        if schema.get("type") == "string" and "format" not in schema:
            schema["type"] = ["string", "number", "boolean"]
        for each in schema.values():
            _as_written(each)
    elif isinstance(schema, list):
        for each in schema:
            _as_written(each)


SCHEMAS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"job": job_schema, "party": party_schema}
"""File → its schema."""
