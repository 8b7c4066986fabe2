"""The shared sequence of target nodes of a job in batches.

Every party derives it from the job's seed, so that nobody has to be told whose turn it is. It runs over all common
nodes and not over the training nodes, which the label holder keeps to itself: its loss leaves the others out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from veilgraph.core.randomness import LearningStreams
from veilgraph.protocol.job import JobSettings


@dataclass(frozen=True, eq=False)
class Batch:
    """The targets of one step.

    Attributes:
        index: of the step in its epoch, from 0.
        rows: Tensor[B] int64, distinct common nodes.
        period: for how many steps h^0 and W have stayed the same, this one included; 0 before the last of them.
        is_last: of its epoch.
    """

    index: int
    rows: Tensor
    period: int
    is_last: bool


def training_batches(settings: JobSettings, nodes: int, epoch: int) -> Sequence[Batch | None]:
    """The steps of a training epoch: all common nodes in an order drawn for it; None, all at once, without batches.

    Args:
        settings: of the job.
        nodes: C.
        epoch: from 1.
    """
    size = settings.targets
    if size is None:
        return [None]
    generator = LearningStreams(settings.seed, "batches").generator("order", epoch)
    order = torch.split(torch.randperm(nodes, generator=generator), size)
    every = settings.train.refresh_every or len(order)
    return [
        Batch(index, rows, _period(index, every, len(order)), index == len(order) - 1)
        for index, rows in enumerate(order)
    ]


def _period(index: int, every: int, steps: int) -> int:
    if (index + 1) % every == 0:
        return every
    return index % every + 1 if index == steps - 1 else 0


def inference_batches(settings: JobSettings, nodes: int) -> Sequence[Batch | None]:
    """The steps of an inference: all common nodes in their order; None, all at once, without batches."""
    size = settings.targets
    if size is None:
        return [None]
    steps = math.ceil(nodes / size)
    return [
        Batch(index, rows, 0, index == steps - 1) for index, rows in enumerate(torch.split(torch.arange(nodes), size))
    ]
