"""Parts by name: ours where a table says they are, other packages' where their entry points say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from veilgraph.core.errors import ConfigError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Parts of one kind, each loaded when it is first asked for.

    A package adds one by an entry point: ``[project.entry-points."<group>"]``, ``name = "module:attribute"``. Ours
    cannot be replaced so.

    Args:
        group: of the entry points.
        own: name → ``module:attribute``, in the order in which they are shown.
    """

    def __init__(self, group: str, own: Mapping[str, str]) -> None:
        self.group, self._own = group, dict(own)
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from sorted(each.name for each in entry_points(group=self.group) if each.name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _load(self, name: str) -> T:
        if name in self._own:
            module, _, attribute = self._own[name].partition(":")
            part: T = getattr(import_module(module), attribute)
            return part
        for each in entry_points(group=self.group, name=name):
            try:
                found: T = each.load()
            except (ImportError, AttributeError) as error:
                raise ConfigError(
                    f"{self.group}: {name!r} of an installed package is {each.value}, which cannot be loaded "
                    f"({error}); mend or remove that package"
                ) from error
            return found
        raise KeyError(name)
