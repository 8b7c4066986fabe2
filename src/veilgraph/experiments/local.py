"""The plaintext trainings that a job of paradigm local is compared with: GCN+RAW, GCN+RND and GCN+OHD."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from veilgraph.baselines.fitting import Progress
from veilgraph.baselines.local_private import degree_features, random_features, train_local_private
from veilgraph.core.config import JobSettings
from veilgraph.core.errors import ConfigError
from veilgraph.graph.datasets import load_whole
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.kprop import AffineFeatures
from veilgraph.paradigms.run_directory import Record
from veilgraph.roles.role import precision

_MOST_RANDOM: Final = 256
"""Random columns at most; they are dense, where the data sets' own are sparse."""


def _centred(features: AffineFeatures, mean: float) -> AffineFeatures:
    """A GCN hardly learns from features whose common mean outweighs what differs: half as accurate on Cora."""
    return replace(features, offset=-mean)


FEATURES: Final[Mapping[str, Callable[[PartyGraph, int], AffineFeatures]]] = {
    "raw": lambda graph, seed: AffineFeatures(graph.features),
    "random": lambda graph, seed: _centred(
        random_features(graph.num_nodes, min(graph.num_features, _MOST_RANDOM), seed), 0.5
    ),
    "degrees": lambda graph, seed: degree_features(graph),
}
"""What a node has for features, by the kind that the tables use: (graph, seed) → Tensor[N, d]."""


def train_local(job: JobSettings, kind: str, progress: Progress) -> Record:
    """Summary of one training with the job's network and its seed's split, on all labels and nothing perturbed.

    Args:
        job: of paradigm local; ``local.network.hops: 0`` makes it a GCN of two layers. ``local.features`` is not read.
        kind: a name in ``FEATURES``.
        progress: called after every epoch.

    Raises:
        ConfigError: there is no such training of a local job, or its labels are private.
        DataError: the data cannot be read.
    """
    if kind not in FEATURES:
        raise ConfigError(f"kind {kind!r} is not of paradigm='local'; choose from federated, {', '.join(FEATURES)}")
    if job.local.labels is not None:
        raise ConfigError(f"local.labels with kind {kind!r}, which learns from the labels as they are; leave it out")
    graph = load_whole(job.data, job.data.label_party, job.seed)
    features = FEATURES[kind](graph, job.seed)
    network, dtype = job.local.network, precision(job)
    return train_local_private(
        network, job.train, graph, features, seed=job.seed, dtype=dtype, progress=progress
    ).summary
