"""What every mechanism for a node's own features must do.

Needs pytest to run, and veilgraph-testing.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

import pytest
import torch
from torch import Tensor
from veilgraph_testing.mechanism import DELTA, check_event, check_source, check_worlds, fixed_source

from veilgraph.core.errors import DataError
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.accountant import per_step
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.mechanisms import FeatureMechanism, feature_mechanism

_GAMES: Final = 100_000


class FeatureMechanismConformance:
    """Tests of a mechanism for a node's own features. Inherit it and name one that is installed or one of ours.

    Attributes:
        name: as jobs have it.
        said: what a job says beside that and ε.
    """

    name: ClassVar[str]
    said: ClassVar[dict[str, Any]] = {}

    def make(self, epsilon: float = 2.0, features: int = 3) -> FeatureMechanism:
        """Make the mechanism under test, for features in [−1, 3]."""
        content = {"mechanism": self.name, "epsilon": epsilon, "low": -1.0, "high": 3.0, **self.said}
        settings = FeatureReleaseSettings.model_validate(content)
        return feature_mechanism(settings, features)

    def nodes(self, count: int = 40) -> Tensor:
        """Make the features of ``count`` equal nodes: Tensor[count, 3]."""
        return torch.tensor([[-1.0, 0.5, 3.0]]).expand(count, 3).clone()

    def test_its_event_is_of_a_node_and_costs_what_was_asked(self) -> None:
        for epsilon in (0.5, 4.0):
            event = self.make(epsilon).event()
            assert (event.unit, event.neighbours) == ("node", "replacement")
            check_event(event)
            delta = self.said.get("delta", DELTA)
            assert 0.98 * epsilon <= per_step(event, delta) <= epsilon * (1 + 1e-9)

    def test_its_noise_is_of_a_secret_source_alone(self) -> None:
        check_source(self.make().release, self.nodes())

    @pytest.mark.parametrize("wrong", [-1.001, 3.001, math.nan])
    def test_what_is_out_of_the_range_is_refused(self, wrong: float) -> None:
        x = self.nodes()
        x[3, 1] = wrong
        with pytest.raises(DataError):
            self.make().release(x, system_secrets)
        with pytest.raises(DataError):
            self.make().release(x[:, :2], system_secrets)

    def test_a_rectified_release_is_unbiased_with_the_variance_that_it_says(self) -> None:
        made, x = self.make(), self.nodes(60_000)
        before, rectified = x.clone(), made.rectify(made.release(x, fixed_source("rectified"))).to(torch.float64)
        assert torch.equal(x, before)
        assert rectified.shape == x.shape
        variance = made.variance(x[:1])[0]
        assert bool(((rectified.mean(0) - x[0]).abs() < 6 * (variance / len(x)).sqrt()).all())
        assert bool(((rectified.var(0) / variance - 1).abs() < 0.1).all())

    def test_neighbours_are_as_alike_as_the_event_says(self) -> None:
        made, source = self.make(1.0), fixed_source("neighbours")
        sums = [
            made.release(torch.full((_GAMES, 3), value), source).to_dense().double().sum(1) for value in (3.0, -1.0)
        ]
        check_worlds(sums[0], sums[1], made.event())
