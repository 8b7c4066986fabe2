"""Every key of every settings file with values that it cannot have: derived from the models that read them."""

import copy
import datetime
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel
from veilgraph_embeddings.settings import EmbedJob

from tests.bad.case import Arguments, Case
from veilgraph.core.errors import ConfigError
from veilgraph.core.yaml_file import SettingsLoader, parse_yaml
from veilgraph.deploy.project import ProjectSettings
from veilgraph.protocol.job_file import JOBS, parse_job
from veilgraph.protocol.party_settings import PartySettings, TextLoader, parse_party_settings

KINDS: Final = 1
"""So many wrong values of each key, of those that are wrong for it."""
WRONG: Final[tuple[object, ...]] = (
    {"such": "a mapping"},
    "no such value",
    [["nested"], 1],
    -7,
    float("inf"),
    10**400,
    datetime.date(2024, 2, 29),
    "x" * 5_000,
    True,
    b"\x00\xff",
    "two\nlines",
    float("nan"),
    None,
    "",
)

Dotted = tuple[str | int, ...]


def keys(model: type[BaseModel], prefix: Dotted = ()) -> Iterator[Dotted]:
    """Every key, those of groups after their group; of a list's elements those of the first."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        for listed, group in _groups(field.annotation):
            yield from keys(group, (*prefix, name, 0) if listed else (*prefix, name))


def _groups(annotation: Any, listed: bool = False) -> Iterator[tuple[bool, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield listed, annotation
    origin = getattr(annotation, "__origin__", None)
    for inner in get_args(annotation):
        if origin not in (dict, Mapping):
            yield from _groups(inner, listed or origin in (tuple, list))


def changed(base: object, key: Dotted, value: object) -> object:
    """``base`` with a key's value replaced; groups and elements on the way are made."""
    if not key:
        return value
    first, *rest = key
    if isinstance(first, int):
        return [changed(base[0] if isinstance(base, list) and base else None, tuple(rest), value)]
    content = dict(base) if isinstance(base, dict) else {}
    content[first] = changed(content.get(first), tuple(rest), value)
    return content


def spoiled(
    model: type[BaseModel], base: Mapping[str, object], refuses: Callable[[object], bool]
) -> Iterator[tuple[Dotted, object, object]]:
    """(key, value, content): of each key some values that its model refuses, of other kinds at the next key."""
    seen = set()
    for turn, key in enumerate(keys(model)):
        if key in seen:
            continue
        seen.add(key)
        found = 0
        for shift in range(len(WRONG)):
            value = WRONG[(turn + shift) % len(WRONG)]
            content = changed(copy.deepcopy(dict(base)), key, value)
            if found < KINDS and refuses(content):
                found += 1
                yield key, value, content


def _cases(
    sort: str,
    model: type[BaseModel],
    base: Mapping[str, object],
    refuses: Callable[[object], bool],
    commands: tuple[Callable[[Path], Arguments], ...],
) -> Iterator[Case]:
    for number, (key, value, content) in enumerate(spoiled(model, base, refuses)):
        command = commands[number % len(commands)]

        def prepare(
            folder: Path, content: object = content, command: Callable[[Path], Arguments] = command
        ) -> Arguments:
            file = folder / "given.yaml"
            file.write_text(yaml.safe_dump(content), encoding="utf-8")
            return command(file)

        dotted = ".".join(map(str, key))
        yield Case(f"{sort}: {dotted}={str(value)[:20]!r}", prepare, "out", says="given.yaml")


def _refused(build: Callable[[Any], object], loader: type[SettingsLoader] = SettingsLoader) -> Callable[[object], bool]:
    def refuses(content: object) -> bool:
        try:
            build(parse_yaml(yaml.safe_dump(content), loader))
        except (ConfigError, ValueError):
            return True
        return False

    return refuses


