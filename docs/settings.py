"""Writes settings.md: every key of a job file, a party file and a project file, from the models that read them.

Run it with ``make docs``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from inspect import getclosurevars
from pathlib import Path
from typing import Any, Final, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo
from veilgraph_averaging.tasks import TaskSettings
from veilgraph_embeddings.method import METHODS, MethodSettings
from veilgraph_embeddings.settings import EmbedJob
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.task import TrajectoriesTaskSettings

from veilgraph.core.settings import Registry, meanings
from veilgraph.deploy.project import ProjectSettings
from veilgraph.graph.settings import DATASETS, DESCRIBED
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.party_settings import PartySettings

PAGE: Final = Path(__file__).parent / "settings.md"
_HEAD: Final = """# Settings

Every key of every file, written from the code by `make docs`. Unknown keys are refused; keys left out have their
defaults, of a job those that its [preset](presets.md) chooses in place of these, and the `job.yaml` of a run has all of
them spelled out. `[]` is a list, of which every element has the keys. From Python `vg.Job(...)` takes the keys of a
job.
"""
_JOB: Final = "One file, the same at every party."
_LISTED: Final = 14
"""So many values are listed; of more, that there are others to choose from."""

Line = tuple[str, str, str, str]


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "## A job\n", _JOB, *_tables(JobSettings, frozenset({"paradigm"}), head=_paradigm())]
    for name, kind in JOBS.items():
        own = {key for key in kind.model_fields if key not in JobSettings.model_fields}
        parts += [f"## A job of paradigm `{name}`\n", f"{PARADIGMS[name].title.partition(': ')[2].capitalize()}."]
        parts += _tables(kind, frozenset(kind.model_fields) - own)
    parts += ["## An embedding job\n", "For `veilgraph embed` ([embeddings.md](embeddings.md)).", *_tables(EmbedJob)]
    for name in METHODS.own:
        settings = METHODS[name].settings
        if not issubclass(type(EmbedJob.model_fields["method"].default), settings):
            head = f"### `method`, where its name is `{name}`\n"
            parts += [head, *_tables(settings, frozenset(MethodSettings.model_fields))]
    parts += [
        "## Data sets that are made\n",
        "Of `veilgraph-datasets` ([organisations.md](organisations.md#data-sets)).",
    ]
    for name, key in DESCRIBED.items():
        parts += [f"### `data.{key}`, where `data.dataset` is `{name}`\n", *_tables(DATASETS[name].settings)]
    parts += ["## Trajectories\n", "Of `veilgraph-trajectories` ([trajectories.md](trajectories.md))."]
    parts += ["### `averaging.task`, where its name is `trajectories`\n"]
    parts += _tables(TrajectoriesTaskSettings, frozenset(TaskSettings.model_fields))
    parts += ["### `data.made`, where `data.dataset` is `trajectories`\n", *_tables(TrajectoriesSettings)]
    parts += ["## A party file\n", "One organisation's own; [tables.md](tables.md) explains it."]
    parts += _tables(PartySettings)
    parts += ["## A project file\n", "Who takes part across organisations ([deployment.md](deployment.md))."]
    parts += _tables(ProjectSettings)
    return "\n".join(parts)


def _paradigm() -> list[Line]:
    return [("`paradigm`", _choices(JOBS), '`"vertical"`', "how the parties train together")]


def _tables(model: type[BaseModel], without: frozenset[str] = frozenset(), head: list[Line] | None = None) -> list[str]:
    """A table of what is no group, then one for each group, with dotted keys."""
    found: dict[str, list[Line]] = {"": head or []}
    for group, line in _lines(model, "", without):
        found.setdefault(group, []).append(line)
    return [_table(group, lines) for group, lines in found.items() if lines]


def _table(group: str, lines: list[Line]) -> str:
    rows = [("key", "values", "default", "meaning"), ("---",) * 4, *lines]
    heading = f"### `{group}`\n\n" if group else ""
    return "\n" + heading + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _lines(model: type[BaseModel], prefix: str, without: frozenset[str]) -> Iterator[tuple[str, Line]]:
    """(group, line) of every setting, of those in groups after the group itself."""
    schema, meant = model.model_json_schema(), meanings(model)
    groups = []
    for name, field in model.model_fields.items():
        if name in without:
            continue
        inner = _group(field)
        meaning = (field.description or meant.get(name, "")).replace("|", "\\|")
        if inner is not None and not _may_be_left_out(field):
            groups.append((name, inner))
            continue
        values = "a group, or null" if inner is not None else _values(field, schema["properties"][name], schema)
        yield prefix, (f"`{prefix and prefix + '.'}{name}`", values, _default(field), meaning)
        if inner is not None:
            groups.append((name, inner))
    for name, inner in groups:
        field = model.model_fields[name]
        listed = "[]" if get_origin(field.annotation) is tuple else ""
        group = f"{prefix and prefix + '.'}{name}{listed}"
        if isinstance(field.discriminator, str):
            yield from _kinds(get_args(field.annotation), field.discriminator, group)
        else:
            yield from _lines(inner, group, frozenset())
            yield from _of_parts(inner, group)


def _of_parts(model: type[BaseModel], group: str) -> Iterator[tuple[str, Line]]:
    """What parts that a setting names have of settings beside those of all."""
    for field in model.model_fields.values():
        parts = _parts(field)
        for name in () if parts is None else parts.own:
            own = getattr(parts and parts[name], "settings", None)
            if isinstance(own, type) and issubclass(own, BaseModel):
                for _, (key, values, default, said) in _lines(own, group, frozenset(model.model_fields)):
                    yield group, (key, values, default, f"{name}: {said}")


def _kinds(kinds: Sequence[type[BaseModel]], named_by: str, group: str) -> Iterator[tuple[str, Line]]:
    """Settings that are of one of several kinds: the name, then what each of them has."""
    named = [kind.model_fields[named_by] for kind in kinds]
    names = [str(field.default) for field in named]
    told = (field.description or meanings(kind).get(named_by) for kind, field in zip(kinds, named, strict=True))
    meaning = next(filter(None, told))
    yield group, (f"`{group}.{named_by}`", ", ".join(f"`{name}`" for name in names), _default(named[0]), meaning)
    for name, kind in zip(names, kinds, strict=True):
        for _, (key, values, default, said) in _lines(kind, group, frozenset({named_by})):
            yield group, (key, values, default, f"{name}: {said}")


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """The settings in a setting: of its default, which may be of a subclass, or of what it may be."""
    if isinstance(field.default, BaseModel):
        return type(field.default)
    kinds = (field.annotation, *get_args(field.annotation))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _may_be_left_out(field: FieldInfo) -> bool:
    return type(None) in get_args(field.annotation)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    return f"`{json.dumps(value, default=str, ensure_ascii=False)}`"


def _values(field: FieldInfo, said: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    parts = _parts(field)
    return _words(said, schema) if parts is None else _choices(parts)


def _parts(field: FieldInfo) -> Registry[Any] | None:
    """The registry of which a setting names a part."""
    for each in field.metadata:
        if isinstance(each, AfterValidator):
            parts = getclosurevars(each.func).nonlocals.get("parts")
            if isinstance(parts, Registry):
                return parts
    return None


def _choices(parts: Registry[Any]) -> str:
    return ", ".join(f"`{name}`" for name in parts.own) + "; or another package's"


def _words(said: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "$ref" in said:
        return _words(schema["$defs"][said["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in said or "oneOf" in said:
        return " or ".join(dict.fromkeys(_words(each, schema) for each in said.get("anyOf") or said["oneOf"]))
    if "const" in said:
        return f"`{said['const']}`"
    if "enum" in said:
        return ", ".join(f"`{each}`" for each in said["enum"][:_LISTED]) + (
            ", …" if len(said["enum"]) > _LISTED else ""
        )
    kind = str(said.get("type"))
    items = said.get("items", {})
    lists = f"list of {_words(items, schema)}" if items else f"list of {len(said.get('prefixItems', []))}"
    text = "path" if said.get("format") == "path" else "text"
    numbers = {"integer": "whole number", "number": "number"}
    words = {**numbers, "array": lists, "object": "mapping", "boolean": "true, false", "null": "null", "string": text}
    return words[kind] + (_bounds(said) if kind in numbers else "")


def _bounds(said: Mapping[str, Any]) -> str:
    low, above = said.get("minimum"), said.get("exclusiveMinimum")
    high, below = said.get("maximum"), said.get("exclusiveMaximum")
    found = [f"from {low:,}"] if low is not None else [f"above {above:g}"] if above is not None else []
    found += [f"to {high:,}"] if high is not None else [f"below {_plain(below)}"] if below is not None else []
    return f" {' '.join(found)}" if found else ""


def _plain(number: float) -> str:
    return f"2^{number.bit_length() - 1}" if isinstance(number, int) and number > 1e15 else f"{number:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
