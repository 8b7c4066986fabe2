"""One noisy sum of sampled, clipped terms, of which one node changes at most so many.

A *term* is a vector of length at most C. One step draws every term by itself with probability q, adds up those that
were drawn, and adds noise N(0, σ²C²·I). Take two neighbouring data sets, and let the terms that differ be a_1 … a_m
with the one and b_1 … b_n with the other (a term that is in both and differs is one a and one b).

*No two such steps are easier to tell apart than P° = Σ Bin(j; m, q)·N(jC, σ²C²) from Q° = Σ Bin(k; n, q)·N(−kC, σ²C²).*
Terms that do not differ are drawn alike, and given which, move both sums by the same vector: what can be told is no
more than for the worst of these vectors, so leave them out. Let R be any set of outcomes, and r with N(0, σ²C²I)(R) =
Φ(−r/σC). A shift by s brings the probability of R to at most Φ((|s| − r)/σC) and no less than Φ((−|s| − r)/σC), as a
half-space of the same probability (Neyman & Pearson). So with A the a's that are drawn, and B the b's,

    P(R) − α·Q(R) ≤ E Φ((C|A| − r)/σC) − α·E Φ((−C|B| − r)/σC) = P°(x > r) − α·Q°(x > r)

for every α ≥ 0, and the largest left side over R is at most the largest right side over r. ∎ Steps compose, though each
is chosen by the outcomes of those before (Zhu, Dong & Wang 2022, theorem 10). The bound is reached where all a point
one way and all b the other.

Had terms that differ been counted as one vector of length up to 2C that is there or not (P = Σ Bin(j; m, q)·N(2jC, ·)
against N(0, ·), as for terms that vanish), the result would be wrong: with m = n it is too small near ε = 0, and too
large at ε of use. Daigavane et al. 2021 (theorem 1) count as if the draws were shown, which is larger still.

*What one node changes.* A term is of one training node, and made of what is within K hops of it. Let no node have more
than D neighbours, and N = 1 + D + D(D − 1) + … + D(D − 1)^(K−1), so many nodes at most are within K hops of one. With
``zero-out`` a node's own term is there or not, and the N − 1 others are there and differ: m = N, n = N − 1. With
``replacement`` its own differs, and those near it in either data set: m = n = 2N − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event
from veilgraph.privacy.joint import Joint
from veilgraph.privacy.units import Neighbours, Unit

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


def reach(hops: int, degree_bound: int) -> int:
    """N: how many nodes at most are within K hops of one, itself among them.

    Args:
        hops: K ≥ 0.
        degree_bound: D ≥ 1, the most neighbours of any node.
    """
    further: int = degree_bound - 1
    return 1 + sum(degree_bound * int(further**hop) for hop in range(hops))


@dataclass(frozen=True, slots=True)
class SampledEvent(Event):
    """One step of DP-SGD in which one node is in at most so many of the terms that may be sampled.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the clip C of a term.
        sampling_rate: q, with which every term is drawn by itself.
        terms: N, how many a node can be in with the data as they are, its own among them.
        neighbours: the neighbouring relation.
        unit: a node's features, label and edges, and that it is trained on.

    Raises:
        ConfigError: a field is out of range, or the unit is another.
    """

    kind: ClassVar[str] = "sampled"
    is_numeric: ClassVar[bool] = True
    is_of_rows: ClassVar[bool] = False
    noise_multiplier: float
    sampling_rate: float
    terms: int
    neighbours: Neighbours = "zero-out"
    unit: Unit = "node-edges"

    def __post_init__(self) -> None:
        whole = isinstance(self.terms, int) and not isinstance(self.terms, bool)
        rules = (
            ("noise_multiplier", _above_zero(self.noise_multiplier, math.inf), "a finite number > 0"),
            ("sampling_rate", _above_zero(self.sampling_rate, 1.0), "a number above 0 and at most 1"),
            ("terms", whole and _above_zero(self.terms, 2.0**31), "a whole number from 1 on, as it counts terms"),
            ("neighbours", self.neighbours in get_args(Neighbours), f"one of {', '.join(get_args(Neighbours))}"),
            ("unit", self.unit == "node-edges", "node-edges: a term is of all that a node has"),
        )
        for name, holds, rule in rules:
            if not holds:
                value = getattr(self, name)
                raise ConfigError(f"{name}={value!r} of an event must be {rule}", key=name, value=value)

    @property
    def removed(self) -> int:
        """m, terms of the one data set that differ or are missing in the other."""
        return self.terms if self.neighbours == "zero-out" else 2 * self.terms - 1

    @property
    def inserted(self) -> int:
        """n, terms of the other that do."""
        return self.terms - 1 if self.neighbours == "zero-out" else 2 * self.terms - 1

    @override
    def gaussian_bound(self, releases: int) -> float:
        """See ``Event.gaussian_bound``: P°(x > r) − α·Q°(x > r) is largest where every term is drawn."""
        return math.sqrt(releases) * (self.removed + self.inserted) / self.noise_multiplier

    @override
    def interval(self, finest: float) -> float:
        from veilgraph.privacy.mixture import interval_of  # noqa: PLC0415 - loads dp_accounting

        return interval_of(self.noise_multiplier, self.sampling_rate, self.removed, self.inserted, finest)

    @override
    def distribution(self, interval: float) -> PrivacyLossDistribution:
        from veilgraph.privacy.mixture import distribution_of  # noqa: PLC0415 - as above

        return distribution_of(self.noise_multiplier, self.sampling_rate, self.removed, self.inserted, interval)


@dataclass(frozen=True, slots=True)
class JointSampledEvent(SampledEvent):
    """The same where several holders make the noise together (``joint``), against those that it withstands.

    Args:
        noise_multiplier: σ of what all but those that collude add together, of the fewest holders that a sum has.
        sampling_rate: as of ``SampledEvent``.
        terms: as of ``SampledEvent``.
        neighbours: as of ``SampledEvent``.
        unit: as of ``SampledEvent``.
        holders: how many holders' noise an opened sum has at least.
        colluding: t, how many of them may collude, or add none.

    Raises:
        ConfigError: as ``SampledEvent``, or not 0 ≤ t ≤ holders − 2.
    """

    kind: ClassVar[str] = "joint-sampled"
    holders: int = 2
    colluding: int = 0

    def __post_init__(self) -> None:
        SampledEvent.__post_init__(self)
        Joint(self.holders, self.colluding)


def _above_zero(value: object, most: float) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= most  # type: ignore[arg-type, operator]
