"""Small private jobs and graphs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.network import AveragedNetwork
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.private.sampled import SampledPublisher
from veilgraph_averaging.settings import AveragingJob, averaging

from tests.chance import drawing_from
from tests.paradigms.averaging.jobs import graphs
from tests.roles.federation import Settings, merge
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource
from veilgraph.core.types import SERVER
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job

CLASSES = 2
FEATURES = 3
BASE: Settings = {
    "paradigm": "averaging",
    "precision": "float64",
    "timeout_s": 60,
    "data": {"dataset": "synthetic", "holders": 3, "split": [0.6, 0.2, 0.2], "stratify": False},
    "model": {"dim": 3, "dropout": 0.0, "local": {"model": "gin", "hops": 1, "normalize": False}},
    "averaging": {
        "rule": {"name": "fedsgd"},
        "local_epochs": 1,
        "patience_s": 5,
        "privacy": {"noise_multiplier": 4.0, "degree_bound": 20, "batch": 8, "sampling_rate": 0.1, "delta": 1e-5},
    },
    "train": {"epochs": 3, "patience": None, "select_by": "last", "learning_rate": 0.5, "checkpoint_every": 1},
}


def job(*changes: Settings) -> AveragingJob:
    return averaging(parse_job(merge(BASE, *changes)))


def local(model: str, hops: int) -> Settings:
    return {"model": {"local": {"model": model, "hops": hops}}}


def network(settings: AveragingJob, features: int = FEATURES) -> AveragedNetwork:
    """With weights other than zero everywhere."""
    found = AveragedNetwork(settings.model, features, CLASSES, LearningStreams(settings.seed, SERVER), torch.float64)
    found.take(torch.randn(len(found.vector()), generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return found


def graph(nodes: int, edges: Iterable[tuple[int, int]], trained: Tensor | None = None) -> PartyGraph:
    """With random features and labels; an edge goes one way, as given."""
    generator = torch.Generator().manual_seed(nodes)
    mask = torch.ones(nodes, dtype=torch.bool) if trained is None else trained
    return PartyGraph(
        party="A",
        features=torch.randn(nodes, FEATURES, generator=generator, dtype=torch.float64),
        edge_index=torch.tensor(list(edges), dtype=torch.int64).reshape(-1, 2).t().contiguous(),
        labels=torch.randint(CLASSES, (nodes,), generator=generator),
        train_mask=mask,
        val_mask=~mask,
        num_classes=CLASSES,
    )


def without(whole: PartyGraph, node: int) -> PartyGraph:
    """The same with a node's features zero, no edge at it, and without its label: absent."""
    assert whole.labels is not None
    assert whole.train_mask is not None
    features, labels, mask = whole.features.clone(), whole.labels.clone(), whole.train_mask.clone()
    features[node], labels[node], mask[node] = 0.0, -1, False
    kept = whole.with_edges((whole.edge_index != node).all(dim=0))
    return PartyGraph(
        party="A",
        features=features,
        edge_index=kept.edge_index,
        labels=labels,
        train_mask=mask,
        val_mask=torch.zeros_like(mask),
        num_classes=CLASSES,
    )


def source(name: str) -> SecretSource:
    """Of a party's noise and draws, the same again."""
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    return lambda count: bytes(torch.randint(256, (count,), generator=generator, dtype=torch.uint8).tolist())


@contextmanager
def known_noise() -> Iterator[None]:
    """Runs of private trainings whose parties draw from ``source``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SampledPublisher, "__init__", drawing_from(source))
        yield


def twin_of(settings: AveragingJob, given: Sequence[PartyGraph] | None = None) -> PlainAveraging:
    """The twin after all rounds, by the noise of ``source``; of the job's graphs, or of others."""
    assert settings.training_plan is not None
    given = graphs(settings) if given is None else given
    own = {each.party: settings.training_plan.paid_by(None, source(each.party)) for each in given}
    twin = PlainAveraging(settings, given, own)
    for number in range(1, settings.train.epochs + 1):
        assert twin.round(number) is None
    return twin
