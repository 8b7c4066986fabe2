"""``comparison.json`` and the job that it is of, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from veilgraph.comparison.study import ABOUT, FOUND
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.settings import first_problem
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job


class Number(BaseModel):
    """A figure with its 95 % interval; None where it is undefined."""

    value: float | None
    low: float | None
    high: float | None


class Way(BaseModel):
    """One way; as ``comparison.study.Line``."""

    name: str
    shares: str
    about: str
    figures: Mapping[str, Number]
    gain: Mapping[str, Number] | None
    to_job: Mapping[str, Number] | None


class Told(BaseModel):
    """What a comparison found; as ``comparison.study.Study.record``."""

    paradigm: str
    seeds: tuple[int, ...]
    test_nodes: tuple[int, ...]
    recall_at: float
    recall_of: str = "class 1"
    at_home: str
    over_home: Number | None
    ways: tuple[Way, ...]

    def way(self, name: str) -> Way | None:
        """The way of a name; None where there is none."""
        return next((way for way in self.ways if way.name == name), None)


@dataclass(frozen=True)
class Compared:
    """A comparison's directory: what it is of, and what it found."""

    path: Path
    job: JobSettings
    told: Told


def is_comparison(path: Path) -> bool:
    """Whether a directory is a comparison's."""
    return (path / ABOUT).is_file() and not (path / "job.yaml").exists()


def read_comparison(path: Path) -> Compared:
    """Reads a comparison.

    Raises:
        RunError: it is not complete, damaged, or of an earlier version.
    """
    again = f"finish it with: veilgraph compare JOB.yaml --out {path}"
    file = path / FOUND
    if not file.is_file():
        raise RunError(f"{path}: this comparison is not complete; {again}", key="run", value=str(path))
    try:
        about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
        return Compared(path, parse_job(about["job"]), Told.model_validate_json(file.read_bytes()))
    except ValidationError as error:
        raise RunError(
            f"{file}: not a comparison of this version ({first_problem(error)}); {again}", key="run"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise RunError(f"{path}: damaged ({error}); {again}", key="run") from error
