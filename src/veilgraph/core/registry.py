"""Parts by name: ours where a table says they are, other packages' where their entry points say."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from veilgraph.core.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Parts of one kind, each loaded when it is first asked for.

    A package adds one by an entry point: ``[project.entry-points."<group>"]``, ``name = "module:attribute"``. Ours
    cannot be replaced so.

    Args:
        group: of the entry points.
        own: name → ``module:attribute``, in the order in which they are shown.
        kind: ``module:attribute`` of the class that every part is, an instance or a subclass of it.

    Attributes:
        own: the names of ours.
    """

    def __init__(self, group: str, own: Mapping[str, str], kind: str) -> None:
        self.group, self._own, self._kind = group, dict(own), kind
        self.own: Final = tuple(own)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is one of that name; nothing is loaded."""
        return isinstance(name, str) and (name in self._own or any(each.name == name for each in installed(self.group)))

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(each.name for each in installed(self.group) if each.name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, key: str, name: str) -> T:
        """The part that a setting or an argument names.

        Raises:
            ConfigError: there is none; it lists those that there are.
        """
        self.check(key, name)
        return self[name]

    def check(self, key: str, name: str) -> None:
        """Raises what ``find`` would, and loads nothing."""
        if name not in self:
            raise ConfigError(f"{key}={name!r}: {self.choices()}")

    def choices(self) -> str:
        """What may be named, as an error says it."""
        return f"choose one of {', '.join(map(repr, self))}"

    def _load(self, name: str) -> T:
        if name in self._own:
            part: T = _found_at(self._own[name])
            return part
        for each in installed(self.group):
            if each.name != name:
                continue
            try:
                found: T = each.load()
            except Exception as error:
                raise ConfigError(
                    f"{self.group}: {name!r} of an installed package is {each.value}, which cannot be loaded "
                    f"({error}); mend or remove that package"
                ) from error
            kind = _found_at(self._kind)
            if not isinstance(found, kind) and not (isinstance(found, type) and issubclass(found, kind)):
                raise ConfigError(
                    f"{self.group}: {name!r} of an installed package is {each.value}, which is no {kind.__name__}; "
                    "derive it from that, or remove the package"
                )
            return found
        raise KeyError(name)


def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group in the packages that are installed now."""
    return _read(group, tuple((each, _changed_at(Path(each))) for each in sys.path))


@lru_cache(64)
def _read(group: str, path: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Those on the path as it was then: to find them a file of every package is opened, which takes milliseconds."""
    return tuple(entry_points(group=group))


def _changed_at(folder: Path) -> int:
    """When something was put into a folder or taken from it, in ns; 0 where there is none."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _found_at(place: str) -> Any:  # noqa: ANN401 - whatever is there
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
