"""What a round of private training does: an event for the accountant, and who makes its noise together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event, Neighbours, Unit, check_positive, check_whole

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


@dataclass(frozen=True)
class Joint:
    """Who makes the noise of a sum together: each adds a share, and what is opened has what one ε needs.

    Of P holders up to t may work with whoever opens the sum: they know their own noise, or add none. Each holder adds
    Gaussian noise of standard deviation τ = σC/√(P - t) to its clipped rows, so the noise of any k = P - t others, the
    honest ones, is σC together. A holder's rows are then protected by the Gaussian mechanism with σ, **in that sum and
    nowhere else**. No share is ever used twice: docs/explanation/proofs.md#joint-noise.

    Raises ``ConfigError`` unless 0 ≤ t ≤ P − 2: with fewer than two others' noise there is nothing to share.
    """

    holders: int
    colluding: int

    def __post_init__(self) -> None:
        most = self.holders - 2
        whole = all(type(each) is int for each in (self.holders, self.colluding))
        if not whole or not 0 <= self.colluding <= most:
            way_out = "leave joint_noise out"
            if most >= 0:
                way_out = f"set it to at most {most}, or {way_out}, and each adds all of it, which withstands them all"
            raise ConfigError(
                f"privacy.joint_noise.colluding={self.colluding} and {self.holders} holders publish: at least two "
                f"beside those must make the noise; {way_out}",
                value=self.colluding,
            )

    @property
    def honest(self) -> int:
        """P − t, how many holders' noise is enough."""
        return self.holders - self.colluding

    @property
    def share(self) -> float:
        """Standard deviation of one holder's noise over that of the sum that its ε needs: 1/√(P − t)."""
        return 1 / math.sqrt(self.honest)


@dataclass(frozen=True, slots=True)
class SampledEvent(Event):
    """One step of DP-SGD in which one node is in at most so many of the terms that may be sampled.

    A *term* is a vector of length at most C. One step draws every term by itself with probability q, adds up those that
    were drawn, and adds noise N(0, σ²C²·I). Take two neighbouring data sets, and let the terms that differ be a_1 … a_m
    with the one and b_1 … b_n with the other (a term that is in both and differs is one a and one b).

    No two such steps are easier to tell apart than P° = Σ Bin(j; m, q)·N(jC, σ²C²) from Q° = Σ Bin(k; n, q)·N(−kC,
    σ²C²): docs/explanation/proofs.md#sampled-steps.

    A term is of one training node, and made of what is within K hops of it, of N nodes at most (``terms``, ``reach``).
    With ``zero-out`` a node's own term is there or not, and the N − 1 others are there and differ: m = N, n = N − 1.
    With ``replacement`` its own differs, and those near it in either data set: m = n = 2N − 1. ``unit`` is a node's
    features, label and edges, and that it is trained on.
    """

    kind: ClassVar[str] = "sampled"
    is_numeric: ClassVar[bool] = True
    units: ClassVar[tuple[Unit, ...]] = ("node-edges",)
    noise_multiplier: float
    sampling_rate: float
    terms: int
    neighbours: Neighbours = "zero-out"
    unit: Unit = "node-edges"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_positive("noise_multiplier", self.noise_multiplier)
        check_positive("sampling_rate", self.sampling_rate, most=1.0)
        check_positive("terms", check_whole("terms", self.terms, 1), most=2.0**31)

    @property
    def removed(self) -> int:
        """m, how many terms of one data set differ or are missing in its neighbour."""
        return self.terms if self.neighbours == "zero-out" else 2 * self.terms - 1

    @property
    def inserted(self) -> int:
        """n, how many terms of the neighbour differ or are missing in the first."""
        return self.terms - 1 if self.neighbours == "zero-out" else 2 * self.terms - 1

    @override
    def gaussian_bound(self, releases: int) -> float:
        """Return μ of a Gaussian release that tells no less: the steps with all terms drawn, q = 1."""
        return math.sqrt(releases) * (self.removed + self.inserted) / self.noise_multiplier

    @override
    def interval(self, finest: float) -> float:
        from veilgraph_averaging.private.mixture import interval_of  # noqa: PLC0415 - loads dp_accounting

        return interval_of(self.noise_multiplier, self.sampling_rate, self.removed, self.inserted, finest)

    @override
    def distribution(self, interval: float) -> PrivacyLossDistribution:
        from veilgraph_averaging.private.mixture import distribution_of  # noqa: PLC0415 - as above

        return distribution_of(self.noise_multiplier, self.sampling_rate, self.removed, self.inserted, interval)


@dataclass(frozen=True, slots=True)
class JointSampledEvent(SampledEvent):
    """A sampled step whose noise holders make together (``Joint``); ``holders``: the fewest that an opened sum has."""

    kind: ClassVar[str] = "joint-sampled"
    holders: int = 2
    colluding: int = 0

    def __post_init__(self) -> None:
        SampledEvent.__post_init__(self)
        Joint(self.holders, self.colluding)


def reach(hops: int, degree_bound: int) -> int:
    """N = 1 + D + D(D − 1) + … + D(D − 1)^(K−1): the most nodes within K ≥ 0 hops of one, with degrees up to D ≥ 1."""
    further: int = degree_bound - 1
    return 1 + sum(degree_bound * int(further**hop) for hop in range(hops))
