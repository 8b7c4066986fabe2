"""A local job (LPGNN): nodes perturb their features by themselves, for one holder that knows the graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.nn.local_settings import LabelReleaseSettings, LocalSettings
from veilgraph.privacy.local.settings import FeatureReleaseSettings
from veilgraph.protocol.job import JobSettings


class NodeDpJob(JobSettings):
    """The label holder learns; every other holder's nodes release their features once."""

    paradigm: Literal["local"] = "local"
    local: LocalSettings = Field(LocalSettings(), description="the local paradigm: what is released, and the network")

    def _check_unused(self) -> None:
        super()._check_unused()
        self._check_local()

    def _check_local(self) -> None:
        labels = self.local.labels
        if self.local.features is None:
            raise ValueError(
                "paradigm='local' needs local.features, which says how nodes release theirs; give at least its epsilon"
            )
        if self.data.feature_scaling != "none":
            raise ValueError(
                f"data.feature_scaling={self.data.feature_scaling!r} computes with values that nodes keep to "
                "themselves; set it to none, and local.features.low and high to the range of the values as they are"
            )
        if labels is None:
            return
        if labels.holder not in self.releasing:
            raise ValueError(
                f"local.labels.holder={labels.holder!r} is not one of the holders that release, "
                f"{', '.join(self.releasing)}; name one of them"
            )
        if self.train.class_weights != "none":
            raise ValueError(
                "train.class_weights=balanced needs the true labels' shares, and with local.labels they are private; "
                "set it to none"
            )

    @property
    def learns_alone(self) -> bool:
        return True

    @property
    def releasing(self) -> tuple[PartyId, ...]:
        """All but the one that learns."""
        return tuple(name for name in self.data.names if name != self.data.label_party)

    @property
    def learning(self) -> tuple[PartyId, ...]:
        """The label holder alone."""
        return (self.data.label_party,)

    @property
    def feature_release(self) -> FeatureReleaseSettings | None:
        return self.local.features

    @property
    def release_setting(self) -> str:
        return "local.features"

    @property
    def label_release(self) -> LabelReleaseSettings | None:
        return self.local.labels


def node_dp(job: JobSettings) -> NodeDpJob:
    """A job as what it is.

    Raises:
        ConfigError: it is of another paradigm.
    """
    if not isinstance(job, NodeDpJob):
        raise ConfigError(f"paradigm={job.paradigm}: this is about jobs of paradigm local; give one of these")
    return job
