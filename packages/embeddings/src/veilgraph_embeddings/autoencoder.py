"""A graph autoencoder whose codes keep a graph and one attribute of its nodes, and may be trained to hide another.

Li et al. 2020, *Adversarial Privacy-Preserving Graph Embedding Against Inference Attack* (arXiv:2008.13072), section 4:

    Z' = Â·relu(Â·X·W0)·W1        the code, with Â the normalised adjacency with loops (their eq. 2)
    Z  = relu(Z'·W + b)           made wider, and beside it the hidden value: Z+ = [Z, s]
    Â_uv = sigma(z+_u · z+_v)     edges (their eq. 3, 4), over sampled pairs
    y = softmax(Z+·V + c)         the useful attribute (their eq. 5)

The decoder is given the hidden value s, so that the code need not carry it: *disentangling*. An adversary learns to
predict s from Z', rare values counting as much as others, and the encoder to leave it at an even guess: *purging*. A
discriminator holds Z' to a normal prior, which leaves no room for what the decoder does not need.
docs/reference/errata.md says where this differs from the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.propagate import Adjacency, SparseMatrix
from veilgraph_embeddings.world import World, both_ways, to_scipy

_SKETCH: Final = 64
"""Numbers to which a row of features is projected for its reconstruction."""
_MOST_PAIRS: Final = 1 << 17
"""Edges, and as many pairs that are none, in one step."""
_MOST_ROWS: Final = 1 << 12
"""Nodes, drawn anew, in one step of the adversary and the discriminator, and of what is held against them."""
_ADVERSARY: Final = 64
"""Width of the adversary's and the discriminator's layers."""
_WAVES: Final = 192
_WIDTHS: Final = (0.7, 1.4, 2.8)
"""Of kernels, over √d: how quickly random Fourier features turn."""
_TINY: Final = 1e-6


@dataclass(frozen=True)
class Weights:
    """What the parts of the loss count; 0 leaves a part out, whose network is then not made.

    Attributes:
        keep: cross-entropy of the useful attribute.
        links: cross-entropy of edges against sampled pairs.
        features: squared error of a random projection of the features' rows, each of length 1.
        hide: by which the adversary is fooled.
        match: distance between the distributions of the codes of one hidden value's nodes and of all.
        prior: by which the discriminator is fooled.
        conditioned: whether the decoder is given the hidden value.
    """

    keep: float
    links: float
    features: float
    hide: float = 0.0
    match: float = 0.0
    prior: float = 0.0
    conditioned: bool = False

    @property
    def hides(self) -> bool:
        """Whether anything of the hidden attribute is used."""
        return self.conditioned or self.hide > 0 or self.match > 0


@dataclass(frozen=True)
class Training:
    """How long, how wide.

    Attributes:
        dim: of a code.
        hidden: of the encoder's hidden layer, and of Z.
        epochs: steps of the encoder.
        adversary_steps: of the adversary, and of the discriminator, before each of them.
        learning_rate: Adam's, of all.
        weights: of the loss.
    """

    dim: int
    hidden: int
    epochs: int
    adversary_steps: int
    learning_rate: float
    weights: Weights


Told = Callable[[int, dict[str, float]], None]
"""Epoch, and the parts of the loss then."""


class Encoder(nn.Module):
    """GCN of two layers (Kipf & Welling 2017): features [N, F] and edges to codes [N, d]."""

    def __init__(self, features: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.first = nn.Parameter(nn.init.xavier_uniform_(torch.empty(features, hidden)))
        self.second = nn.Parameter(nn.init.xavier_uniform_(torch.empty(hidden, dim)))

    def forward(self, x: SparseMatrix, adjacency: Adjacency) -> Tensor:
        """Tensor[N, d], Z'."""
        return adjacency.gcn(torch.relu(adjacency.gcn(x.times(self.first))) @ self.second)


