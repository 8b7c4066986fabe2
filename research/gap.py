"""GAP, all data in one place: the reference that releases with noise in every hop are measured beside.

After Sajadmanesh, Shamsabadi, Bellet & Gatica-Perez, *GAP: Differentially Private Graph Neural Networks with
Aggregation Perturbation* (USENIX Security 2023), written from its description:

1. *Encoder*: a network of each node's features alone, trained with the labels. Its last layer but one gives X_0.
2. *Aggregation*: rows of length 1, sums over neighbours, Gaussian noise, K times.
3. *Classification*: a network for each of X_0, …, X_K, their outputs side by side, and one more over them.

Level ``edge`` noises the sums alone: an edge moves two rows by 1, both of its directions being one edge, so μ² = 2K/σ².
Level ``node`` also trains encoder and classifier with clipped and noised gradients of single training nodes. A node's
edges move at most D rows by 1 in each hop: its own row goes with it, as GAP counts, so μ² = K·D/σ²; and it is in every
step of both trainings. Half of the wanted μ² is the sums', the rest the trainings'. Where GAP draws batches, all
training nodes take part in every step here: it is exact without amplification, and loses nothing on few labels.

What differs from GAP as published: exact Gaussian composition in place of Rényi's, full batches, and edges beyond D
left out by ``aggregation.bound_degrees`` in place of at random, before anything, which no ε covers in either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from veilgraph_node_dp.sums import pair_matrix

from veilgraph.core.secrets import system_secrets
from veilgraph.graph.features import choose_rows
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.accountant import analytic_multiplier
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.protocol.judge import area_under_curve, balanced_weights

_CLIP: Final = 1.0


@dataclass(frozen=True)
class Gap:
    """How it is trained.

    Attributes:
        level: edge or node.
        epsilon: total; infinity for no noise at all.
        delta: of it.
        hops: K.
        degree_bound: D, for node.
        dim: columns of X_0.
        steps: of each of the two trainings.
        learning_rate: Adam's.
        dropout: of what is hidden, in both trainings.
        by_rank: steps are chosen by AUC in place of accuracy, and of a training without noise all classes weigh alike.
    """

    level: str
    epsilon: float
    delta: float
    hops: int = 2
    degree_bound: int = 20
    dim: int = 16
    steps: int = 150
    learning_rate: float = 0.01
    dropout: float = 0.0
    by_rank: bool = False

    @property
    def multiplier(self) -> float:
        """Noise over the clip with which one release of sensitivity 1 costs all of ε."""
        return analytic_multiplier(self.epsilon, self.delta) if math.isfinite(self.epsilon) else 0.0

    @property
    def sums_deviation(self) -> float:
        """σ of the noise on a sum."""
        if self.level == "edge":
            return self.multiplier * math.sqrt(2 * self.hops)
        return self.multiplier * math.sqrt(2 * self.hops * self.degree_bound)

    @property
    def gradients_deviation(self) -> float:
        """Of the noise on the sum of all training nodes' clipped gradients; a quarter of μ² for each training."""
        return self.multiplier * math.sqrt(4 * self.steps) * _CLIP if self.level == "node" else 0.0


def gap_logits(graph: PartyGraph, how: Gap, seed: int) -> Tensor:
    """Logits of all nodes, those of the step that the validation nodes chose: Tensor[N, classes].

    Args:
        graph: all data in one place, with labels and masks.
        how: it is trained.
        seed: of the weights; noise has none.
    """
    return classified(graph, encoded(graph, how, seed), how, seed)


def encoded(graph: PartyGraph, how: Gap, seed: int) -> Tensor:
    """X_0: Tensor[N, dim], of an encoder trained anew; of level edge, or without noise, the same at every ε.

    Args:
        graph: as for ``gap_logits``.
        how: it is trained.
        seed: of the weights.
    """
    labels, train, val = _learnt_from(graph)
    torch.manual_seed(seed)
    features = graph.features.float()
    encoder = _Encoder(features.shape[1], how, _classes(graph))
    _fit(encoder, (features,), labels, train, val, how)
    with torch.no_grad():
        return encoder.rows(features)


def classified(graph: PartyGraph, rows: Tensor, how: Gap, seed: int) -> Tensor:
    """Logits of all nodes: Tensor[N, classes].

    Args:
        graph: as for ``gap_logits``.
        rows: X_0, Tensor[N, dim].
        how: its hops are noised and its classifier is trained.
        seed: of the weights.
    """
    labels, train, val = _learnt_from(graph)
    torch.manual_seed(seed)
    edges = graph.edge_index
    if how.level == "node":
        edges = edges[:, bound_degrees(edges, graph.num_nodes, how.degree_bound)]
    # X_0 itself stays here: its rows come of the encoder, whose training is private or, of an edge, tells nothing.
    pairs, summed, sums = pair_matrix(edges, None, graph.num_nodes), rows, []
    for _ in range(how.hops):
        found = torch.from_numpy(pairs @ functional.normalize(summed).double().numpy())
        if how.multiplier:
            found += Gaussian(1.0, how.sums_deviation).draw(tuple(found.shape), system_secrets)
        summed = found.float()
        sums.append(summed)
    hops = [functional.normalize(rows), *(functional.normalize(each) for each in sums)]
    return _fit(_Classifier(how, _classes(graph)), hops, labels, train, val, how)


