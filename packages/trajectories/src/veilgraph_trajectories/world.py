"""Cameras of one seed: scenes, recordings, and who was there for what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.core.errors import ConfigError
from veilgraph.core.settings import config_errors
from veilgraph.graph.settings import holder_names
from veilgraph_trajectories.near import pairs_in
from veilgraph_trajectories.scenes import Scene, draw_scene
from veilgraph_trajectories.settings import TrajectoriesSettings
from veilgraph_trajectories.walk import Tracks, walk

Whole = NDArray[np.signedinteger[Any]]
Real = NDArray[np.floating[Any]]

PAUSE: Final = 12
"""Frames between two recordings of a camera, in which nobody is there."""


@dataclass(frozen=True, eq=False)
class Camera:
    """What one camera has recorded: R rows of O people, and what is true of these.

    Attributes:
        name: of the camera.
        scene: that it records.
        frames: of each recording.
        tracks: the rows, by recording, frame and person.
    """

    name: str
    scene: Scene
    frames: int
    tracks: Tracks

    @property
    def person(self) -> Whole:
        """Who, int64 [R]; nobody is in two recordings."""
        return self.tracks.person

    @property
    def frame(self) -> Whole:
        """When, int64 [R], ascending; recordings follow each other."""
        return self.tracks.recording * (self.frames + PAUSE) + self.tracks.frame

    @property
    def position(self) -> Real:
        """Where, float64 [R, 2], metres."""
        return self.tracks.position

    def edges(self, radius: float) -> Whole:
        """Rows of one frame that are less than so many metres apart, both ways: int64 [2, E]."""
        pairs = pairs_in(self.frame)
        one, other = self.position[pairs]
        return pairs[:, np.linalg.norm(one - other, axis=1) < radius]


@dataclass(frozen=True, eq=False)
class TrajectoriesWorld:
    """Cameras, each of a scene of its own.

    Attributes:
        settings: what was asked.
        seed: of everything.
        cameras: what each has recorded.
    """

    settings: TrajectoriesSettings
    seed: int
    cameras: tuple[Camera, ...]

    def camera(self, name: str) -> Camera:
        """The one of that name.

        Raises:
            ConfigError: there is none.
        """
        for each in self.cameras:
            if each.name == name:
                return each
        named = ", ".join(each.name for each in self.cameras)
        raise ConfigError(f"name={name!r} is no camera of this world; choose {named}")


def trajectories(*, seed: int = 0, **settings: object) -> TrajectoriesWorld:
    """People who walk by social forces through scenes that cameras record, each a scene of its own.

    ``vg.datasets.load("trajectories", made=settings, seed=seed)`` has all rows; a job's ``data.made`` has the same
    settings.

    Args:
        seed: fixes everything.
        settings: of ``TrajectoriesSettings``, as ``cameras=3, recordings=20``; others have their defaults.

    Returns:
        Cameras; of each rows of who was where in which frame, edges of a radius, and the truth: scene, ways, speeds.

    Raises:
        ConfigError: a setting is none.
    """
    with config_errors("trajectories"):
        asked = TrajectoriesSettings.model_validate(settings)
    return trajectories_world(asked, seed)


def trajectories_world(settings: TrajectoriesSettings, seed: int) -> TrajectoriesWorld:
    """Makes a world; a camera is the same whatever others there are.

    Args:
        settings: size and shape.
        seed: fixes everything.
    """
    cameras, streams = [], np.random.default_rng(seed).spawn(settings.cameras)
    for number, (name, generator) in enumerate(zip(holder_names(settings.cameras), streams, strict=True)):
        scene = draw_scene(settings, number, generator)
        cameras.append(Camera(name, scene, settings.frames, walk(scene, settings, generator)))
    return TrajectoriesWorld(settings, seed, tuple(cameras))
