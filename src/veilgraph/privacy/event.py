"""What one release did, written down: frozen events that the accountant composes later.

An event names its noise in units of the clip C, so it holds for any C, or the pure ε of local differential privacy,
and names what it protects: the unit (what one neighbouring step changes) and the neighbouring relation (how it
changes). Numbers of different units or relations say different things and are never added up.

``EVENTS`` finds one by the kind that a ledger names. A package adds its own, a subclass of ``Event``, by an entry point
of the group ``veilgraph.events``.

By hand: ``dp_accounting``'s ``DpEvent`` has no unit, no relation and no check, and a ledger would wait 0.9 s for it.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.registry import Registry
from veilgraph.privacy.joint import Joint
from veilgraph.privacy.units import Neighbours, Unit

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution


class Event(ABC):
    """A frozen dataclass of plain values, with a unit and a neighbouring relation among its fields or properties.

    It composes in one of three ways: as Gaussian noise, by ``mu``; numerically, by ``losses`` or ``distribution``; or,
    where it has none, its pure ``epsilon`` is added to that of all others.

    Attributes:
        kind: its name in ``EVENTS`` and in ledgers.
        is_numeric: whether it has ``losses`` or a ``distribution``.
        is_of_rows: whether what it says of a unit bounds what it says of each row of it; not where rows are unclipped.
    """

    __slots__ = ()
    kind: ClassVar[str]
    is_numeric: ClassVar[bool] = False
    is_of_rows: ClassVar[bool] = True

    if TYPE_CHECKING:

        @property
        def unit(self) -> Unit:
            """What one neighbouring step changes."""

        @property
        def neighbours(self) -> Neighbours:
            """The neighbouring relation."""

    @property
    def epsilon(self) -> float:
        """Pure ε of one release (δ = 0); infinite where there is none."""
        return math.inf

    @property
    def largest_loss(self) -> float:
        """How far the privacy loss of one release is looked at, numerically; what is beyond it counts as δ."""
        return self.epsilon

    def mu(self, releases: int) -> float:
        """Sensitivity over standard deviation of so many releases together; 0 if the noise is not Gaussian."""
        return 0.0

    def gaussian_bound(self, releases: int) -> float:
        """Return μ of a Gaussian release that tells no less than so many releases; infinite where none is known."""
        return self.mu(releases) or math.inf

    def losses(self) -> DpEvent:
        """One release for ``dp_accounting``, with its neighbours as the two that it compares."""
        raise NotImplementedError

    def distribution(self, interval: float) -> PrivacyLossDistribution | None:
        """The same as losses in cells of that width, where ``dp_accounting`` has no event for it; None: it has one."""
        return None

    def interval(self, finest: float) -> float:
        """Width of a cell of losses that one release can do with, at least ``finest``."""
        return finest

    def of_unit(self, unit: Literal["edge", "node"], rows: int) -> Event:
        """What it says, under replacement, of a unit that changes so many rows, where it is of single rows.

        Raises:
            ConfigError: it says nothing of those.
        """
        raise ConfigError(f"unit={unit!r}: events of kind {self.kind} are of unit {self.unit!r} alone; protect that")


@dataclass(frozen=True, slots=True)
class GaussianEvent(Event):
    """One release with Gaussian noise on a value clipped in the ℓ2 norm.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the clip C.
        neighbours: the neighbouring relation.
        unit: what one neighbouring step changes.

    Raises:
        ConfigError: σ is not finite and positive, or the relation or unit is unknown.
    """

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "row"

    def __post_init__(self) -> None:
        _check("noise_multiplier", self.noise_multiplier, self.neighbours, self.unit)

    def mu(self, releases: int) -> float:
        """See ``Event.mu``."""
        return math.sqrt(releases) * sensitivity_in_clips(self.neighbours) / self.noise_multiplier

    def of_unit(self, unit: Literal["edge", "node"], rows: int) -> GaussianEvent:
        """See ``Event.of_unit``: rows of length C move by C·√rows together."""
        return replace(
            self, noise_multiplier=self.noise_multiplier / math.sqrt(rows), neighbours="replacement", unit=unit
        )


@dataclass(frozen=True, slots=True)
class AggregationEvent(GaussianEvent):
    """One release of sums over neighbours with Gaussian noise, about its unit alone.

    With noise in every hop (``hop_sensitivity``) the sums may be of any length; of embeddings to publish
    (``embedding.aggregation``) a row has a length, and the noise is for less. So it bounds nothing about a row.
    """

    kind: ClassVar[str] = "aggregation"
    is_of_rows: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class JointGaussianEvent(GaussianEvent):
    """One release whose noise several holders make together (``joint``): the Gaussian one against those it withstands.

    Args:
        noise_multiplier: σ of what all holders but those that collude add together, over the clip C.
        neighbours: as of ``GaussianEvent``.
        unit: as of ``GaussianEvent``.
        holders: P, how many add noise.
        colluding: t, how many of them may work with whoever opens the sum, or add none.

    Raises:
        ConfigError: as ``GaussianEvent``, or not 0 ≤ t ≤ P − 2.
    """

    kind: ClassVar[str] = "joint-gaussian"
    holders: int = 2
    colluding: int = 0

    def __post_init__(self) -> None:
        _check("noise_multiplier", self.noise_multiplier, self.neighbours, self.unit)
        Joint(self.holders, self.colluding)


@dataclass(frozen=True, slots=True)
class LaplaceEvent(Event):
    """One release with independent Laplace noise on every entry of a value clipped in the ℓ1 norm.

    Args:
        scale_multiplier: scale b of the noise over the ℓ1 clip C.
        neighbours: the neighbouring relation.
        unit: what one neighbouring step changes.

    Raises:
        ConfigError: the scale is not finite and positive, or the relation or unit is unknown.
    """

    kind: ClassVar[str] = "laplace"
    is_numeric: ClassVar[bool] = True
    scale_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "row"

    def __post_init__(self) -> None:
        _check("scale_multiplier", self.scale_multiplier, self.neighbours, self.unit)

    @property
    def epsilon(self) -> float:
        """The release's pure ε (δ = 0): ℓ1 sensitivity over scale."""
        return sensitivity_in_clips(self.neighbours) / self.scale_multiplier

    def losses(self) -> DpEvent:
        """See ``Event.losses``."""
        import dp_accounting  # noqa: PLC0415 - see the head of ``accountant``

        return dp_accounting.LaplaceDpEvent(1 / self.epsilon)

    def of_unit(self, unit: Literal["edge", "node"], rows: int) -> LaplaceEvent:
        """See ``Event.of_unit``: the clip is in ℓ1."""
        return LaplaceEvent(self.scale_multiplier / rows, "replacement", unit)


