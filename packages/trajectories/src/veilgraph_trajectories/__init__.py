"""Recordings of people whom several cameras see, and a task that predicts where they go.

from veilgraph_trajectories import trajectories

The name below is the public interface. It is imported when it is first used, so that the command line starts quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veilgraph_trajectories.world import trajectories as trajectories

__all__ = ["trajectories"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("veilgraph_trajectories.world"), name)
