"""From a job's settings to the local mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.local.additive import AnalyticGaussian, LocalLaplace
from veilgraph.privacy.local.features import FeatureMechanism
from veilgraph.privacy.local.multi_bit import MultiBit, one_bit
from veilgraph.privacy.local.settings import FeatureReleaseSettings

_Build = Callable[[FeatureReleaseSettings, int], FeatureMechanism]

FEATURE_MECHANISMS: Final[Mapping[str, _Build]] = {
    "multi-bit": lambda of, d: MultiBit(of.epsilon, of.low, of.high, d, of.sampled),
    "one-bit": lambda of, d: one_bit(of.epsilon, of.low, of.high, d),
    "gaussian": lambda of, d: AnalyticGaussian(of.epsilon, of.low, of.high, d, _delta(of)),
    "laplace": lambda of, d: LocalLaplace(of.epsilon, of.low, of.high, d),
}
"""The mechanisms by the name that the settings use."""


def feature_mechanism(settings: FeatureReleaseSettings, features: int) -> FeatureMechanism:
    """What perturbs a node's features.

    Args:
        settings: of the job.
        features: d, the holder's columns.

    Raises:
        ConfigError: ``sampled`` exceeds d, or ε is too small to be drawn.
    """
    return FEATURE_MECHANISMS[settings.mechanism](settings, features)


def _delta(settings: FeatureReleaseSettings) -> float:
    if settings.delta is None:
        raise ConfigError("delta: mechanism='gaussian' needs a δ; give one")
    return settings.delta
