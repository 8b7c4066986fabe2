"""A horizontal job (SAPGNN): holders of the same columns, of nodes of which some may be the same."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.nn.horizontal_settings import HorizontalSettings
from veilgraph.protocol.job import JobSettings


class HorizontalJob(JobSettings):
    """Holders have the same columns of different nodes, with edges and labels of their own."""

    paradigm: Literal["horizontal"] = "horizontal"
    horizontal: HorizontalSettings = Field(HorizontalSettings(), description="the network of the horizontal paradigm")

    def _check_unused(self) -> None:
        super()._check_unused()
        self._check_horizontal()

    def _check_parts(self) -> None:
        """They are for this paradigm."""

    def _check_horizontal(self) -> None:
        if self.train.class_weights != "none" or self.train.select_by == "auc":
            raise ValueError(
                "train.class_weights=balanced and train.select_by=auc do not follow from sums over the holders, and "
                "these are all that they open; choose none, and accuracy, f1 or loss"
            )

    @property
    def is_aligned(self) -> bool:
        return False

    @property
    def exchanges(self) -> tuple[str, int]:
        return "horizontal.layers", self.horizontal.layers

    @property
    def scoring(self) -> tuple[PartyId, ...]:
        return self.data.names


def horizontal(job: JobSettings) -> HorizontalJob:
    """A job as what it is.

    Raises:
        ConfigError: it is of another paradigm.
    """
    if not isinstance(job, HorizontalJob):
        raise ConfigError(f"paradigm={job.paradigm}: this is about jobs of paradigm horizontal; give one of these")
    return job
