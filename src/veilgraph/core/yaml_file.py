"""Reading YAML that a person wrote, and writing what is read again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from veilgraph.core.errors import ConfigError

try:
    from yaml import CSafeDumper as _SafeDumper  # libyaml takes a fifth of the time
    from yaml import CSafeLoader as _SafeLoader
except ImportError:  # PyYAML was built without it
    from yaml import SafeDumper as _SafeDumper  # type: ignore[assignment]
    from yaml import SafeLoader as _SafeLoader  # type: ignore[assignment]


_DEEPEST: Final = 100
_MOST_REPEATED: Final = 10_000  # values, by aliases


class SettingsLoader(_SafeLoader):
    """Makes plain Python values, and refuses a mapping that has a key twice, of which one would be ignored."""

    def construct_document(self, node: yaml.Node) -> object:
        """Return a document as plain Python values; raises ``ConstructorError`` where a mapping has a key twice."""
        open_, seen = [node], set[int]()
        while open_:
            each = open_.pop()
            if id(each) in seen or not isinstance(each, yaml.MappingNode | yaml.SequenceNode):
                continue
            seen.add(id(each))
            if isinstance(each, yaml.MappingNode):
                _check_keys_unique(each)
                open_.extend(part for pair in each.value for part in pair)
            else:
                open_.extend(each.value)
        return super().construct_document(node)


def _check_keys_unique(node: yaml.MappingNode) -> None:
    names = set[tuple[str, str]]()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in names:
            raise yaml.constructor.ConstructorError(None, None, f"it says {key.value!r} twice", key.start_mark)
        names.add((key.tag, key.value))


def parse_yaml(text: str, loader: type[SettingsLoader] = SettingsLoader) -> object:
    """Parse YAML into plain Python values.

    Raises ``YAMLError``: it is none, says a key twice, is nested a hundred deep, or repeats too much by aliases;
    ``ValueError``: it has a date that does not exist.
    """
    _check_size(yaml.parse(text, loader))
    return yaml.load(text, loader)  # noqa: S506 - derived from SafeLoader


def _check_size(events: Iterable[yaml.Event]) -> None:
    """Raise ``YAMLError`` for nesting over 100 deep, for an alias within itself, or aliases of over 10,000 values.

    PyYAML composes nodes by recursion, so deep nesting ends the process. Aliases of aliases multiply their size.
    """
    sizes, open_ = dict[str | None, int](), list[tuple[str | None, int]]()
    size = repeated = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, size))
            size = 1
            if len(open_) > _DEEPEST:
                raise yaml.YAMLError(f"lists or mappings nested more than {_DEEPEST} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            sizes[anchor] = size
            size += before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1
            size += 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in {anchor for anchor, _ in open_}:
                raise yaml.YAMLError(f"*{event.anchor} stands for what it is a part of")
            repeated += sizes.get(event.anchor, 0)
            size += sizes.get(event.anchor, 0)
            if repeated > _MOST_REPEATED:
                raise yaml.YAMLError(f"aliases stand for more than {_MOST_REPEATED:,} values; write them out")


def read_yaml(path: Path, what: str, loader: type[SettingsLoader] = SettingsLoader) -> object:
    """Read a YAML file, called ``what`` in errors; ``ConfigError``: it cannot be read, or ``parse_yaml`` refuses it."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a {what}", key=str(path)) from error
    except (yaml.YAMLError, ValueError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"{path}: not valid YAML ({why})", code="not-yaml", key=str(path)) from error


def yaml_bytes(content: object) -> bytes:
    """Plain Python values as a YAML file, keys in their order."""
    try:
        written: Any = yaml.dump(content, Dumper=_SafeDumper, sort_keys=False, allow_unicode=True)
    except UnicodeEncodeError:  # a path that is no Unicode, which libyaml does not escape
        written = yaml.safe_dump(content, sort_keys=False)
    return str(written).encode()