def settings_cases() -> Iterator[Case]:
    """Jobs of every paradigm, embedding jobs, party files, project files."""
    jobs: tuple[Callable[[Path], Arguments], ...] = (
        lambda file: ["check", file],
        lambda file: ["train", file, "--out", file.parent / "out"],
        lambda file: ["check", "--costs", file],
        lambda file: ["budget", file],
        lambda file: ["tune", file, "--trials", "1", "--out", file.parent / "out"],
        lambda file: ["data", "align", file, "--out", file.parent / "out"],
    )
    for paradigm in JOBS:
        base = {"paradigm": paradigm, "data": {"dataset": "synthetic"}}
        yield from _cases(f"{paradigm} job", JOBS[paradigm], base, _refused(parse_job), jobs)
    embed = (lambda file: ["embed", file, "--out", file.parent / "out"],)
    yield from _cases("embed job", EmbedJob, {}, _refused(EmbedJob.model_validate), embed)
    party = {"party": "A", "nodes": {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x"]}]}, "edges": []}
    checks = (lambda file: ["data", "check", file],)
    yield from _cases("party file", PartySettings, party, _refused(parse_party_settings, TextLoader), checks)
    project = {
        "name": "fraud",
        "server": {"host": "localhost"},
        "holders": ["bank", "shop"],
        "administrators": ["ops@example.org"],
    }
    provision = (lambda file: ["net", "provision", file, "--out", file.parent / "out"],)
    yield from _cases("project file", ProjectSettings, project, _refused(ProjectSettings.model_validate), provision)


_DEEP: Final = b"[" * 5_000
FILES: Final[dict[str, bytes]] = {
    "list": b"- a\n- b\n",
    "text": b"just words",
    "number": b"7",
    "unfinished": b"data: {dataset: [",
    "tab": b"data:\n\tdataset: digits\n",
    "object": b"seed: !!python/object/apply:os.getcwd []\n",
    "not UTF-8": "name: Müller\n".encode("latin-1"),
    "UTF-16": "name: small\n".encode("utf-16"),
    "NUL": b"name: sm\x00all\n",
    "binary": bytes(range(256)) * 20,
    "two documents": b"name: a\n---\nname: b\n",
    "unknown alias": b"name: *there\n",
    "a key that is no text": b"? [a, b]\n: 1\n",
    "deep": _DEEP,
    "aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(7)),
    "the same key twice": b"name: a\nname: b\nunknown: 1\n",
    "unknown key": b"nmae: a\n",
    "a date": b"seed: 2024-02-30\n",
}
"""What is no settings file at all."""


def file_cases() -> Iterator[Case]:
    """Files that cannot be read, for each command that reads one."""
    readers: dict[str, Callable[[Path], Arguments]] = {
        "check": lambda file: ["check", file],
        "train": lambda file: ["train", file, "--out", file.parent / "out"],
        "data check": lambda file: ["data", "check", file],
        "embed": lambda file: ["embed", file, "--out", file.parent / "out"],
        "net provision": lambda file: ["net", "provision", file, "--out", file.parent / "out"],
        "net machine": lambda file: ["net", "machine", "--party", file, "--rank", "1"],
    }
    for reader, command in readers.items():
        for sort, content in FILES.items():

            def prepare(
                folder: Path, content: bytes = content, command: Callable[[Path], Arguments] = command
            ) -> Arguments:
                (folder / "given.yaml").write_bytes(content)
                return command(folder / "given.yaml")

            yield Case(f"{reader} of a file that is {sort}", prepare, "out")

        def nowhere(folder: Path, command: Callable[[Path], Arguments] = command) -> Arguments:
            return command(folder / "nowhere.yaml")

        def a_folder(folder: Path, command: Callable[[Path], Arguments] = command) -> Arguments:
            (folder / "given.yaml").mkdir()
            return command(folder / "given.yaml")

        def a_loop(folder: Path, command: Callable[[Path], Arguments] = command) -> Arguments:
            (folder / "given.yaml").symlink_to("given.yaml")
            return command(folder / "given.yaml")

        yield Case(f"{reader} of a file that is not there", nowhere, "out", says="nowhere.yaml")
        yield Case(f"{reader} of a folder", a_folder, "out", says="given.yaml")
        yield Case(f"{reader} of a link to itself", a_loop, "out", says="given.yaml")