class Decoder(nn.Module):
    """Z' and the hidden value (one-hot, or nothing) to edges, the useful attribute, and a sketch of the features."""

    def __init__(self, dim: int, hidden: int, given: int, classes: int) -> None:
        super().__init__()
        self.wide = nn.Linear(dim, hidden)
        self.keep = nn.Linear(hidden + given, classes)
        self.sketch = nn.Linear(hidden + given, _SKETCH)

    def forward(self, code: Tensor, given: Tensor) -> Tensor:
        """Tensor[N, hidden + given], Z+."""
        return torch.cat([torch.relu(self.wide(code)), given], dim=1)


def train(world: World, training: Training, streams: LearningStreams, told: Told) -> tuple[Encoder, Tensor]:
    """Trains an autoencoder.

    Args:
        world: whose values count where they are known.
        training: how.
        streams: of initial weights, sampled pairs and the prior.
        told: called after each epoch.

    Returns:
        The encoder, and the codes Tensor[N, d] float32 that it gives.
    """
    with streams.global_generator("weights"):
        parts = _Parts(world, training)
    generator = streams.generator("steps")
    for epoch in range(1, training.epochs + 1):
        code = parts.code()
        parts.train_adversaries(code.detach(), generator)
        losses = parts.losses(code, generator)
        total = torch.stack(list(losses.values())).sum() if losses else code.sum() * 0
        parts.step(total)
        told(epoch, {name: float(loss.detach()) for name, loss in losses.items()})
    with torch.no_grad():
        return parts.encoder, parts.code().detach()


