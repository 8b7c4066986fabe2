"""Train a graph neural network together across organisations that share customers but not data.

    from veilgraph import PartyGraph, parse_job, predict, train

The names below are the public interface. Each is imported when it is first used, so ``import veilgraph`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from veilgraph.core.errors import VeilgraphError
    from veilgraph.graph.partition import split_vertically
    from veilgraph.graph.party import PartyGraph
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.job_file import parse_job, read_job
    from veilgraph.run.jobs import TrainResult, load_result, predict, resume, train
    from veilgraph.run.predictions import Predictions

__version__ = "0.1.0"

__all__ = [
    "JobSettings",
    "PartyGraph",
    "Predictions",
    "TrainResult",
    "VeilgraphError",
    "__version__",
    "load_result",
    "parse_job",
    "predict",
    "read_job",
    "resume",
    "split_vertically",
    "train",
]

_HOMES: Final = {
    "JobSettings": "veilgraph.protocol.job",
    "PartyGraph": "veilgraph.graph.party",
    "Predictions": "veilgraph.run.predictions",
    "TrainResult": "veilgraph.run.jobs",
    "VeilgraphError": "veilgraph.core.errors",
    "load_result": "veilgraph.run.jobs",
    "parse_job": "veilgraph.protocol.job_file",
    "predict": "veilgraph.run.jobs",
    "read_job": "veilgraph.protocol.job_file",
    "resume": "veilgraph.run.jobs",
    "split_vertically": "veilgraph.graph.partition",
    "train": "veilgraph.run.jobs",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
