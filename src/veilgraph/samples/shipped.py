"""The job files that come with the package, one for each data set and purpose.

They are the one place that holds hyper-parameters; experiments change nothing in them but what they compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from typing import Any, Final

from veilgraph.core.errors import ConfigError
from veilgraph.core.former import moved_key, note
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job

_SUFFIX: Final = ".yaml"


def shipped_jobs() -> tuple[str, ...]:
    """Names of the shipped jobs, sorted: the files' names without their suffix."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _folder().iterdir() if _is_job(file)))


def shipped_job(name: str) -> JobSettings:
    """Reads one of the shipped jobs.

    Raises:
        ConfigError: there is no such job; the message names those there are.
    """
    if name not in shipped_jobs():
        raise ConfigError(
            f"job {name!r} is not shipped; choose from {', '.join(shipped_jobs())}", key="job", value=name
        )
    with as_file(_folder() / f"{name}{_SUFFIX}") as path:
        return read_job(path)


def with_overrides(settings: JobSettings, overrides: Mapping[str, object]) -> JobSettings:
    """The job with some settings replaced, and validated again.

    Args:
        settings: the job; itself left as it is.
        overrides: dotted key, such as ``model.combine.strategy``, → its new value.

    Raises:
        ConfigError: a key does not exist, or the changed job breaks a rule.
    """
    content: dict[str, Any] = settings.model_dump(mode="json")
    for key, value in overrides.items():
        now = moved_key(key, settings.former)
        if now != key:
            note(key, now, settings.name)
        *groups, last = now.split(".")
        place = content
        for group in groups:
            inner = place.get(group)
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"override {key}={value!r}: {group} is not a group of settings; mend the key", key=key, value=value
                )
            place = inner
        place[last] = value
    return parse_job(content, f"{settings.name} with overrides")


def _folder() -> Traversable:
    return files("veilgraph.samples") / "jobs"


def _is_job(file: Traversable) -> bool:
    return file.name.endswith(_SUFFIX) and not file.name.startswith(".")
