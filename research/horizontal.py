"""The plaintext trainings that a horizontal job is compared with, and its twin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

import torch

from research.ppgnn import ppgnn, two_stages
from veilgraph.core.errors import ConfigError
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.pooling import HorizontalPart, pool_parts
from veilgraph.paradigms.horizontal.settings import HorizontalSettings, horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork, counted_parts
from veilgraph.protocol.job import JobSettings, TrainSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import precision
from veilgraph.runtime.store.run_directory import Record

Training = Callable[[JobSettings, Sequence[HorizontalPart], Progress], Record]
"""(job, the holders' parts, progress) → summary."""

_AVERAGED: Final = ("val_accuracy", "test_accuracy", "val_f1", "test_f1")


def train_horizontal(job: JobSettings, kind: str, progress: Progress) -> Record:
    """Summary of one training of a horizontal job, with its seed's split.

    Args:
        job: of paradigm horizontal.
        kind: a name in ``TRAININGS``.
        progress: called after every epoch.

    Raises:
        ConfigError: there is no such training of a horizontal job.
        DataError: the data cannot be read or divided so.
    """
    if kind not in TRAININGS:
        raise ConfigError(f"kind={kind!r} is not of paradigm='horizontal'; choose from {', '.join(TRAININGS)}")
    return TRAININGS[kind](job, load_parts(job.data, job.seed), progress)


def _together(job: JobSettings, parts: Sequence[HorizontalPart], progress: Progress) -> Record:
    network = LayeredNetwork(horizontal(job).model, job.train, parts, seed=job.seed, dtype=precision(job))
    return fit(network, progress).summary


def _pooled(job: JobSettings, parts: Sequence[HorizontalPart], progress: Progress) -> Record:
    return _together(job, [pool_parts(counted_parts(horizontal(job).model, parts))], progress)


def separate(
    settings: HorizontalSettings,
    train: TrainSettings,
    parts: Sequence[HorizontalPart],
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    progress: Progress = lambda records: None,
) -> list[PlainResult]:
    """Separate training, the paper's SP (5.2): every holder alone with its own part, judged on its own test nodes.

    The paper does not say how it judges; its SP is taken to be the mean of these results over the holders.

    Raises:
        DataError: some holder has no labels.
    """
    return [fit(LayeredNetwork(settings, train, [part], seed=seed, dtype=dtype), progress) for part in parts]


def _separate(job: JobSettings, parts: Sequence[HorizontalPart], progress: Progress) -> Record:
    """Means over the holders; of the best epochs the last."""
    results = separate(horizontal(job).model, job.train, parts, seed=job.seed, dtype=precision(job), progress=progress)
    summaries = [result.summary for result in results]
    means = {name: fmean(summary[name] for summary in summaries) for name in _AVERAGED}
    return {**means, "best_epoch": max(summary["best_epoch"] for summary in summaries)}


def _ppgnn(job: JobSettings, parts: Sequence[HorizontalPart], progress: Progress) -> Record:
    return ppgnn(job, parts, progress).summary


def _two_stages(job: JobSettings, parts: Sequence[HorizontalPart], progress: Progress) -> Record:
    return two_stages(job, parts, progress).summary


TRAININGS: Final[Mapping[str, Training]] = {
    "federated": _together,
    "pooled": _pooled,
    "separate": _separate,
    "ppgnn": _ppgnn,
    "ppgnn-two-stages": _two_stages,
}
"""The trainings by the kind that the tables use."""