class _Parts:
    """The networks, their optimisers, and the constants of the world."""

    def __init__(self, world: World, training: Training) -> None:
        self.training, self.weights = training, training.weights
        self.keep, self.hide = world.keep.codes, world.hide.codes
        values = len(world.hide.classes)
        rows = to_scipy(world.features)
        self.x = SparseMatrix(rows)
        self.adjacency = Adjacency.of_edges(both_ways(world.pairs), None, world.num_nodes, torch.float32)
        self.pairs, self.nodes = world.pairs, world.num_nodes
        self.encoder = Encoder(rows.shape[1], training.hidden, training.dim)
        given = functional.one_hot(self.hide.clamp_min(0), values).float() * (self.hide >= 0)[:, None]
        self.given = given if self.weights.conditioned else given[:, :0]
        self.decoder = Decoder(training.dim, training.hidden, self.given.shape[1], len(world.keep.classes))
        self.sketch = _sketch(self.x, rows.shape[1])
        self.told = (self.hide >= 0).nonzero()[:, 0]
        counts = self.hide[self.told].bincount(minlength=values).float()
        self.even = torch.where(counts > 0, len(self.told) / (counts.clamp_min(1) * (counts > 0).sum()), 0.0)
        self.adversary = _network(training.dim, values)
        self.discriminator = _network(training.dim, 1)
        rate = training.learning_rate
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], rate)
        self.adversaries = torch.optim.Adam([*self.adversary.parameters(), *self.discriminator.parameters()], rate)

    def code(self) -> Tensor:
        """Z'."""
        found: Tensor = self.encoder(self.x, self.adjacency)
        return found

    def train_adversaries(self, code: Tensor, generator: torch.Generator) -> None:
        """Take ``adversary_steps`` steps of the adversary and the discriminator; ``code``: detached, Tensor[N, dim]."""
        if not (self.weights.hide or self.weights.prior):
            return
        for _ in range(self.training.adversary_steps):
            loss, some = torch.zeros(()), self._some(generator)
            if self.weights.hide:
                loss = loss + functional.cross_entropy(self.adversary(code[some]), self.hide[some], self.even)
            if self.weights.prior:
                drawn = self.discriminator(torch.randn((len(some), code.shape[1]), generator=generator))
                made = self.discriminator(code[some])
                loss = loss + _is(drawn, 1.0) + _is(made, 0.0)
            self.adversaries.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.adversaries.step()

    def losses(self, code: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """The parts of the encoder's and the decoder's loss, weighted."""
        weights, found = self.weights, dict[str, Tensor]()
        wide = self.decoder(code, self.given)
        known = self.keep >= 0
        if weights.keep and bool(known.any()):
            found["keep"] = weights.keep * functional.cross_entropy(self.decoder.keep(wide[known]), self.keep[known])
        if weights.links and self.pairs.shape[1]:
            found["links"] = weights.links * self._links(wide, generator)
        if weights.features:
            found["features"] = weights.features * functional.mse_loss(self.decoder.sketch(wide), self.sketch)
        some = self._some(generator) if weights.hide or weights.match or weights.prior else self.told
        if weights.hide:
            guess = functional.log_softmax(self.adversary(code[some]), dim=1)
            found["hide"] = -weights.hide * guess[:, self.even > 0].mean()
        if weights.match:
            found["match"] = weights.match * self._apart(code[some], self.hide[some], generator)
        if weights.prior:
            found["prior"] = weights.prior * _is(self.discriminator(code[some]), 1.0)
        return found

    def step(self, loss: Tensor) -> None:
        """One step of encoder and decoder."""
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _links(self, wide: Tensor, generator: torch.Generator) -> Tensor:
        """Edges against as many pairs drawn at random, of which few are edges."""
        pairs = self.pairs
        if pairs.shape[1] > _MOST_PAIRS:
            pairs = pairs[:, torch.randint(pairs.shape[1], (_MOST_PAIRS,), generator=generator)]
        others = torch.randint(self.nodes, tuple(pairs.shape), generator=generator)
        logits = [(wide[one] * wide[other]).sum(dim=1) for one, other in (pairs, others)]
        return (_is(logits[0], 1.0) + _is(logits[1], 0.0)) / 2

    def _some(self, generator: torch.Generator) -> Tensor:
        """Nodes whose hidden value is known: all, or as many of them as a step takes, drawn anew."""
        if len(self.told) <= _MOST_ROWS:
            return self.told
        return self.told[torch.randint(len(self.told), (_MOST_ROWS,), generator=generator)]

    def _apart(self, code: Tensor, values: Tensor, generator: torch.Generator) -> Tensor:
        """How far the codes of each hidden value are from all codes: means, covariances, and MMD with RBF kernels.

        Codes of unit spread; the kernels are random Fourier features of three widths, drawn anew in every step, so that
        no function can be learnt around them (Gretton et al. 2012; Rahimi & Recht 2007). Squares, summed over values.
        """
        rows = (code - code.mean(dim=0)) / (code.std(dim=0) + _TINY)
        waves = torch.randn(rows.shape[1], _WAVES, generator=generator) / rows.shape[1] ** 0.5
        waves = waves * torch.tensor(_WIDTHS).repeat(_WAVES)[:_WAVES]
        turned = rows @ waves
        seen = torch.cat([rows, torch.cos(turned), torch.sin(turned)], dim=1)
        everybody, spread = seen.mean(dim=0), rows.T @ rows / len(rows)
        total = rows.new_zeros(())
        for value in range(len(self.even)):
            chosen = values == value
            if int(chosen.sum()) > 1:
                part = rows[chosen]
                moved = (seen[chosen].mean(dim=0) - everybody).square().sum()
                total = total + moved + (part.T @ part / len(part) - spread).square().mean()
        return total / len(self.even)


def _sketch(x: SparseMatrix, columns: int) -> Tensor:
    """Rows of features under a random projection, each of length 1 (zero rows stay zero): Tensor[N, 64]."""
    return functional.normalize(x.times(torch.randn(columns, _SKETCH)), dim=1)


def _network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, _ADVERSARY),
        nn.ReLU(),
        nn.Linear(_ADVERSARY, _ADVERSARY),
        nn.ReLU(),
        nn.Linear(_ADVERSARY, outputs),
    )


def _is(logits: Tensor, truth: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth))
