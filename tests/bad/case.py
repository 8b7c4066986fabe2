"""One kind of bad input to the command line, and what it has to work on."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Arguments = list[str | Path]


@dataclass(frozen=True)
class Material:
    """What cases spoil copies of.

    Attributes:
        tables: two organisations' tables in CSV, with ``job.yaml`` over them; ``parquet`` the same as Parquet.
        parquet: see there.
        run: a complete run of made data.
        aligned: a complete run from tables.
    """

    tables: Path
    parquet: Path
    run: Path
    aligned: Path


@dataclass(frozen=True)
class Case:
    """One kind of bad input.

    Attributes:
        name: of the case, of its own.
        prepare: writes what is needed into an empty folder, and gives the arguments of ``veilgraph``.
        out: what in that folder the command would make: it is not there afterwards, or a run that can be opened.
        says: what the error names, in any case of letters.
        changes: what in that folder may be other than before: a run in which parties have begun keeps its records.
    """

    name: str
    prepare: Callable[[Path], Arguments]
    out: str | None = None
    says: str = ""
    changes: str | None = None


def copied(source: Path, target: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(source, target))
