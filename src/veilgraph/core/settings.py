"""Settings, and the parts that settings name: ours from a table, other packages' from their entry points."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from veilgraph.core.deferred import import_quickly
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.core.validation import NAME_PATTERN, NEAR, problem_of

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Parts of one kind, each loaded when it is first asked for.

    A package adds one by an entry point: ``[project.entry-points."<group>"]``, ``name = "module:attribute"``. Ours, in
    the order in which they are shown, cannot be replaced so. ``kind`` is the class that every part is, an instance or a
    subclass of it.
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
        yield from (each.name for each in installed(self.group) if each.name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def find(self, key: str, name: str) -> T:
        """The part that a setting or an argument names; raises ``ConfigError`` with those that there are."""
        self.check(key, name)
        return self[name]

    def check(self, key: str, name: str) -> None:
        """Raise ``ConfigError`` where there is no part of that name, as ``find``, but load nothing."""
        if name not in self:
            raise ConfigError(f"{key}={name!r}: {self.choices()}")

    def choices(self) -> str:
        """List the names for an error message: ``choose one of 'a', 'b'``."""
        return f"choose one of {', '.join(map(repr, self))}"

    def _load(self, name: str) -> T:
        """Import a part; ``ConfigError``: it fails, or is no ``kind``; ``KeyError``: there is none."""
        if name in self._own:
            part: T = _import_attribute(self._own[name])
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
            kind = _import_attribute(self._kind)
            if not isinstance(found, kind) and not (isinstance(found, type) and issubclass(found, kind)):
                raise ConfigError(
                    f"{self.group}: {name!r} of an installed package is {each.value}, which is no {kind.__name__}; "
                    "derive it from that, or remove the package"
                )
            return found
        raise KeyError(name)


def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group in the packages that are installed now."""
    return installed_by_group().get(group, ())


def installed_by_group() -> Mapping[str, tuple[EntryPoint, ...]]:
    """All entry points of veilgraph's groups in the packages that are installed now, of each group by name."""
    return _cached_entry_points(tuple((each, _changed_at(Path(each))) for each in sys.path))


@lru_cache(8)
def _cached_entry_points(path: tuple[tuple[str, int], ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Find entry points; cached while ``path``, the folders of ``sys.path`` and their times, is the same.

    Every look through the packages' files takes tens of milliseconds, so one look is for all groups.
    """
    found = entry_points()
    ours = (group for group in found.groups if group.startswith("veilgraph."))
    by_group = {group: sorted(found.select(group=group), key=lambda each: each.name) for group in ours}
    return MappingProxyType({group: tuple(parts) for group, parts in by_group.items()})


def _changed_at(folder: Path) -> int:
    """When something was put into a folder or taken from it, in ns; 0 where there is none."""
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


def _import_attribute(place: str) -> Any:  # noqa: ANN401 - whatever is there
    module, _, attribute = place.partition(":")
    return getattr(import_quickly(module), attribute)


PartyName = Annotated[PartyId, Field(pattern=NAME_PATTERN)]


class Exact(BaseModel):
    """Base of messages between parties or processes, and of records: frozen, no unknown keys, no other types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Settings(BaseModel):
    """Base of settings: frozen; unknown keys, infinities and NaN are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_slips(cls, content: object) -> object:
        """Refuse a bool for a field that takes none, and name the likely field for an unknown key that is close."""
        for name, value in content.items() if isinstance(content, Mapping) else ():
            field = cls.model_fields.get(name)
            if field is None and (near := get_close_matches(str(name), cls.model_fields, 1)):
                raise PydanticCustomError(NEAR, "no setting", {"name": name, "value": value, "near": near[0]})
            if isinstance(value, bool) and field is not None and not _allows_bool(field.annotation):
                raise ValueError(f"{name}={value}: must be no truth value, as which YAML reads yes, no, on and off too")
        return content


def meanings(model: type[BaseModel]) -> dict[str, str]:
    """Return field → the docstring under it in the source, on one line, for a settings class and its bases."""
    found = dict[str, str]()
    for each in reversed(model.__mro__):
        if issubclass(each, Settings):
            (made,) = ast.parse(inspect.getsource(each)).body
            for field, text in pairwise(made.body if isinstance(made, ast.ClassDef) else ()):
                said = text.value if isinstance(text, ast.Expr) else None
                if isinstance(field, ast.AnnAssign) and isinstance(said, ast.Constant):
                    found[ast.unparse(field.target)] = " ".join(str(said.value).split())
    return found


def _allows_bool(annotation: object) -> bool:
    if annotation in (Any, object) or isinstance(annotation, bool) or annotation is bool:
        return True
    return any(_allows_bool(part) for part in get_args(annotation))


def named_in(parts: Registry[Any]) -> AfterValidator:
    """Return a pydantic validator of a field that names one of ``parts``; it loads none of them."""

    def check(name: str) -> str:
        if name not in parts:
            raise ValueError(parts.choices())
        return name

    return AfterValidator(check)


S = TypeVar("S", bound=Settings)


def settings_in(parts: Registry[Any], base: type[S], key: str) -> Callable[[Mapping[str, object]], S]:
    """Return a reader that validates a mapping as the settings of the part that its ``key`` names, else as ``base``."""

    def read(said: Mapping[str, object]) -> S:
        name = said.get(key, base.model_fields[key].default)
        found: S = (parts[name].settings if isinstance(name, str) and name in parts else base).model_validate(said)
        return found

    return read


def read_by(read: Callable[[Mapping[str, object]], Settings]) -> BeforeValidator:
    """Return a pydantic validator that turns a field's mapping into settings by ``read``; other values pass."""
    return BeforeValidator(lambda said: read(said) if isinstance(said, Mapping) else said)


@contextmanager
def config_errors(source: str, way_out: str = "") -> Iterator[None]:
    """Turn a ``ValidationError`` in the block into a ``ConfigError`` of the first broken key, its value and rule."""
    try:
        yield
    except ValidationError as error:
        key, value, words = problem_of(error)
        raise ConfigError(f"{source}: {words}{way_out}", key=key, value=value) from error
