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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, get_args

from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import Registry

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Neighbours = Literal["zero-out", "replacement"]
"""A row becomes zero (it moves by at most the clip C), or any other row within the clip (at most 2C)."""

Unit = Literal["edge", "node", "node-edges", "label", "training-record"]
"""What one neighbouring step changes: an edge, a node's features, these and all its edges, a label, a training node's
features."""


class Event(ABC):
    """A frozen dataclass of plain values, with a unit and a neighbouring relation among its fields or properties.

    It composes in one of four ways: as Gaussian noise, by ``mu``; numerically (``is_numeric``), by ``losses`` or
    ``distribution``; by its ε at a share of δ (``needs_share``, ``alternatives``); or, where it has none of these, its
    pure ``epsilon`` is added to that of all others.

    Attributes:
        kind: its name in ``EVENTS`` and in ledgers.
        units: that it can be about.
    """

    __slots__ = ()
    kind: ClassVar[str]
    is_numeric: ClassVar[bool] = False
    needs_share: ClassVar[bool] = False
    units: ClassVar[tuple[Unit, ...]] = get_args(Unit)

    if TYPE_CHECKING:

        @property
        def unit(self) -> Unit:
            """What one neighbouring step changes."""

        @property
        def neighbours(self) -> Neighbours:
            """The neighbouring relation."""

    def __post_init__(self) -> None:
        for name, known in (("unit", self.units), ("neighbours", get_args(Neighbours))):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name}={getattr(self, name)!r} of an event must be one of {', '.join(known)}")

    @property
    def scope(self) -> Scope:
        """Unit and relation together."""
        return Scope(self.unit, self.neighbours)

    @property
    def epsilon(self) -> float:
        """Pure ε of one release (δ = 0); infinite where there is none."""
        return math.inf

    @property
    def alternatives(self) -> Sequence[tuple[float, float]]:
        """Pairs of μ and pure ε, of which one release tells no more than a Gaussian and a pure one of any."""
        return ()

    def mu(self, releases: int) -> float:
        """Sensitivity over standard deviation of so many releases together; 0 if the noise is not Gaussian."""
        return 0.0

    def gaussian_bound(self, releases: int) -> float:
        """Return μ of a Gaussian release that tells no less than so many releases; infinite where none is known."""
        return self.mu(releases) or math.inf

    def losses(self) -> DpEvent:
        """Return one release as ``dp_accounting``'s event, with its neighbours as the two data sets compared."""
        raise NotImplementedError

    def distribution(self, interval: float) -> PrivacyLossDistribution | None:
        """Return the privacy loss distribution in cells of width ``interval``; None: ``losses`` has an event for it."""
        return None

    def interval(self, finest: float) -> float:
        """Return a cell width, at least ``finest``, that is fine enough for one release's losses."""
        return finest


class Scope(NamedTuple):
    """What an ε is about. Releases about the same compose, over all channels; those about different ones never do."""

    unit: Unit
    neighbours: Neighbours

    def bounds(self, event: Event) -> bool:
        """Whether an event's cost bounds what its release says about this unit and relation.

        What is set to zero is replaced. A label that its node perturbs is the node's own.
        """
        covered = ("node", "label") if self.unit == "node" else (self.unit,)
        return event.neighbours in (self.neighbours, "replacement") and event.unit in covered


