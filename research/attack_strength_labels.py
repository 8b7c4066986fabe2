"""Label inference at a holder of a split network: with no label, with a few, and by training harder than it should."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from research.active_labels import MOST, amplify
from research.attack_strength_models import classes_of
from research.attack_strength_settings import Attacked, StrengthSettings, own_seed
from veilgraph.audit.attack import narrowed
from veilgraph.audit.features import auxiliary_nodes
from veilgraph.audit.labels import KnownLabels, accuracy, binary_targets, blind_labels, few_of_each, match_clusters
from veilgraph.audit.pairs import random_pairs
from veilgraph.graph.features import scale_features
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.view import Floats

_LABELS, _ADVERSARY = "A", "B"
_PAIRS: Final = 5000
_SCALES: Final = {"free rows": False, "rows of length 1": True}
"""Whether the job scales every node's embedding to length 1, as ours do by default."""


def labels(data: Data, other: Data, settings: StrengthSettings, seed: int) -> dict[str, Attacked]:
    """What a holder without labels finds of those of the other holder, in a network split between both.

    Half of the nodes are training nodes. *Blind* are pairs of these, from the gradients that come back, with no label
    known. *Passive* and *active* complete the holder's own local network with three known labels a class, and are asked
    for the classes of the other half; an active holder trains it by longer steps (Fu et al. 2022).
    """
    training = torch.from_numpy(auxiliary_nodes(len(data.y), 0.5, seed=own_seed(seed, 0)))
    judged = torch.zeros_like(training)
    judged[(~training).nonzero()[0]] = True  # a network needs a validation node, and none is chosen by it here
    marked = Data(x=data.x, edge_index=data.edge_index, y=data.y)
    marked.train_mask, marked.val_mask, marked.test_mask = training, judged, ~training & ~judged
    dealt = split_vertically(marked, names=[_LABELS, _ADVERSARY], label_holder=_LABELS, seed=seed)
    graphs = [scale_features(graph, "row") for graph in dealt]
    found: dict[str, Attacked] = {}
    for name, normalize in _SCALES.items():
        job = _job(settings, seed, normalize=normalize)
        for how, most in (("passive", 1.0), ("active", MOST)):
            rows, gradients = _trained(job, graphs, most)
            found[f"{how}, {name}"] = _completed(marked, rows, seed)
            if how == "passive":
                found[f"blind, {name}"] = _blind(marked, gradients, seed)
    found["own features alone"] = _completed(marked, narrowed(graphs[1].features, seed), seed)
    return found


def _job(settings: StrengthSettings, seed: int, *, normalize: bool) -> JobSettings:
    """VFGNN with its strategy concat, where the layers above weigh each holder by itself."""
    content: dict[str, Any] = {
        "preset": "paper",
        "seed": seed,
        "model": {
            "dim": settings.split_width,
            "initial": {"method": "individual"},
            "local": {"model": "sage-mean", "hops": 2, "normalize": normalize},
            "combine": {"strategy": "concat"},
        },
        "train": {"epochs": settings.split_epochs, "patience": None},
    }
    return parse_job(content)


def _trained(job: JobSettings, graphs: list[PartyGraph], most: float) -> tuple[Floats, list[Floats]]:
    """The adversary's embedding [N, d] after training, and the gradients of it in every step."""
    network = PlainNetwork(job, graphs, _LABELS)
    gradients, outputs = list[Floats](), list[Tensor]()

    def watch(module: object, given: object, output: Tensor) -> None:
        outputs[:] = [output]
        if output.requires_grad:
            output.register_hook(lambda gradient: gradients.append(gradient.double().numpy()))  # type: ignore[no-untyped-call]

    holder = network.holders[_ADVERSARY]
    holder.local[-1].register_forward_hook(watch)
    own = list(network.holders).index(_ADVERSARY)
    amplify(network.optimizer, [*holder.parameters(), network.embedding.parameters()[own]], most=most)
    for epoch in range(1, job.train.epochs + 1):
        network.train_step(epoch)
    network.infer()
    return outputs[0].double().numpy(), gradients


def _completed(data: Data, rows: Floats, seed: int) -> Attacked:
    truth, classes = data.y.numpy(), classes_of(data)
    training, asked = (np.flatnonzero(mask.numpy()) for mask in (data.train_mask, data.test_mask))
    known = few_of_each(truth, training, classes, seed)
    scores = KnownLabels(known, truth[known], classes, seed).completion(None, rows)
    values, right = binary_targets(scores - scores[asked].mean(axis=0), truth, asked)
    return Attacked(values, right, None, {"accuracy": accuracy(scores, truth, asked)})


def _blind(data: Data, gradients: list[Floats], seed: int) -> Attacked:
    training = np.flatnonzero(data.train_mask.numpy())
    truth = data.y.numpy()[training]
    found = blind_labels(np.stack([step[training] for step in gradients]), seed=seed)
    pairs = random_pairs(len(training), _PAIRS, np.random.default_rng(seed))
    same = truth[pairs[:, 0]] == truth[pairs[:, 1]]
    return Attacked(
        found.pair_scores(pairs), same, None, {"accuracy": float((match_clusters(found.groups, truth) == truth).mean())}
    )
