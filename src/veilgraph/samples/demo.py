"""The demonstrations: two of the shipped jobs."""

from __future__ import annotations

from veilgraph.protocol.job import JobSettings
from veilgraph.samples.shipped import shipped_job, with_overrides


def demo_settings(name: str = "digits", epochs: int | None = None) -> JobSettings:
    """The shipped job that is demonstrated, with another number of epochs if one is given."""
    settings = shipped_job(name)
    return settings if epochs is None else with_overrides(settings, {"train.epochs": epochs})
