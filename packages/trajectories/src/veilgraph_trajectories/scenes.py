"""Scenes: where people come from and go to, what stands in their way, how many there are and how fast.

A route is a sequence of doors, which are segments: people appear on the first, pass the ones between, and are gone at
the last. Obstacles are capsules: all points within a radius of a segment; a pillar's segment is a point.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph_trajectories.settings import SceneKind, TrajectoriesSettings

Real = NDArray[np.floating[Any]]

_SPEED: Final = 1.34
"""Mean desired speed, m/s (Helbing & Molnár 1995)."""
_SIDES: Final = ("left", "right", "bottom", "top")
_OPPOSITE: Final = {"left": "right", "right": "left", "bottom": "top", "top": "bottom"}
_SIZES: Final[dict[SceneKind, tuple[float, float]]] = {
    "corridor": (22.0, 6.0),
    "crossing": (20.0, 20.0),
    "plaza": (22.0, 22.0),
    "gate": (22.0, 10.0),
}
"""Width and height in metres, before ``variety``."""
_GAP: Final = 4.0
"""Width of a gate in metres."""
_DOOR: Final = 0.6
"""Share of a side that its door takes."""
_PILLARS: Final = (1, 3)
_ASIDE: Final = 3.0
"""Metres between a pillar and the doors."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What one camera sees that does not move; metres and seconds.

    Attributes:
        kind: of scene.
        size: width and height.
        doors: float64 [R, stages, 2, 2], each route's doors: two ends with two coordinates.
        shares: float64 [R], of the people, by route; sum 1.
        obstacles: float64 [O, 5], two ends and the radius.
        speed: mean of the speeds that people would like to have, m/s.
        objects: people in sight at once, about.
    """

    kind: SceneKind
    size: tuple[float, float]
    doors: Real
    shares: Real
    obstacles: Real
    speed: float
    objects: float

    @property
    def crossing_time(self) -> float:
        """Seconds that a walk from the first door to the last takes, on average."""
        middles = self.doors.mean(axis=2)
        lengths = np.linalg.norm(np.diff(middles, axis=1), axis=2).sum(axis=1)
        return float((self.shares * lengths).sum() / self.speed)

    @property
    def arrivals(self) -> float:
        """People who come in a second, by Little's law."""
        return self.objects / self.crossing_time


def draw_scene(settings: TrajectoriesSettings, number: int, generator: np.random.Generator) -> Scene:
    """The scene of a camera; kinds take turns."""
    kind = settings.scenes[number % len(settings.scenes)]

    def varied(value: float, most: float) -> float:
        """The value times a factor between 1/most and most."""
        return float(value * most ** (settings.variety * generator.uniform(-1, 1)))

    width, height = (varied(each, 1.25) for each in _SIZES[kind])
    routes, walls = _ROUTES[kind](width, height)
    pillars = _pillars(width, height, generator) if kind == "plaza" else np.empty((0, 5))
    return Scene(
        kind=kind,
        size=(width, height),
        doors=routes,
        shares=generator.dirichlet(np.full(len(routes), 4.0)),
        obstacles=np.concatenate([walls, pillars]),
        speed=varied(_SPEED, 1.3),
        objects=varied(settings.objects, 1.6),
    )


def _door(side: str, width: float, height: float) -> list[list[float]]:
    """In the middle of a side of the scene, whose lower left corner is at 0."""
    if side in ("left", "right"):
        x, half = (0.0 if side == "left" else width), _DOOR * height / 2
        return [[x, height / 2 - half], [x, height / 2 + half]]
    y, half = (0.0 if side == "bottom" else height), _DOOR * width / 2
    return [[width / 2 - half, y], [width / 2 + half, y]]


def _corridor(width: float, height: float) -> tuple[Real, Real]:
    """Both ways between two walls."""
    left, right = _door("left", width, height), _door("right", width, height)
    walls = [[0, 0, width, 0, 0], [0, height, width, height, 0]]
    return np.array([[left, right], [right, left]]), np.array(walls, float)


def _crossing(width: float, height: float) -> tuple[Real, Real]:
    """From each of four sides straight on."""
    routes = [[_door(side, width, height), _door(_OPPOSITE[side], width, height)] for side in _SIDES]
    return np.array(routes), np.empty((0, 5))


def _plaza(width: float, height: float) -> tuple[Real, Real]:
    """From each of four sides to each other one."""
    sides = [(one, other) for one in _SIDES for other in _SIDES if one != other]
    return np.array([[_door(each, width, height) for each in pair] for pair in sides]), np.empty((0, 5))


def _gate(width: float, height: float) -> tuple[Real, Real]:
    """Both ways through a gap in a wall."""
    left, right = _door("left", width, height), _door("right", width, height)
    x, low, high = width / 2, (height - _GAP) / 2, (height + _GAP) / 2
    gap = [[x, low + 0.4], [x, high - 0.4]]
    walls = [[x, 0, x, low, 0.1], [x, high, x, height, 0.1]]
    return np.array([[left, gap, right], [right, gap, left]]), np.array(walls, float)


_ROUTES: Final = {"corridor": _corridor, "crossing": _crossing, "plaza": _plaza, "gate": _gate}


def _pillars(width: float, height: float, generator: np.random.Generator) -> Real:
    count = generator.integers(*_PILLARS, endpoint=True)
    places = generator.uniform(_ASIDE, np.array([width, height]) - _ASIDE, (count, 2))
    radii = generator.uniform(0.1, 0.3, (count, 1))
    return np.concatenate([places, places, radii], axis=1)
