"""The job files that come with the package, one for each data set and purpose.

They are the one place that holds hyper-parameters; experiments change nothing in them but what they compare.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from typing import Any, Final

from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job

_SUFFIX: Final = ".yaml"


def shipped_jobs() -> tuple[str, ...]:
    """Names of the shipped jobs, sorted: the files' names without their suffix."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in _folder().iterdir() if _is_job(file)))


def shipped_job(name: str) -> JobSettings:
    """Read one of the shipped jobs; ``ConfigError``, which names those that there are, for another name."""
    if name not in shipped_jobs():
        raise ConfigError(
            f"job {name!r} is not shipped; choose from {', '.join(shipped_jobs())}", key="job", value=name
        )
    with as_file(_folder() / f"{name}{_SUFFIX}") as path:
        return read_job(path)


def with_overrides(settings: JobSettings, overrides: Mapping[str, object]) -> JobSettings:
    """A job with some settings, by dotted key such as ``model.combine.strategy``, replaced, and validated again.

    Raises ``ConfigError``: a key does not exist, or the changed job breaks a rule.
    """
    if "preset" in overrides and overrides["preset"] != settings.preset:
        raise ConfigError(
            f"override preset={overrides['preset']!r}: a preset is for what a job leaves out, and {settings.name} says "
            "every key by now; say it in the job file",
            key="preset",
            value=overrides["preset"],
        )
    content = replaced(settings.model_dump(mode="json"), overrides)
    return parse_job(content, f"{settings.name} with overrides")


def replaced(content: Mapping[str, Any], overrides: Mapping[str, object], *, whole: bool = True) -> dict[str, Any]:
    """Copy a job's content with some settings, by dotted key, replaced; nothing is validated.

    ``whole``: the content has all groups, so a missing one is refused and not made. Raises ``ConfigError``: a key goes
    into what is no group.
    """
    found = copy.deepcopy(dict(content))
    for key, value in overrides.items():
        *groups, last = key.split(".")
        place = found
        for group in groups:
            inner = place.get(group) if whole else place.setdefault(group, {})
            if not isinstance(inner, dict):
                none = (
                    f"the job has no {group}: write all of it into the job file (veilgraph init --protect does privacy)"
                )
                why = none if group in place and inner is None else f"{group} is not a group of settings; mend the key"
                raise ConfigError(f"override {key}={value!r}: {why}", key=key, value=value)
            place = inner
        place[last] = value
    return found


def _folder() -> Traversable:
    return files("veilgraph.samples") / "jobs"


def _is_job(file: Traversable) -> bool:
    return file.name.endswith(_SUFFIX) and not file.name.startswith(".")


def demo_settings(name: str = "digits", epochs: int | None = None) -> JobSettings:
    """The shipped job that is demonstrated, with another number of epochs if one is given."""
    settings = shipped_job(name)
    return settings if epochs is None else with_overrides(settings, {"train.epochs": epochs})
