"""A job, in whatever form it is given."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from veilgraph.core.errors import ConfigError
from veilgraph.core.given import path_of, wrong_type
from veilgraph.core.types import PartyId
from veilgraph.core.yaml_file import read_yaml
from veilgraph.graph.settings import DEFAULT_DATASET, DESCRIPTIONS
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.arguments import check_job
from veilgraph.run.given import GivenParties, by_name
from veilgraph.samples.shipped import shipped_job, shipped_jobs

Job: TypeAlias = "JobSettings | Mapping[str, object] | str | Path"
"""A job, its settings, the path of its file, or the name of a shipped one."""

_SUFFIXES: Final = (".yaml", ".yml")
_BROUGHT: Final = ("dataset", "graphs", "parties")
_SOURCES: Final = (*_BROUGHT, "holders")
"""Keys of ``data`` that say who the holders are."""
_OF_DATA: Final = (
    "dataset",
    *DESCRIPTIONS,
    "root",
    "graphs",
    "parties",
    "feature_proportions",
    "edge_proportions",
    "split",
)
"""Settings of ``data`` that are of no use beside ``parties=``."""


def settings_of(job: Job, holders: Sequence[PartyId] | None = None) -> JobSettings:
    """Those of a job, however it is given.

    Args:
        job: see ``Job``.
        holders: those that bring their own data, which a job that is not parsed yet need not name.

    Raises:
        ConfigError: it is of another type, there is no such file, or a setting breaks a rule.
    """
    if isinstance(job, JobSettings):
        check_job(job, "job")
        return job
    if isinstance(job, Mapping):
        return parse_job(_with_holders(job, holders))
    if not isinstance(job, str | os.PathLike):
        way_out = "give vg.Job(...), a dict of settings, the path of a YAML file, or the name of a shipped job"
        raise wrong_type("job", job, "a job", way_out)
    path = path_of("job", job, "a job file")
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises where a text is too long for a path
        return _shipped(str(job), path)
    content = read_yaml(path, "job file")
    return parse_job(_with_holders({} if content is None else content, holders), str(path))


def settings_beside(job: Job, parties: GivenParties | None) -> JobSettings:
    """Those of a job whose holders bring their own data.

    Args:
        job: see ``Job``.
        parties: what they bring; None: what the job names.

    Raises:
        ConfigError: as ``settings_of``; or the job names data too.
    """
    names = None if parties is None else list(by_name(parties, None))
    settings = settings_of(job, names)
    if names is not None:
        _check_no_other_data(settings, len(names))
    return settings


def read_job(path: str | Path) -> JobSettings:
    """Reads and validates a job file, or the shipped job of that name (``cora``, as in the folder ``jobs``).

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    return settings_of(path_of("path", path, "a job file"))


def _shipped(name: str, path: Path) -> JobSettings:
    if name in shipped_jobs():
        return shipped_job(name)
    found = "a directory" if os.path.isdir(path) else "no file"  # noqa: PTH112 - as above
    raise ConfigError(
        f"job={name!r} is {found}, and no shipped job; give the path of a YAML file (of a run, its job.yaml) or "
        f"one of {', '.join(shipped_jobs())}",
        code="no-such-job",
        key="job",
        value=name,
    )


def _with_holders(content: object, holders: Sequence[PartyId] | None) -> Any:  # noqa: ANN401 - what parse_job judges
    """A job's settings with the holders that bring their own data, where it names neither these nor other data."""
    if holders is None or not isinstance(content, Mapping):
        return content if not isinstance(content, Mapping) else dict(content)
    data = content.get("data")
    stated = {} if data is None else data
    if not isinstance(stated, Mapping) or any(stated.get(key) is not None for key in _SOURCES):
        return dict(content)
    return {**content, "data": {**stated, "holders": list(holders)}}


def _check_no_other_data(job: JobSettings, holders: int) -> None:
    """Refuses a job that says where its data come from, or how they are divided, beside holders that bring theirs.

    The default data set says nothing: it is in every job that names none.

    Raises:
        ConfigError: names the setting.
    """
    for key in _OF_DATA:
        value = getattr(job.data, key)
        if value is not None and (key, value) != ("dataset", DEFAULT_DATASET):
            raise ConfigError(
                f"data.{key}: the job names it, and parties= brings the data in its place; leave one of them out "
                "(a job without: vg.Job(**{**job.model_dump(), 'data': {}}))",
                code="other-data",
                key=f"data.{key}",
                value=value,
            )
    stated = job.data.holders
    if "holders" in job.data.model_fields_set and isinstance(stated, int) and stated != holders:
        raise ConfigError(
            f"data.holders={stated}: parties= brings {holders}; give as many, or leave data.holders out",
            code="other-holders",
            key="data.holders",
            value=stated,
        )
