"""The demonstration's job."""

from __future__ import annotations

from typing import Final

from veilgraph.protocol.job import JobSettings
from veilgraph.samples.shipped import shipped_job, with_overrides

DEMO_JOB: Final = "digits"
"""Name of the shipped job that is demonstrated."""


def demo_settings(epochs: int | None = None) -> JobSettings:
    """The demonstration's job, with another number of epochs if one is given."""
    settings = shipped_job(DEMO_JOB)
    return settings if epochs is None else with_overrides(settings, {"train.epochs": epochs})
