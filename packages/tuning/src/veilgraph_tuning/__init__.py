"""Choose settings of a job by what they reach on its validation nodes.

from veilgraph_tuning import tune

The names below are the public interface. Each is imported when it is first used, so that the command line starts
quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veilgraph_tuning.api import tune as tune
    from veilgraph_tuning.api import tune_alone as tune_alone
    from veilgraph_tuning.trying import Tuning as Tuning

__all__ = ["Tuning", "tune", "tune_alone"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("veilgraph_tuning.api"), name)
