"""People walk: recordings of one scene, all computed side by side."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph_trajectories import forces
from veilgraph_trajectories.near import pairs_in
from veilgraph_trajectories.scenes import Scene
from veilgraph_trajectories.settings import TrajectoriesSettings

Real = NDArray[np.floating[Any]]
Marks = NDArray[np.bool_]
Whole = NDArray[np.signedinteger[Any]]

_STEP: Final = 0.05
"""Seconds of an Euler step, at most."""
_SPREAD: Final = 0.26 / 1.34
"""Standard deviation of desired speeds, as a share of their mean (Helbing & Molnár 1995)."""
SPEEDS: Final = (0.4, 1.8)
"""Least and largest desired speed, as shares of the mean."""
_ROOM: Final = 1.2
"""Metres around who appears in which nobody is."""
ARRIVED: Final = 0.4
"""Metres from a door at which a walk through it ends."""
_WARM_UP: Final = 1.0
"""Times that one takes to cross the scene; people walk so long before a recording begins."""
_MOST: Final = 2.0
"""Times the people in sight at once that there should be; no more are let in."""


@dataclass(frozen=True, eq=False)
class Tracks:
    """What was recorded of one scene: R rows of O people, ordered by recording, frame and person.

    Attributes:
        recording: int64 [R].
        frame: int64 [R], within its recording.
        person: int64 [R], 0 to O − 1; in one recording alone.
        position: float64 [R, 2], metres.
        velocity: float64 [R, 2], m/s.
        route: int64 [O], of the scene's.
        speed: float64 [O], that each would like to have, m/s.
        arrived: bool [O], who left through the last door; others were there at the end.
    """

    recording: Whole
    frame: Whole
    person: Whole
    position: Real
    velocity: Real
    route: Whole
    speed: Real
    arrived: Marks


@dataclass(frozen=True, eq=False)
class _People:
    """M people of all recordings, in the order of recordings."""

    recording: Whole
    person: Whole
    route: Whole
    stage: Whole
    speed: Real
    position: Real
    velocity: Real

    def __len__(self) -> int:
        return len(self.person)

    def take(self, rows: Whole | Marks) -> _People:
        return _People(*(getattr(self, each.name)[rows] for each in fields(self)))

    def joined(self, others: _People) -> _People:
        parts = ((getattr(self, each.name), getattr(others, each.name)) for each in fields(self))
        found = _People(*(np.concatenate(each) for each in parts))
        return found.take(np.argsort(found.recording, kind="stable"))


class _Crowd:
    """Everybody who is in the scene, in recordings that know nothing of each other."""

    def __init__(self, scene: Scene, recordings: int, generator: np.random.Generator) -> None:
        self._scene, self._recordings, self._random = scene, recordings, generator
        nobody, nowhere = np.zeros(0, np.int64), np.zeros((0, 2))
        self.people = _People(nobody, nobody, nobody, nobody, np.zeros(0), nowhere, nowhere)
        self.known: list[tuple[Whole, Real]] = []
        self.arrived: list[Whole] = []

    def step(self, seconds: float, noise: float) -> None:
        """One Euler step, and whoever is at the last door is gone."""
        people = self.people
        directions = forces.unit(self._target(people) - people.position)
        force = forces.driving(people.velocity, directions, people.speed)
        force += self._others(directions)
        force += forces.borders(people.position, self._scene.obstacles)
        velocity = people.velocity + seconds * force
        velocity += noise * np.sqrt(seconds) * self._random.standard_normal(velocity.shape)
        velocity = forces.capped(velocity, forces.TOP_SPEED * people.speed)
        self._pass_doors(replace(people, velocity=velocity, position=people.position + seconds * velocity))

    def _target(self, people: _People) -> Real:
        """The nearest point of everybody's next door."""
        door = self._scene.doors[people.route, people.stage]
        return forces.nearest(people.position, door[:, 0], door[:, 1])

    def _others(self, directions: Real) -> Real:
        people = self.people
        one, other = pairs_in(people.recording)
        r = people.position[other] - people.position[one]
        push = forces.between(r, people.velocity[one], directions[other])
        return np.stack([np.bincount(other, each, len(people)) for each in push.T], axis=1)

    def _pass_doors(self, people: _People) -> None:
        there = np.linalg.norm(self._target(people) - people.position, axis=1) < ARRIVED
        gone = there & (people.stage == self._scene.doors.shape[1] - 1)
        self.arrived.append(people.person[gone])
        self.people = replace(people, stage=people.stage + there).take(~gone)

    def come(self, seconds: float) -> None:
        """Within so many seconds a Poisson number of people comes to every route's first door; at most one gets in."""
        scene = self._scene
        for route, share in enumerate(scene.shares):
            wants = self._random.random(self._recordings) < -np.expm1(-seconds * share * scene.arrivals)
            one, other = scene.doors[route, 0]
            at = one + self._random.random((self._recordings, 1)) * (other - one)
            speeds = scene.speed * np.clip(_SPREAD * self._random.standard_normal(self._recordings) + 1, *SPEEDS)
            inside = self.people.recording
            close = np.linalg.norm(self.people.position - at[inside], axis=1) < _ROOM
            wants[inside[close]] = False
            wants &= np.bincount(inside, minlength=self._recordings) < _MOST * scene.objects
            which = np.flatnonzero(wants)
            self._appear(which, route, at[which], speeds[which])

    def _appear(self, recordings: Whole, route: int, at: Real, speeds: Real) -> None:
        routes = np.full(len(recordings), route)
        numbers = sum(len(each) for each, _ in self.known) + np.arange(len(recordings))
        new = _People(recordings, numbers, routes, np.ones_like(routes), speeds, at, np.zeros_like(at))
        toward = forces.unit(self._target(new) - at)
        self.known.append((routes, speeds))
        self.people = self.people.joined(replace(new, velocity=speeds[:, None] * toward))


def walk(scene: Scene, settings: TrajectoriesSettings, generator: np.random.Generator) -> Tracks:
    """Records a scene; time is linear in frames, and in people times people in sight at once.

    Args:
        scene: of the camera.
        settings: how many recordings, how long.
        generator: of all draws.
    """
    crowd = _Crowd(scene, settings.recordings, generator)
    interval = 1 / settings.frame_rate
    steps = int(np.ceil(interval / _STEP - 1e-9))
    before = int(np.ceil(_WARM_UP * scene.crossing_time / interval))
    rows = []
    for frame in range(-before, settings.frames):
        crowd.come(interval)
        for _ in range(steps):
            crowd.step(interval / steps, settings.noise)
        if frame >= 0:
            people = crowd.people
            frames = np.full(len(people), frame)
            rows.append((people.recording, frames, people.person, people.position, people.velocity))
    return _ordered(crowd, rows)


def _ordered(crowd: _Crowd, rows: list[tuple[Whole, Whole, Whole, Real, Real]]) -> Tracks:
    recording, frame, person, position, velocity = (np.concatenate(each) for each in zip(*rows, strict=True))
    order = np.lexsort((person, frame, recording))
    seen, number = np.unique(person, return_inverse=True)
    route, speed = (np.concatenate(each) for each in zip(*crowd.known, strict=True))
    return Tracks(
        recording=recording[order],
        frame=frame[order],
        person=number[order],
        position=position[order],
        velocity=velocity[order],
        route=route[seen],
        speed=speed[seen],
        arrived=np.isin(seen, np.concatenate(crowd.arrived)),
    )
