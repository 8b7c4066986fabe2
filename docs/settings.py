"""Writes settings.md: every key of a job file, a party file and a project file, from the models that read them.

Rows that several paradigms or groups share stand once. Run it with ``make docs``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from inspect import getclosurevars
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin

from pydantic import AfterValidator, BaseModel
from pydantic.fields import FieldInfo
from veilgraph_averaging.tasks import TaskSettings
from veilgraph_embeddings.settings import EmbedJob
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.task import TrajectoriesTaskSettings

from docs.pages import find_page
from veilgraph.core.settings import Registry, meanings
from veilgraph.core.text import listed
from veilgraph.deploy.project import ProjectSettings
from veilgraph.graph.settings import DATASETS, DESCRIBED
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import JOBS
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.party_settings import PartySettings

PAGE: Final = find_page("settings.md")
_HEAD: Final = """# Settings

For anyone who writes a job, a party file or a project file: all keys, written from the code by `make docs`. Unknown
keys are refused. A key that is left out has its default, or what the job's [preset](../guides/presets.md) chooses. The
`job.yaml` of a run has all keys. From Python, `vg.Job(...)` takes the keys of a job.

`[]` is a list; each of its elements has the keys. *1–16* includes both ends, *[0, 1)* only the first; a default without
a point takes integers only. Keys without a default may be null, and are if left out. *…*: packages may add values.
"""
_LISTED: Final = 14
"""Most values that are listed."""
_ALIKE: Final = 2
"""Fewest rows that groups have in common to have them in one table."""
_OWN: Final = 5
"""Fewest rows of a group that has a table of its own; others are in the first table of their section."""


class Row(NamedTuple):
    """A key of a group (dotted, empty for none), and what the page says of it."""

    group: str
    name: str
    values: str
    meaning: str


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD, "## A job\n", *_tables([_paradigm(), *_rows(JobSettings, frozenset({"paradigm"}))])]
    for names, rows in _shared({name: _own(kind) for name, kind in JOBS.items()}).items():
        parts += [f"## A job of paradigm {' or '.join(f'`{name}`' for name in names)}\n"]
        parts += [f"{PARADIGMS[names[0]].title.partition(': ')[2].capitalize()}.\n"] if len(names) == 1 else []
        parts += _tables(rows)
    parts += ["## An embedding job\n", "For `veilgraph embed` ([guide](../guides/embeddings.md)).\n"]
    parts += _tables(_rows(EmbedJob))
    parts += [
        "## Data sets that are made\n",
        "From `veilgraph-datasets` ([guide](../guides/organisations.md#data-sets)).\n",
    ]
    parts += _tables(
        [row for name, key in DESCRIBED.items() for row in _rows(DATASETS[name].settings, at=f"data.{key}")]
    )
    parts += ["## Trajectories\n", "From `veilgraph-trajectories` ([guide](../guides/trajectories.md)).\n"]
    task = _rows(TrajectoriesTaskSettings, frozenset(TaskSettings.model_fields), at="averaging.task")
    parts += _tables([*task, *_rows(TrajectoriesSettings, at="data.made")])
    parts += ["## A party file\n", "Each party has its own ([guide](../guides/tables.md)).\n"]
    parts += _tables(_rows(PartySettings))
    parts += ["## A project file\n", "The participants across organisations ([guide](../guides/deployment.md)).\n"]
    parts += _tables(_rows(ProjectSettings))
    return "\n".join(parts)


def _own(kind: type[JobSettings]) -> list[Row]:
    return _rows(kind, frozenset(JobSettings.model_fields))


def _paradigm() -> Row:
    return Row("", "paradigm", f"{_choices(JOBS)} (`vertical`)", "how the parties train together")


def _shared(jobs: Mapping[str, Sequence[Row]]) -> dict[tuple[str, ...], list[Row]]:
    """Return each row once, under the paradigms that have it."""
    users: dict[Row, list[str]] = {}
    for name, rows in jobs.items():
        for row in rows:
            users.setdefault(row, []).append(name)
    found: dict[tuple[str, ...], list[Row]] = {}
    for row, names in users.items():
        found.setdefault(tuple(names), []).append(row)
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def _tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the keys in no group, one for each group with those in it, and of what groups have in common."""
    places: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        places.setdefault(row[1:], []).append(row.group)
    alike = Counter(map(tuple, places.values()))
    common = {names for names, times in alike.items() if times >= _ALIKE and len({*names}) > 1}
    sizes = Counter(row.group.partition(".")[0] for row in rows if tuple(places[row[1:]]) not in common)
    found: dict[str, list[Row]] = {"": []}
    for row in rows:
        names, top = tuple(places[row[1:]]), row.group.partition(".")[0]
        if names not in common:
            found.setdefault(f"`{top}`" if top and sizes[top] >= _OWN else "", []).append(row)
        elif row.group == names[0]:
            found.setdefault(listed([f"`{name}`" for name in names]), []).append(row._replace(group=""))
    tables = {heading: inside for heading, inside in found.items() if inside}
    for heading, inside in tables.items():
        if heading and len(tables) > 1:
            yield f"### {heading}\n"
        yield _table(inside)


