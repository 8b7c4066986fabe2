"""The size and shape of recordings of people who walk."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from veilgraph.core.settings import Settings
from veilgraph.graph.settings import MAX_HOLDERS

SceneKind = Literal["corridor", "crossing", "plaza", "gate"]
SCENE_KINDS: Final[tuple[SceneKind, ...]] = get_args(SceneKind)
_USUAL: Final[tuple[SceneKind, ...]] = ("corridor", "crossing", "plaza")
"""Through a gate everybody turns where nobody sees why."""


class TrajectoriesSettings(Settings):
    """Cameras that each record a scene of its own; see ``veilgraph_trajectories.world``."""

    cameras: int = Field(3, ge=2, le=MAX_HOLDERS)
    """named A, B, …"""
    recordings: int = Field(10, ge=1, le=100_000)
    """of each camera, consecutive"""
    frames: int = Field(60, ge=2, le=100_000)
    """of each recording"""
    frame_rate: float = Field(2.5, ge=1, le=30)
    """frames per second"""
    objects: float = Field(16.0, ge=1, le=60)
    """people in sight of an average camera, about"""
    scenes: Annotated[tuple[SceneKind, ...], Field(min_length=1)] = _USUAL
    """of the cameras, in turn"""
    variety: float = Field(1.0, ge=0, le=1)
    """how far cameras of one scene differ in size, density and speed"""
    noise: float = Field(0.1, ge=0, le=1)
    """standard deviation of a velocity's random walk per second, m/s"""

    @field_validator("scenes")
    @classmethod
    def _check_scenes(cls, kinds: tuple[SceneKind, ...]) -> tuple[SceneKind, ...]:
        if len(set(kinds)) < len(kinds):
            raise ValueError("a scene is named twice; name each once")
        return kinds

    @model_validator(mode="after")
    def _check(self) -> Self:
        rows = self.recordings * self.frames * self.objects * 4
        if rows > 10**9:
            raise ValueError(
                f"recordings={self.recordings} of frames={self.frames} with objects={self.objects:g} can have "
                f"{rows:.1e} rows at a camera, and at most 1e9 are made; take fewer"
            )
        return self
