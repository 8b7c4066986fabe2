"""Reading YAML that a person wrote, and writing what is read again."""

from __future__ import annotations

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


class SettingsLoader(_SafeLoader):
    """Makes plain Python values, and refuses a mapping that has a key twice, of which one would be ignored."""

    def construct_document(self, node: yaml.Node) -> object:
        """What a document says."""
        open_, seen = [node], set[int]()
        while open_:
            each = open_.pop()
            if id(each) in seen or not isinstance(each, yaml.MappingNode | yaml.SequenceNode):
                continue
            seen.add(id(each))
            if isinstance(each, yaml.MappingNode):
                _check_once(each)
                open_.extend(part for pair in each.value for part in pair)
            else:
                open_.extend(each.value)
        return super().construct_document(node)


def _check_once(node: yaml.MappingNode) -> None:
    names = set[tuple[str, str]]()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if (key.tag, key.value) in names:
            raise yaml.constructor.ConstructorError(None, None, f"it says {key.value!r} twice", key.start_mark)
        names.add((key.tag, key.value))


def parse_yaml(text: str, loader: type[SettingsLoader] = SettingsLoader) -> object:
    """What YAML says, in plain Python values.

    Args:
        text: the YAML.
        loader: how scalars are understood.

    Raises:
        YAMLError: it is none, says a key twice, or is nested a hundred deep.
        ValueError: it has a date that does not exist.
    """
    depth = 0
    for event in yaml.parse(text, loader):  # what composes nodes calls itself, and ends the process where that is deep
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise yaml.YAMLError(f"lists or mappings nested more than {_DEEPEST} deep")
    return yaml.load(text, loader)  # noqa: S506 - derived from SafeLoader


def read_yaml(path: Path, what: str, loader: type[SettingsLoader] = SettingsLoader) -> object:
    """What a YAML file says, in plain Python values.

    Args:
        path: of the file.
        what: what kind of file it ought to be, for the error.
        loader: how scalars are understood.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says a key twice.
    """
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
