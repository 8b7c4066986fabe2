"""What is worth varying in a job of each paradigm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from veilgraph_averaging.settings import AveragingJob
from veilgraph_node_dp.settings import NodeDpJob

from veilgraph.core.settings import Registry
from veilgraph.paradigms.horizontal.settings import HorizontalJob
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.vertical.settings import VerticalJob
from veilgraph.protocol.job import JobSettings
from veilgraph_tuning.space import Options, Space, Span

SPACES: Registry[Callable[[JobSettings], Space]] = Registry(
    "veilgraph_tuning.spaces",
    {
        name: f"veilgraph_tuning.spaces:{name.replace('-', '_')}"
        for name in ("vertical", "horizontal", "node-dp", "averaging", "sealed", "union")
    },
    "collections.abc:Callable",
)
"""Paradigm → the space of a job of it. A package with a paradigm of its own adds one by an entry point."""

_LEARNING: Final[Space] = {
    "train.learning_rate": Span(1e-3, 0.1, log=True),
    "train.weight_decay": Span(1e-5, 0.03, log=True),
}
"""Of trainings with Adam."""
_WIDTHS: Final = Options((16, 32, 64, 128))


def space_of(job: JobSettings) -> Space:
    """What to vary by default; of a paradigm that says nothing, the learning rate and the weight decay."""
    return SPACES[job.paradigm](job) if job.paradigm in SPACES else _LEARNING


def averaging(job: AveragingJob) -> Space:
    """Averaging: rounds with gradients have no local epochs."""
    space = {**_LEARNING, "model.dim": _WIDTHS, "model.dropout": Span(0, 0.8)}
    return space if job.averaging.rule.sends_gradients else {**space, "averaging.local_epochs": Span(1, 10, whole=True)}


def horizontal(job: HorizontalJob) -> Space:
    """Horizontal jobs."""
    return {**_LEARNING, "model.dim": _WIDTHS, "model.server.dropout": Span(0, 0.8)}


def node_dp(job: NodeDpJob) -> Space:
    """Jobs of perturbed nodes: where sums have noise, other hops would cost ε."""
    hops = {"model.hops": Options((0, 2, 4, 8, 16))} if job.privacy is None else {}
    return {**_LEARNING, **hops, "model.dropout": Span(0, 0.8)}


def sealed(job: SealedJob) -> Space:
    """Sealed jobs: gradient descent with steps larger than Adam's."""
    space: Space = {
        "train.learning_rate": Span(0.03, 4, log=True),
        "train.weight_decay": Span(1e-4, 0.03, log=True),
    }
    return space if job.privacy is not None else {**space, "model.hidden": _WIDTHS}


union = sealed


def vertical(job: VerticalJob) -> Space:
    """Vertical jobs: the joint first layer has a learning rate of its own."""
    space = {**_LEARNING, "model.dim": _WIDTHS, "model.local.hops": Span(1, 4, whole=True)}
    if job.model.initial.method == "collaborative":
        space["model.initial.learning_rate"] = Span(0.02, 0.5, log=True)
    return space