def _learnt_from(graph: PartyGraph) -> tuple[Tensor, Tensor, Tensor]:
    labels, train, val = graph.labels, graph.train_mask, graph.val_mask
    if labels is None or train is None or val is None:
        raise ValueError("graph: without labels and masks nothing can be trained; give the label holder's")
    return labels, train, val


def _classes(graph: PartyGraph) -> int:
    labels, _, _ = _learnt_from(graph)
    return graph.num_classes or int(labels.max()) + 1


class _Encoder(nn.Module):
    def __init__(self, columns: int, how: Gap, classes: int) -> None:
        super().__init__()
        self._first, self._second = nn.Linear(columns, 64), nn.Linear(64, how.dim)
        self._output, self._dropout = nn.Linear(how.dim, classes), nn.Dropout(how.dropout)

    def rows(self, features: Tensor) -> Tensor:
        """X_0: [N, dim]."""
        found: Tensor = functional.selu(self._second(self._dropout(functional.selu(self._first(features)))))
        return found

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        found: Tensor = self._output(self._dropout(self.rows(features)))
        return found


class _Classifier(nn.Module):
    def __init__(self, how: Gap, classes: int) -> None:
        super().__init__()
        self._bases = nn.ModuleList(nn.Linear(how.dim, how.dim) for _ in range(how.hops + 1))
        self._head, self._dropout = nn.Linear(how.dim * (how.hops + 1), classes), nn.Dropout(how.dropout)

    def forward(self, *hops: Tensor) -> Tensor:
        """Logits."""
        joined = torch.cat([functional.selu(base(each)) for base, each in zip(self._bases, hops, strict=True)], dim=-1)
        found: Tensor = self._head(self._dropout(joined))
        return found


def _fit(network: nn.Module, inputs: Sequence[Tensor], labels: Tensor, train: Tensor, val: Tensor, how: Gap) -> Tensor:
    """Trains, loads the step that the validation nodes choose, and gives the logits of all nodes."""
    optimizer = torch.optim.Adam(network.parameters(), lr=how.learning_rate, weight_decay=5e-4)
    mine, its = ([choose_rows(each, mask.nonzero().flatten()) for each in inputs] for mask in (train, val))
    own = labels[train]
    weights = None
    if how.by_rank:
        weights = balanced_weights(own, int(labels.max()) + 1).to(mine[0].dtype)
    best, kept = -1.0, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for _ in range(how.steps):
        network.train()
        optimizer.zero_grad()
        if how.gradients_deviation:
            _noisy_gradients(network, mine, own, how.gradients_deviation)
        else:
            functional.cross_entropy(network(*mine), own, weight=weights).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        network.eval()
        with torch.no_grad():
            score = _serves(network(*its), labels[val], how)
        if score > best:
            best, kept = score, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(kept)
    with torch.no_grad():
        found: Tensor = network(*inputs)
    return found


def _serves(logits: Tensor, labels: Tensor, how: Gap) -> float:
    """How well logits of the validation nodes do, higher is better."""
    found = area_under_curve(logits, labels, lacking=True) if how.by_rank else None
    return float((logits.argmax(dim=1) == labels).double().mean()) if found is None else found


def _noisy_gradients(network: nn.Module, inputs: Sequence[Tensor], labels: Tensor, deviation: float) -> None:
    """The mean gradient of the training nodes, each clipped to length 1, with noise on their sum.

    No node's gradient is formed (Goodfellow, *Efficient Per-Example Gradient Computations*, 2015). With x what went
    into a linear layer and d how a node's loss moves with what came out, that of the weights is d·xᵀ and that of the
    bias d: together |d|²·(|x|² + 1) long, squared. The sum of the clipped is the gradient of the losses' weighted sum.
    All parameters must be linear layers', each used once.
    """
    passed: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        passed.append((given[0], found))

    hooks = [each.register_forward_hook(keep) for each in network.modules() if isinstance(each, nn.Linear)]
    losses = functional.cross_entropy(network(*inputs), labels, reduction="none")
    for hook in hooks:
        hook.remove()
    moved = torch.autograd.grad(losses.sum(), [found for _, found in passed], retain_graph=True)
    squares = torch.zeros_like(losses).unsqueeze(1)
    with torch.no_grad():
        for (given, _), each in zip(passed, moved, strict=True):
            inward = (given * given).sum(dim=1, keepdim=True).to_dense()
            squares += each.square().sum(dim=1, keepdim=True) * (inward + 1)
        factors = (_CLIP / squares.squeeze(1).sqrt().clamp_min(1e-12)).clamp_max(1.0)
    mechanism, parameters = Gaussian(1.0, deviation), list(network.parameters())
    for parameter, total in zip(parameters, torch.autograd.grad(losses @ factors, parameters), strict=True):
        noise = mechanism.draw(tuple(parameter.shape), system_secrets).to(parameter.dtype)
        parameter.grad = (total + noise) / len(labels)
