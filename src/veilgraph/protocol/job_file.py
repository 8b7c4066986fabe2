"""Job files, read by the settings of the paradigm that they name, and JSON Schemas of all files that people write.

Settings are loaded without what the paradigm does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Registry, config_errors, meanings
from veilgraph.core.yaml_file import read_yaml
from veilgraph.protocol.job import JobSettings, offered
from veilgraph.protocol.party_settings import PartySettings
from veilgraph.protocol.preset import Choice, chosen

JOBS: Final[Registry[type[JobSettings]]] = Registry(
    "veilgraph.jobs",
    {
        "vertical": "veilgraph.paradigms.vertical.settings:VerticalJob",
        "horizontal": "veilgraph.paradigms.horizontal.settings:HorizontalJob",
        "sealed": "veilgraph.paradigms.sealed.settings:SealedJob",
        "union": "veilgraph.paradigms.union.settings:UnionJob",
    },
    kind="veilgraph.protocol.job:JobSettings",
)
"""Paradigm → the settings of its jobs."""
DEFAULT_PARADIGM: Final = "vertical"
"""Of a job that names none."""


def parse_job(data: object, source: str = "job") -> JobSettings:
    """Validate settings from YAML or a dictionary, as their paradigm's; what they leave out comes from their preset.

    Raises ``ConfigError``: names the first broken key, its value and the rule.
    """
    return parse_with_choices(data, source)[0]


def parse_with_choices(data: object, source: str = "job") -> tuple[JobSettings, list[Choice]]:
    """Validate settings as ``parse_job``; gives the job, and the settings that its preset chose."""
    kind, content = settings_class_of(data, source)
    try:
        with config_errors(source):
            settings = kind.model_validate(content)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    return settings, chosen(content, offered(kind, content), settings)


def settings_class_of(data: object, source: str = "job") -> tuple[type[JobSettings], dict[str, Any]]:
    """Return the settings class of a job's paradigm and the job's own keys, not validated yet; or ``ConfigError``."""
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a job is a mapping, not {type(data).__name__}; see docs/guides/jobs.md")
    if "party" in data:
        raise ConfigError(f"{source}: party={data['party']!r}: a party file is no job; use veilgraph data check for it")
    name = data.get("paradigm", DEFAULT_PARADIGM)
    if not isinstance(name, str) or name not in JOBS:
        raise ConfigError(f"{source}: paradigm={name!r}: {JOBS.choices()}, or install the package that adds it")
    return JOBS[name], {**data, "paradigm": name}


def Job(**settings: object) -> JobSettings:  # noqa: N802 - it is called as the class of its result would be
    """Make a job of any paradigm from its settings: ``Job(paradigm="horizontal", data={"dataset": "cora"})``.

    Raises ``ConfigError``: names the first broken key, its value and the rule.
    """
    return parse_job(settings)


def read_job(path: Path) -> JobSettings:
    """Read and validate a job file; raises ``ConfigError`` if it cannot be read, is not YAML, or breaks a rule."""
    data = read_yaml(path, "job file")
    return parse_job({} if data is None else data, str(path))


_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema of a job file, whose keys are those of the paradigm that it names."""
    kinds: dict[str, type[JobSettings]] = dict(JOBS)
    references, found = models_json_schema(
        [(kind, "validation") for kind in kinds.values()], schema_generator=_WithMeanings
    )
    unnamed = {"if": {"not": {"required": ["paradigm"]}}, "then": references[kinds[DEFAULT_PARADIGM], "validation"]}
    named = [
        {
            "if": {"properties": {"paradigm": {"const": name}}, "required": ["paradigm"]},
            "then": references[kind, "validation"],
        }
        for name, kind in kinds.items()
    ]
    for name in {"LocalSettings", "CombineSettings", "TaskSettings"} & found["$defs"].keys():
        found["$defs"][name]["additionalProperties"] = True  # chosen by name, each with keys of its own
    return {
        "$schema": _DRAFT,
        "title": "A job of veilgraph",
        "type": "object",
        "properties": {"paradigm": {"enum": list(kinds)}},
        "allOf": [unnamed, *named],
        **found,
    }


def party_schema() -> dict[str, Any]:
    """Return the JSON Schema of a party file; its texts may be what YAML takes for a number or bool."""
    found = PartySettings.model_json_schema(schema_generator=_WithMeanings)
    _as_written(found)
    return {"$schema": _DRAFT, **found, "title": "A party file of veilgraph"}


class _WithMeanings(GenerateJsonSchema):
    @override
    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        for name, meaning in meanings(schema["cls"]).items():
            found["properties"][name].setdefault("description", meaning)
        return found


def _as_written(schema: object) -> None:
    """Let each text in a schema be a number or a bool too, in place: YAML reads ``007`` or ``no`` as such."""
    if isinstance(schema, dict) and schema.get("type") == "string" and "format" not in schema:
        schema["type"] = ["string", "number", "boolean"]
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _as_written(each)


SCHEMAS: Final[dict[str, Callable[[], dict[str, Any]]]] = {"job": job_schema, "party": party_schema}
"""File → its schema."""
