"""Job files: read by the settings of the paradigm that they name, which are loaded without what the paradigm does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from veilgraph.core.errors import ConfigError
from veilgraph.core.registry import Registry
from veilgraph.core.settings import unsettled
from veilgraph.core.yaml_file import read_yaml
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.preset import Choice, chosen

JOBS: Final[Registry[type[JobSettings]]] = Registry(
    "veilgraph.jobs",
    {
        "vertical": "veilgraph.paradigms.vertical.settings:VerticalJob",
        "horizontal": "veilgraph.paradigms.horizontal.settings:HorizontalJob",
        "node-dp": "veilgraph.paradigms.node_dp.settings:NodeDpJob",
        "sealed": "veilgraph.paradigms.sealed.settings:SealedJob",
        "averaging": "veilgraph.paradigms.averaging.settings:AveragingJob",
    },
    kind="veilgraph.protocol.job:JobSettings",
)
"""Paradigm → the settings of its jobs."""
DEFAULT_PARADIGM: Final = "vertical"
"""Of a job that names none."""


def parse_job(data: object, source: str = "job") -> JobSettings:
    """Validates settings that came from YAML or a dictionary; what they leave out comes from their preset.

    Returns:
        Those of the paradigm that they name.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    return parse_chosen(data, source)[0]


def parse_chosen(data: object, source: str = "job") -> tuple[JobSettings, list[Choice]]:
    """As ``parse_job``, and what the preset chose."""
    kind, content = said_in(data, source)
    try:
        settings = kind.model_validate(content)
    except ValidationError as error:
        raise unsettled(error, source) from error
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error
    return settings, chosen(content, kind.offered(content), settings)


def said_in(data: object, source: str = "job") -> tuple[type[JobSettings], dict[str, Any]]:
    """Return the settings class of a job's paradigm and the job's own keys, not validated yet.

    Raises:
        ConfigError: ``data`` is not a mapping, is a party file, or names an unknown paradigm.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a job is a mapping of settings, not {type(data).__name__}; see docs/jobs.md")
    if "party" in data:
        raise ConfigError(f"{source}: party={data['party']!r}: a party file is no job; use veilgraph data check for it")
    name = data.get("paradigm", DEFAULT_PARADIGM)
    if not isinstance(name, str) or name not in JOBS:
        raise ConfigError(f"{source}: paradigm={name!r}: {JOBS.choices()}")
    return JOBS[name], {**data, "paradigm": name}


def Job(**settings: object) -> JobSettings:  # noqa: N802 - it is called as the class of its result would be
    """A job of any paradigm, from its settings: ``Job(paradigm="horizontal", data={"dataset": "cora"})``.

    Args:
        settings: those of a job file, groups as mappings; what is left out has its default (docs/settings.md).

    Returns:
        The settings of the paradigm that they name, validated; frozen.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    return parse_job(settings)


def read_job(path: Path) -> JobSettings:
    """Reads and validates a job file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks a rule.
    """
    data = read_yaml(path, "job file")
    return parse_job({} if data is None else data, str(path))
