"""What a party file says of any file of a table, whatever is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer

from veilgraph.core.settings import Settings

SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")


def _check_suffix(path: Path) -> Path:
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"a table is a file ending in {', '.join(SUFFIXES)}; convert it")
    return path


TablePath = Annotated[Path, AfterValidator(_check_suffix), Field(description="relative to the party file's folder")]


class GrownSettings(Settings):
    """Settings that are part of a digest which was made before some of their keys were there.

    Such keys, ``later``, are left out of it while they say nothing, so that a party file of old keeps its digest.
    """

    later: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_what_is_not_said(self, all_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        stated: dict[str, Any] = all_of(self)
        fields = type(self).model_fields
        unsaid = {key for key in self.later if getattr(self, key) == fields[key].get_default()}
        return {key: value for key, value in stated.items() if key not in unsaid}


class IdSettings(Settings):
    """How ids are written alike before any two are compared: those of nodes, labels and edges."""

    strip: bool = Field(False, description="without white space at either end")
    lower: bool = Field(False, description="in lower case, by Unicode's rules")
