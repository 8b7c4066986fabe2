"""Embed a graph for publication: keep one attribute, hide another, and attack the result.

from veilgraph_embeddings import embed

The two names below are the public interface. Each is imported when it is first used, so that the command line starts
quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veilgraph_embeddings.api import Embeddings as Embeddings
    from veilgraph_embeddings.api import embed as embed

__all__ = ["Embeddings", "embed"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("veilgraph_embeddings.api"), name)
