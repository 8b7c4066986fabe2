"""The plaintext trainings of a job of paradigm node-dp: GCN+RAW, GCN+RND and GCN+OHD; LPGNN judged by true labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
from veilgraph_datasets.public import musae_data
from veilgraph_node_dp.mechanisms import AffineFeatures, feature_mechanism
from veilgraph_node_dp.settings import KPropSettings, PrivateLabelSettings, node_dp

from research.local_private import LocalPrivateNetwork, NoisyLabels
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER
from veilgraph.graph.dataset import data_root, load_for_learner, load_whole
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.job import JobSettings, TrainSettings
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import precision
from veilgraph.runtime.store.run_directory import Record

_MOST_RANDOM: Final = 256
"""Random columns at most; they are dense, where the data sets' own are sparse."""


def train_local_private(
    settings: KPropSettings,
    train: TrainSettings,
    graph: PartyGraph,
    features: AffineFeatures,
    labels: NoisyLabels | None = None,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    progress: Progress = lambda records: None,
) -> PlainResult:
    """Trains a ``LocalPrivateNetwork``; the arguments are its. Accuracy is micro-F1.

    GCN+RAW is ``hops: 0`` with the raw features, GCN+RND with ``random_features``, GCN+OHD with ``degree_features``.
    """
    return fit(LocalPrivateNetwork(settings, train, graph, features, labels, seed=seed, dtype=dtype), progress)


def random_features(num_nodes: int, columns: int, seed: int) -> AffineFeatures:
    """GCN+RND's: independent numbers, uniform in [0, 1), Tensor[num_nodes, columns] float32."""
    generator = LearningStreams(seed, SERVER).generator("random features")
    return AffineFeatures(torch.rand(num_nodes, columns, generator=generator))


def degree_features(graph: PartyGraph) -> AffineFeatures:
    """GCN+OHD's: a node's number of neighbours, one-hot: ``torch.sparse_csr`` [N, largest + 1] float32."""
    degrees = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    values, rows = torch.ones(graph.num_nodes), torch.arange(graph.num_nodes + 1)
    shape = (graph.num_nodes, int(degrees.max()) + 1)
    return AffineFeatures(torch.sparse_csr_tensor(rows, degrees, values, shape, check_invariants=True))


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


_RELEASED: Final = ("released", "believed")
"""The job's plaintext twin; and the same where released labels are taken for the true ones."""


def _learners_graph(job: JobSettings, kind: str) -> PartyGraph:
    """Read the data set; of LastFM, whose features are hard to come by, what ``kind`` needs."""
    if job.data.dataset != "lastfm" or kind == "raw":
        return load_whole(job.data, job.data.label_party, job.seed)
    data = musae_data("lastfm", data_root(job.data), job.seed, with_features=False)
    return PartyGraph.from_data(job.data.label_party, data)


def train_local(job: JobSettings, kind: str, progress: Progress) -> Record:
    """Summary of one plaintext training with the job's network and its seed's split; test nodes have true labels.

    ``raw``, ``random`` and ``degrees`` learn from all labels and nothing perturbed. ``released`` is the job's twin: it
    learns from what nodes release, chooses the epoch by it, and is judged by the true labels of test nodes, which the
    job itself never has where labels are private. ``believed`` does that without correcting or denoising labels.

    Args:
        job: of paradigm node-dp; ``model.hops: 0`` makes it a GCN of two layers.
        kind: a name in ``FEATURES``, or ``released`` or ``believed``.
        progress: called after every epoch.

    Raises:
        ConfigError: there is no such training of a local job, or it is not one for private labels, or for true ones.
        DataError: the data cannot be read, or a feature lies outside the declared range.
    """
    if kind not in (*FEATURES, *_RELEASED):
        choices = ", ".join((*FEATURES, *_RELEASED))
        raise ConfigError(f"kind={kind!r} is not of paradigm='node-dp'; choose from federated, {choices}")
    private, labels = node_dp(job).release.labels, None
    if kind == "believed" and private is None:
        raise ConfigError("kind='believed' takes released labels for the true ones; give release.labels")
    if kind in FEATURES:
        if private is not None:
            raise ConfigError(f"release.labels with kind {kind!r}, which learns from labels as they are; leave it out")
        graph = _learners_graph(job, kind)
        features = FEATURES[kind](graph, job.seed)
    else:
        graph, features = _released_features(job)
        if private is not None:
            labels = _released_labels(graph, private)
    if kind == "believed" and labels is not None:
        graph, labels = replace(graph, labels=labels.labels), None
    return train_local_private(
        node_dp(job).network,
        job.train,
        graph,
        features,
        labels,
        seed=job.seed,
        dtype=precision(job),
        progress=progress,
    ).summary


def _released_features(job: JobSettings) -> tuple[PartyGraph, AffineFeatures]:
    """The learner's graph, with all labels, and the features that it has: its own, and what the others release."""
    graphs = {graph.party: graph for graph in load_for_learner(job.data, job.data.label_party, job.seed)}
    release = node_dp(job).release.features
    if release is None:
        raise ConfigError("release.features: missing; it says how nodes release theirs")
    learner = graphs[job.data.label_party]
    blocks = [AffineFeatures(learner.features)]
    for holder in job.duties.releasing:
        x = graphs[holder].features
        mechanism = feature_mechanism(release, x.shape[1])
        blocks.append(AffineFeatures(mechanism.release(x, system_secrets), mechanism.scale, mechanism.offset))
    return learner, AffineFeatures.joined(blocks, precision(job))


def _released_labels(graph: PartyGraph, private: PrivateLabelSettings) -> NoisyLabels:
    """Of training and validation nodes; test nodes keep the true ones, to be judged by."""
    true, train, val, classes = graph.labels, graph.train_mask, graph.val_mask, graph.num_classes
    if true is None or train is None or val is None or classes is None:
        raise DataError(f"party {graph.party!r}: labels: they or masks are missing; give the split and the labels")
    response, known, labels = LabelResponse(private.epsilon, classes), train | val, true.clone()
    labels[known] = response.release(true[known], system_secrets)
    return NoisyLabels(labels, response.transition(), private)