def _table(rows: Sequence[Row]) -> str:
    lines = ["| key | values (default) | meaning |", "|---|---|---|"]
    for group, name, *cells in rows:
        lines.append(f"| `{group and group + '.'}{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _rows(model: type[BaseModel], without: frozenset[str] = frozenset(), at: str = "") -> list[Row]:
    return list(_lines(model, at, without))


def _lines(model: type[BaseModel], group: str, without: frozenset[str]) -> Iterator[Row]:
    """Yield a row for each setting, and for those in groups after the group itself."""
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
        values = "group" if inner is not None else _values(field, schema["properties"][name], schema)
        yield Row(group, name, values + _default(field), meaning)
        if inner is not None:
            groups.append((name, inner))
    for name, inner in groups:
        field = model.model_fields[name]
        dotted = f"{group and group + '.'}{name}{'[]' if get_origin(field.annotation) is tuple else ''}"
        if isinstance(field.discriminator, str):
            yield from _kinds(get_args(field.annotation), field.discriminator, dotted)
        else:
            yield from _lines(inner, dotted, frozenset())
            yield from _of_parts(inner, dotted)


def _of_parts(model: type[BaseModel], group: str) -> Iterator[Row]:
    """Yield what parts that a setting names have of settings beside those of all."""
    for field in model.model_fields.values():
        parts = _parts(field)
        for name in () if parts is None else parts.own:
            own = getattr(parts and parts[name], "settings", None)
            if isinstance(own, type) and issubclass(own, BaseModel):
                for row in _lines(own, group, frozenset(model.model_fields)):
                    yield row._replace(meaning=f"{name}: {row.meaning}")


def _kinds(kinds: Sequence[type[BaseModel]], named_by: str, group: str) -> Iterator[Row]:
    """Yield settings that are of one of several kinds: the name, then what the kinds have, with their names."""
    named = [kind.model_fields[named_by] for kind in kinds]
    names = [str(field.default) for field in named]
    told = (field.description or meanings(kind).get(named_by) for kind, field in zip(kinds, named, strict=True))
    choices = ", ".join(f"`{name}`" for name in names)
    yield Row(group, named_by, choices + _default(named[0]), next(filter(None, told)))
    of: dict[Row, list[str]] = {}
    for name, kind in zip(names, kinds, strict=True):
        for row in _lines(kind, group, frozenset({named_by})):
            of.setdefault(row, []).append(name)
    for row, users in of.items():
        yield row._replace(meaning=f"{', '.join(users)}: {row.meaning}")


def _group(field: FieldInfo) -> type[BaseModel] | None:
    """The settings in a setting: of its default, which may be of a subclass, or of what it may be."""
    if isinstance(field.default, BaseModel):
        return type(field.default)
    kinds = (field.annotation, *get_args(field.annotation))
    return next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)


def _may_be_left_out(field: FieldInfo) -> bool:
    return type(None) in get_args(field.annotation)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if field.is_required():
        return " (needed)"
    if value is None:
        return ""
    text = str(value) if isinstance(value, str | Path) and value else json.dumps(value, default=str, ensure_ascii=False)
    return f" (`{text}`)"


def _values(field: FieldInfo, said: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    parts = _parts(field)
    words = _words(said, schema) if parts is None else _choices(parts)
    if isinstance(field.default, int | float) and " or " not in words:
        words = re.sub(r"^(integer|number) (?=.)", "", words)
    return f"{words} or null" if _may_be_left_out(field) and field.default is not None else words


def _parts(field: FieldInfo) -> Registry[Any] | None:
    """The registry of which a setting names a part."""
    for each in field.metadata:
        if isinstance(each, AfterValidator):
            parts = getclosurevars(each.func).nonlocals.get("parts")
            if isinstance(parts, Registry):
                return parts
    return None


def _choices(parts: Registry[Any]) -> str:
    return ", ".join(f"`{name}`" for name in parts.own) + ", …"


def _words(said: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "$ref" in said:
        return _words(schema["$defs"][said["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in said or "oneOf" in said:
        found = dict.fromkeys(_words(each, schema) for each in said.get("anyOf") or said["oneOf"])
        return " or ".join(each for each in found if each != "null" or len(found) == 1)
    if "const" in said:
        return f"`{json.dumps(said['const']).strip(chr(34))}`"
    if "enum" in said:
        return ", ".join(f"`{each}`" for each in said["enum"][:_LISTED]) + (
            ", …" if len(said["enum"]) > _LISTED else ""
        )
    kind = str(said.get("type"))
    items = said.get("items", {})
    lists = f"list of {_words(items, schema)}" if items else f"list of {len(said.get('prefixItems', []))}"
    text = "path" if said.get("format") == "path" else "text"
    if kind in ("integer", "number"):
        return kind + _bounds(said)
    return {"array": lists, "object": "mapping", "boolean": "true/false", "null": "null", "string": text}[kind]


def _bounds(said: Mapping[str, Any]) -> str:
    low, high = (said.get(each) for each in ("minimum", "maximum"))
    above, below = (said.get(f"exclusive{each}") for each in ("Minimum", "Maximum"))
    if high is None and below is None:
        return f" ≥{_plain(low)}" if low is not None else f" >{_plain(above)}" if above is not None else ""
    if above is None and below is None:
        return f" {_plain(low)}–{_plain(high)}"
    start = f"[{_plain(low)}" if above is None else f"({_plain(above)}"
    return f" {start}, {_plain(below)})" if high is None else f" {start}, {_plain(high)}]"


def _plain(number: float | None) -> str:
    return f"2^{number.bit_length() - 1}" if isinstance(number, int) and number > 1e15 else f"{number:,}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
