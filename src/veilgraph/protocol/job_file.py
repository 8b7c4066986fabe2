"""Job files: read by the settings of the paradigm that they name, which are loaded without what the paradigm does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from veilgraph.core.errors import ConfigError
from veilgraph.core.registry import Registry
from veilgraph.core.settings import Settings, first_problem, unsettled
from veilgraph.core.yaml_file import read_yaml
from veilgraph.protocol.job import JobSettings

JOBS: Final[Registry[type[JobSettings]]] = Registry(
    "veilgraph.jobs",
    {
        "vertical": "veilgraph.paradigms.vertical.settings:VerticalJob",
        "horizontal": "veilgraph.paradigms.horizontal.settings:HorizontalJob",
        "local": "veilgraph.paradigms.node_dp.settings:NodeDpJob",
    },
    kind="veilgraph.protocol.job:JobSettings",
)
"""Paradigm → the settings of its jobs."""


def parse_job(data: object, source: str = "job") -> JobSettings:
    """Validates settings that came from YAML or a dictionary.

    Returns:
        Those of the paradigm that they name.

    Raises:
        ConfigError: names the first broken key, its value and the rule.
    """
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: a job is a mapping of settings, not {type(data).__name__}; see the README's job")
    name = data.get("paradigm", "vertical")
    if not isinstance(name, str) or name not in JOBS:
        raise ConfigError(f"{source}: paradigm={name!r}: {JOBS.choices()}")
    try:
        return JOBS[name].model_validate(_without_others(data, name))
    except ValidationError as error:
        raise unsettled(error, source) from error
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from error


def _without_others(data: dict[Any, Any], name: str) -> dict[Any, Any]:
    """The settings less other paradigms' networks, which a job file may have as long as they say nothing.

    Raises:
        ValueError: one says something.
    """
    own, kept = JOBS[name].model_fields, dict(data)
    for other in JOBS if kept.keys() - own.keys() else ():
        fields = JOBS[other].model_fields if other != name else {}
        for key in (key for key in fields if key in kept and key not in own):
            default, said = fields[key].get_default(call_default_factory=True), kept.pop(key)
            if isinstance(default, Settings):
                try:
                    said = type(default).model_validate(said)
                except ValidationError as error:
                    raise ValueError(f"{key}.{first_problem(error)}") from error
            if said != default:
                raise ValueError(f"{key} is not the network of paradigm={name!r}; leave it out")
    return kept


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