LocalUnit = Literal["node", "label"]
"""What a node perturbs by itself: its features, or its label."""


@dataclass(frozen=True, slots=True)
class LocalEvent(Event):
    """One release under local differential privacy: a node perturbed a value of its own before anybody saw it.

    No output is more than e^ε times as likely under one value as under any other of the declared range (δ = 0).

    Args:
        epsilon: pure ε of one node's one release.
        unit: one node's features, or one label.

    Raises:
        ConfigError: ε is not finite and positive, or the unit is another.
    """

    kind: ClassVar[str] = "local"
    epsilon: float
    unit: LocalUnit = "node"

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon, "it is the pure ε of one release")
        _check_known("unit", self.unit, get_args(LocalUnit))

    @property
    def neighbours(self) -> Neighbours:
        """Any value against any other."""
        return "replacement"


UNKNOWN: Final = "unknown-event"
"""Code of an event that another version of veilgraph, or a package that is not here, wrote."""
EVENTS: Final[Registry[type[Event]]] = Registry(
    "veilgraph.events",
    {
        "gaussian": "veilgraph.privacy.event:GaussianEvent",
        "aggregation": "veilgraph.privacy.event:AggregationEvent",
        "joint-gaussian": "veilgraph.privacy.event:JointGaussianEvent",
        "laplace": "veilgraph.privacy.event:LaplaceEvent",
        "local": "veilgraph.privacy.event:LocalEvent",
        "sampled": "veilgraph.privacy.sampled_event:SampledEvent",
        "joint-sampled": "veilgraph.privacy.sampled_event:JointSampledEvent",
    },
    kind="veilgraph.privacy.event:Event",
)
"""Kind → the class of such events."""


def sensitivity_in_clips(neighbours: Neighbours) -> float:
    """Sensitivity over the clip: 1 under zero-out, 2 under replacement (two points of a ball of radius C)."""
    return 1.0 if neighbours == "zero-out" else 2.0


def to_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary of plain values; ``from_json`` reads it."""
    return {"kind": event.kind, **asdict(event)}  # type: ignore[call-overload]  # each is a dataclass


def from_json(data: object) -> Event:
    """Reads what ``to_json`` wrote.

    Raises:
        ConfigError: the kind is unknown, or a field is missing or unknown (``UNKNOWN``), or out of range.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"event={data!r}: an event is a mapping with kind and fields; write it with to_json")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in EVENTS:
        raise ConfigError(
            f"kind={kind!r} of an event is none of {', '.join(EVENTS)}: an unknown release cannot be accounted for; "
            "use the version of veilgraph, and the packages, that wrote it",
            code=UNKNOWN,
        )
    cls = EVENTS[kind]
    needed = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    given = set(data) - {"kind"}
    if given != needed:
        raise ConfigError(
            f"event: kind {kind!r} has the fields {sorted(map(str, given))}, and needs exactly {sorted(needed)}; use "
            "the version of veilgraph, and the packages, that wrote it",
            code=UNKNOWN,
        )
    return cls(**{name: data[name] for name in needed})


def not_a_release(where: str, error: ConfigError, way_out: str) -> RunError:
    """Of a ledger's line whose event cannot be read: another copy is of no use where it is this program that lacks it.

    Args:
        where: file and line.
        error: of ``from_json``.
        way_out: where the file is damaged.
    """
    unknown = error.code == UNKNOWN
    way_out = "leave the file as it is, for another copy says the same" if unknown else way_out
    return RunError(f"{where}: not a release ({error}); {way_out}", code=UNKNOWN if unknown else None)


def _check(name: str, value: object, neighbours: object, unit: object) -> None:
    _check_positive(name, value, "it is the noise over the clip")
    _check_known("neighbours", neighbours, get_args(Neighbours))
    _check_known("unit", unit, get_args(Unit))


def _check_positive(name: str, value: object, meaning: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[operator, arg-type]
        raise ConfigError(f"{name}={value!r} must be a finite number > 0: {meaning}")


def _check_known(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} must be one of {', '.join(known)}")