@dataclass(frozen=True, slots=True)
class GaussianEvent(Event):
    """One release with Gaussian noise of standard deviation σ, over the clip C, on a value clipped in the ℓ2 norm."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "node"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_positive("noise_multiplier", self.noise_multiplier)

    @override
    def mu(self, releases: int) -> float:
        return math.sqrt(releases) * sensitivity_in_clips(self.neighbours) / self.noise_multiplier


@dataclass(frozen=True, slots=True)
class AggregationEvent(GaussianEvent):
    """One release of sums over neighbours with Gaussian noise, about its unit alone."""

    kind: ClassVar[str] = "aggregation"


@dataclass(frozen=True, slots=True)
class LaplaceEvent(Event):
    """One release with independent Laplace noise of scale b, over the ℓ1 clip C, on every entry of a clipped value."""

    kind: ClassVar[str] = "laplace"
    is_numeric: ClassVar[bool] = True
    scale_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "node"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_positive("scale_multiplier", self.scale_multiplier)

    @property
    @override
    def epsilon(self) -> float:
        """ℓ1 sensitivity over scale."""
        return sensitivity_in_clips(self.neighbours) / self.scale_multiplier

    @override
    def losses(self) -> DpEvent:
        import dp_accounting  # noqa: PLC0415 - see the head of ``accountant``

        return dp_accounting.LaplaceDpEvent(1 / self.epsilon)


@dataclass(frozen=True, slots=True)
class GeometricEvent(Event):
    """One release of counts with two-sided geometric noise, of which a unit moves one by 1 at most.

    No output is more than e^ε times as likely under one data set as under a neighbouring one (δ = 0).
    """

    kind: ClassVar[str] = "geometric"
    units: ClassVar[tuple[Unit, ...]] = ("edge",)
    epsilon: float
    neighbours: Neighbours = "replacement"
    unit: Unit = "edge"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_positive("epsilon", self.epsilon)


@dataclass(frozen=True, slots=True)
class LocalEvent(Event):
    """One release under local differential privacy: a node perturbed a value of its own before anybody saw it.

    No output is more than e^ε times as likely under one value as under any other of the declared range (δ = 0).
    """

    kind: ClassVar[str] = "local"
    units: ClassVar[tuple[Unit, ...]] = ("node", "label")  # a node's features, or its label
    epsilon: float
    unit: Unit = "node"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_positive("epsilon", self.epsilon)

    @property
    def neighbours(self) -> Neighbours:
        """Any value against any other."""
        return "replacement"


@dataclass(frozen=True, slots=True)
class EitherEvent(Event):
    """One release of a sum with Gaussian noise σ or of a bit, and who pays does not know of which a record is.

    A record that is not in the sum is in a bit that is flipped, of pure ε, and in what has Gaussian noise beside it.
    All noise is over the clip. A release is (ε, δ)-private, so it tells no more than one that shows all with chance δ
    and is else ε-private (Kairouz, Oh & Viswanath 2015).
    """

    kind: ClassVar[str] = "either"
    needs_share: ClassVar[bool] = True
    noise_multiplier: float
    flip_epsilon: float
    beside_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "node"

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        for name in ("noise_multiplier", "flip_epsilon", "beside_multiplier"):
            check_positive(name, getattr(self, name))

    @property
    @override
    def alternatives(self) -> Sequence[tuple[float, float]]:
        farthest = sensitivity_in_clips(self.neighbours)
        return (farthest / self.noise_multiplier, 0.0), (farthest / self.beside_multiplier, self.flip_epsilon)


# code of an event that another version of veilgraph, or a package that is not here, wrote
UNKNOWN: Final = "unknown-event"
# kind → the class of such events
EVENTS: Final[Registry[type[Event]]] = Registry(
    "veilgraph.events",
    {
        "gaussian": "veilgraph.privacy.event:GaussianEvent",
        "aggregation": "veilgraph.privacy.event:AggregationEvent",
        "laplace": "veilgraph.privacy.event:LaplaceEvent",
        "geometric": "veilgraph.privacy.event:GeometricEvent",
        "local": "veilgraph.privacy.event:LocalEvent",
        "either": "veilgraph.privacy.event:EitherEvent",
    },
    kind="veilgraph.privacy.event:Event",
)


def sensitivity_in_clips(neighbours: Neighbours) -> float:
    """Sensitivity over the clip: 1 under zero-out, 2 under replacement (two points of a ball of radius C)."""
    return 1.0 if neighbours == "zero-out" else 2.0


def to_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary of plain values; ``from_json`` reads it."""
    return {"kind": event.kind, **asdict(event)}  # type: ignore[call-overload]  # each is a dataclass


def from_json(data: object) -> Event:
    """Read what ``to_json`` wrote; raises ``ConfigError``: a kind or field is unknown, missing or out of range."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"event={data!r}: an event is a mapping with kind and fields; write it with to_json")
    kind = data.get("kind")
    for name, value, known in (("kind", kind, EVENTS), ("unit", data.get("unit", "node"), get_args(Unit))):
        if value not in known:
            raise ConfigError(
                f"{name}={value!r} of an event is none of {', '.join(known)}: an unknown release cannot be accounted "
                "for; use the version of veilgraph, and the packages, that wrote it",
                code=UNKNOWN,
            )
    cls = EVENTS[str(kind)]
    needed = {each.name for each in fields(cls)}  # type: ignore[arg-type]
    given = set(data) - {"kind"}
    if given != needed:
        raise ConfigError(
            f"event: kind {kind!r} has the fields {sorted(map(str, given))}, and needs exactly {sorted(needed)}; use "
            "the version of veilgraph, and the packages, that wrote it",
            code=UNKNOWN,
        )
    return cls(**{name: data[name] for name in needed})


def check_whole(name: str, value: object, least: int) -> int:
    """Return the value; raises ``ConfigError`` unless it is a whole number of at least ``least``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number >= {least}")
    return value


def check_positive(name: str, value: object, most: float = math.inf) -> None:
    """Raises ``ConfigError`` unless it is a finite number above 0, of at most ``most``."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= most:  # type: ignore[operator, arg-type]
        bound = "" if math.isinf(most) else f", at most {most:g}"
        raise ConfigError(f"{name}={value!r} must be a finite number > 0{bound}", key=name, value=value)
