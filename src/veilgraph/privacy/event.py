"""What one release did, written down: frozen events that the accountant composes later.

An event names its noise in units of the clip C, so it holds for any C, or the pure ε of local differential privacy,
and names what it protects: the unit (what one neighbouring step changes) and the neighbouring relation (how it
changes). Numbers of different units or relations say different things and are never added up.

By hand: ``dp_accounting``'s ``DpEvent`` has no unit, no relation and no check, and a ledger would wait 0.9 s for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.settings import Neighbours, Unit


@dataclass(frozen=True, slots=True)
class GaussianEvent:
    """One release with Gaussian noise on a value clipped in the ℓ2 norm.

    Args:
        noise_multiplier: σ, standard deviation of the noise over the clip C.
        neighbours: the neighbouring relation.
        unit: what one neighbouring step changes.

    Raises:
        ConfigError: σ is not finite and positive, or the relation or unit is unknown.
    """

    noise_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "row"

    def __post_init__(self) -> None:
        _check("noise_multiplier", self.noise_multiplier, self.neighbours, self.unit)


@dataclass(frozen=True, slots=True)
class LaplaceEvent:
    """One release with independent Laplace noise on every entry of a value clipped in the ℓ1 norm.

    Args:
        scale_multiplier: scale b of the noise over the ℓ1 clip C.
        neighbours: the neighbouring relation.
        unit: what one neighbouring step changes.

    Raises:
        ConfigError: the scale is not finite and positive, or the relation or unit is unknown.
    """

    scale_multiplier: float
    neighbours: Neighbours = "zero-out"
    unit: Unit = "row"

    def __post_init__(self) -> None:
        _check("scale_multiplier", self.scale_multiplier, self.neighbours, self.unit)

    @property
    def epsilon(self) -> float:
        """The release's pure ε (δ = 0): ℓ1 sensitivity over scale."""
        return sensitivity_in_clips(self.neighbours) / self.scale_multiplier


LocalUnit = Literal["node", "label"]
"""What a node perturbs by itself: its features, or its label."""


@dataclass(frozen=True, slots=True)
class LocalEvent:
    """One release under local differential privacy: a node perturbed a value of its own before anybody saw it.

    No output is more than e^ε times as likely under one value as under any other of the declared range (δ = 0).

    Args:
        epsilon: pure ε of one node's one release.
        unit: one node's features, or one label.

    Raises:
        ConfigError: ε is not finite and positive, or the unit is another.
    """

    epsilon: float
    unit: LocalUnit = "node"

    def __post_init__(self) -> None:
        _check_positive("epsilon", self.epsilon, "it is the pure ε of one release")
        _check_known("unit", self.unit, get_args(LocalUnit))

    @property
    def neighbours(self) -> Neighbours:
        """Any value against any other."""
        return "replacement"


Event = GaussianEvent | LaplaceEvent | LocalEvent

_KINDS: dict[str, type[Event]] = {"gaussian": GaussianEvent, "laplace": LaplaceEvent, "local": LocalEvent}


def sensitivity_in_clips(neighbours: Neighbours) -> float:
    """Sensitivity over the clip: 1 under zero-out, 2 under replacement (two points of a ball of radius C)."""
    return 1.0 if neighbours == "zero-out" else 2.0


def to_json(event: Event) -> dict[str, Any]:
    """The event as a dictionary of plain values; ``from_json`` reads it."""
    kind = next(kind for kind, cls in _KINDS.items() if type(event) is cls)
    return {"kind": kind, **asdict(event)}


def from_json(data: object) -> Event:
    """Reads what ``to_json`` wrote.

    Raises:
        ConfigError: the kind is unknown, or a field is missing, unknown or out of range.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"event={data!r}: an event is a mapping with kind and fields; write it with to_json")
    kind = data.get("kind")
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigError(
            f"event kind={kind!r} is none of {', '.join(_KINDS)}: an unknown release cannot be accounted for; use the "
            "version of veilgraph that wrote it"
        )
    fields = set(cls.__dataclass_fields__)
    given = set(data) - {"kind"}
    if given != fields:
        raise ConfigError(
            f"event of kind {kind!r} has the fields {sorted(map(str, given))}, and needs exactly {sorted(fields)}"
        )
    return cls(**{name: data[name] for name in fields})


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
