"""Train one graph neural network across organisations that cannot share data.

    import veilgraph as vg

    run = vg.fit(vg.Job(data={"dataset": "digits"}))
    run.metrics["test_accuracy"], run.predict(nodes=[1, 5]).classes

The names below are the public interface. Each is imported when it is first used, so ``import veilgraph`` is quick.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from veilgraph.core import __version__
from veilgraph.core.deferred import import_quickly
from veilgraph.core.text import PrintableRecords

if TYPE_CHECKING:
    from veilgraph import datasets as datasets
    from veilgraph import nn as nn
    from veilgraph import simulate as simulate
    from veilgraph import tracking as tracking
    from veilgraph.api.estimator import FederatedNodeClassifier
    from veilgraph.api.fit import fit, read_job
    from veilgraph.api.runs import Run, load_run
    from veilgraph.core.errors import VeilgraphError
    from veilgraph.graph.party import PartyGraph
    from veilgraph.protocol.job import JobSettings
    from veilgraph.protocol.job_file import Job
    from veilgraph.runtime.store.predictions import Predictions
    from veilgraph.tables.frames import Tables

logging.getLogger("veilgraph").addFilter(PrintableRecords())

__all__ = [
    "FederatedNodeClassifier",
    "Job",
    "JobSettings",
    "PartyGraph",
    "Predictions",
    "Run",
    "Tables",
    "VeilgraphError",
    "__version__",
    "datasets",
    "fit",
    "load_run",
    "nn",
    "read_job",
    "simulate",
    "tracking",
]

_HOMES: Final = {
    "FederatedNodeClassifier": "veilgraph.api.estimator",
    "Job": "veilgraph.protocol.job_file",
    "JobSettings": "veilgraph.protocol.job",
    "PartyGraph": "veilgraph.graph.party",
    "Predictions": "veilgraph.runtime.store.predictions",
    "Run": "veilgraph.api.runs",
    "Tables": "veilgraph.tables.frames",
    "VeilgraphError": "veilgraph.core.errors",
    "fit": "veilgraph.api.fit",
    "load_run": "veilgraph.api.runs",
    "read_job": "veilgraph.api.fit",
}


def __getattr__(name: str) -> object:
    if name in ("datasets", "nn", "simulate", "tracking"):
        return import_quickly(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_quickly(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
