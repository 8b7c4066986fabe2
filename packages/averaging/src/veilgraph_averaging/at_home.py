"""What a holder makes of a private training at home, of its own data and without noise; it keeps it, and sends nothing.

It is computed after the last round from what was released and from the holder's own data, so ε, which is about what
others find out, is not touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.core.settings import Settings
from veilgraph.graph.features import is_sparse, to_numbers
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.local.build import local_settings
from veilgraph_averaging.network import Averaged, AveragedNetwork, LinearNetwork, NetworkSettings, Own

_RIDGES: Final = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)  # λ, as shares of the mean squared length of a row
_USUAL_RIDGE: Final = 0.01
_SPREAD: Final = 2.0  # standard deviation of scores, before their softmax
_STEPS, _BACK = 4, 0.2  # of scores over own edges, and what share of them comes back in each
_DECAY: Final = 0.03  # of the mixture's distance from the holder by itself
_CLOSE: Final = 1e-10  # so close that sums which differ by rounding alone give the same
_HELD_OUT: Final = 5  # without validation nodes one of so many training nodes is one


class AtHomeSettings(Settings):
    """After the last round a holder trains a correction of the averaged network, of its own; nothing of it is sent."""

    epochs: int = Field(300, ge=1, le=10_000)
    """of Adam; the best on validation nodes is kept, if any"""
    hops: int = Field(1, ge=0, le=16)
    """means of neighbours over own edges"""
    dim: int = Field(16, ge=1, le=4096)
    """its width"""
    learning_rate: float = Field(0.01, gt=0)
    """Adam's"""
    weight_decay: float = Field(5e-4, ge=0)
    """as L2"""


class AtHome(nn.Module, ABC):
    """A network of the holder's own, and what it makes of the averaged network's logits."""

    learnt: Tensor  # whether it has been trained; kept with the weights

    def __init__(
        self, settings: AtHomeSettings, own: Own, classes: int, streams: LearningStreams, dtype: torch.dtype
    ) -> None:
        super().__init__()
        local = local_settings({"model": "sage-mean", "hops": settings.hops, "normalize": False})
        network = NetworkSettings(dim=settings.dim, dropout=0.0, local=local)
        self._settings, self._own = settings, own
        self.network = AveragedNetwork(network, own.graph.num_features, classes, streams, dtype)
        nn.init.zeros_(self.network.output.weight)
        self.register_buffer("learnt", torch.tensor(False))

    @abstractmethod
    def forward(self, averaged: Tensor) -> Tensor:
        """Correct the averaged network's logits of the holder's nodes: Tensor[N, C] to Tensor[N, C]."""

    def learn(self, averaged: Tensor) -> None:
        """Train on the averaged network's logits, Tensor[N, C], unless that was done or there are no training nodes."""
        graph = self._own.graph
        if bool(self.learnt):
            return
        if graph.labels is None or graph.train_mask is None or not bool(graph.train_mask.any()):
            self.learnt.fill_(value=self._learn_without_labels())
            return
        self._learn(averaged, graph, graph.labels, graph.train_mask)
        self.learnt.fill_(value=True)

    def _learn_without_labels(self) -> bool:
        """Make something of what was released alone, and return whether there is anything to make."""
        return False

    @abstractmethod
    def _learn(self, averaged: Tensor, graph: PartyGraph, labels: Tensor, train: Tensor) -> None:
        """Train on the nodes of the mask ``train``, at least one."""

    def _own_logits(self) -> Tensor:
        found: Tensor = self.network(self._own.features, self._own.adjacency, None)
        return found

    def _train_epochs(
        self, logits_of: Callable[[], Tensor], labels: Tensor, train: Tensor, more: Sequence[nn.Parameter] = ()
    ) -> Iterator[Tensor]:
        """Train by Adam, and yield the logits, Tensor[N, C], before the first epoch and after each.

        The network's weights decay, and those of ``more`` do not.
        """
        settings = self._settings
        decayed: dict[str, Any] = {"params": list(self.network.parameters()), "weight_decay": settings.weight_decay}
        groups = [decayed, {"params": list(more)}] if more else [decayed]
        optimizer = torch.optim.Adam(groups, lr=settings.learning_rate)
        for epoch in range(settings.epochs + 1):
            with torch.enable_grad():
                logits = logits_of()
                loss = functional.cross_entropy(logits[train], labels[train])
            yield logits.detach()
            if epoch < settings.epochs:
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()

    def _copy_state(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}


class Personalised(AtHome):
    """A correction of the averaged network.

        logits = a·o + b·(mean of the neighbours' o) + N(x, edges)

    with o the logits of the averaged network, which stays as it is, and N, a and b the holder's own. They begin at
    N = 0, a = 1 and b = 0, the averaged network alone, and learn from its training nodes by Adam; then once more with
    a = b = 0 throughout, the holder by itself, for an averaged network that noise has left nothing of. What did best on
    its validation nodes is kept.

    To start from a global model and correct it where one's own data say otherwise is old in federated learning (Bietti
    et al. 2022, ICML, https://proceedings.mlr.press/v162/bietti22a.html, with privacy of the part that is shared).
    """

    def __init__(
        self, settings: AtHomeSettings, own: Own, classes: int, streams: LearningStreams, dtype: torch.dtype
    ) -> None:
        super().__init__(settings, own, classes, streams, dtype)
        self.mix = nn.Parameter(torch.tensor([1.0, 0.0], dtype=dtype))

    @override
    def forward(self, averaged: Tensor) -> Tensor:
        near = self._own.adjacency.mean(averaged)
        return self.mix[0] * averaged + self.mix[1] * near + self._own_logits()

    @override
    def _learn(self, averaged: Tensor, graph: PartyGraph, labels: Tensor, train: Tensor) -> None:
        judged = graph.val_mask if graph.val_mask is not None and bool(graph.val_mask.any()) else None
        best, kept, start = (-1.0, 0.0), self._copy_state(), self._copy_state()
        for together in (True, False) if judged is not None else (True,):
            self.load_state_dict(start)
            if not together:
                nn.init.zeros_(self.mix)
            more = (self.mix,) if together else ()
            for logits in self._train_epochs(lambda: self(averaged), labels, train, more):
                if judged is not None and (now := _accuracy_and_loss(logits[judged], labels[judged])) > best:
                    best, kept = now, self._copy_state()
        if judged is not None:
            self.load_state_dict(kept)


class ClassSums(AtHome):
    """What noisy sums of rows for each class, W of [C, F], add to the holder by itself.

        z = (E + λI)⁻¹·Wᵀ applied to a row, with E the mean of x·xᵀ over all of the holder's own nodes
        z⁺ = z after four steps of 0.8·(mean of the neighbours) + 0.2·z
        logits = a·log p(N) + b·log p(z) + c·log p(z⁺) + d

    E has no noise, for it is the holder's own: with W it is ridge regression on all holders' training nodes, as far as
    rows are distributed alike at all. N is the holder's network by itself; λ, a, b, c and d are of its validation
    nodes, the latter by regression that begins at a = 1 and all else 0. A holder without labels has z⁺, with a usual λ.
    """

    solved: Tensor
    shift: Tensor
    mix: Tensor
    bias: Tensor

    def __init__(
        self,
        settings: AtHomeSettings,
        own: Own,
        classes: int,
        streams: LearningStreams,
        dtype: torch.dtype,
        sums: Callable[[], Tensor],
    ) -> None:
        super().__init__(settings, own, classes, streams, dtype)
        self._sums, self._streams = sums, streams
        self.register_buffer("solved", torch.zeros(own.graph.num_features, classes, dtype=dtype))
        self.register_buffer("shift", torch.zeros(classes, dtype=dtype))
        self.register_buffer("mix", torch.tensor([1.0, 0.0, 0.0], dtype=dtype))
        self.register_buffer("bias", torch.zeros(classes, dtype=dtype))

    @override
    def forward(self, averaged: Tensor) -> Tensor:
        if not bool(self.learnt):
            return averaged
        own = self._own_logits().log_softmax(1)
        parts = [own, *(scores.log_softmax(1) for scores in self._scores())]
        return sum((weight * part for weight, part in zip(self.mix, parts, strict=True)), start=self.bias)

    @override
    def _learn(self, averaged: Tensor, graph: PartyGraph, labels: Tensor, train: Tensor) -> None:
        train, judged = self._divided(graph, train)
        best, kept = (-1.0, 0.0), self._copy_state()
        for logits in self._train_epochs(self._own_logits, labels, train):
            if (now := _accuracy_and_loss(logits[judged], labels[judged])) > best:
                best, kept = now, self._copy_state()
        self.load_state_dict(kept)
        self.add_sums(judged)

    def add_sums(self, judged: Tensor) -> None:
        """Choose λ and the weights of all parts by the nodes of the mask ``judged``; N stays as it is."""
        graph, labels = self._own.graph, self._own.graph.labels
        assert labels is not None
        best, chosen = (-1.0, 0.0), (self.solved, self.shift)
        for ridge in _RIDGES:
            self.solved, self.shift = self._solve(graph, ridge)
            now = max(_accuracy_and_loss(scores[judged], labels[judged]) for scores in self._scores())
            if now > best:
                best, chosen = now, (self.solved, self.shift)
        self.solved, self.shift = chosen
        parts = [self._own_logits().detach(), *self._scores()]
        self.mix, self.bias = _mixture([part[judged].log_softmax(1) for part in parts], labels[judged])

    @override
    def _learn_without_labels(self) -> bool:
        self.use_sums_alone()
        return True

    def use_sums_alone(self, ridge: float = _USUAL_RIDGE) -> None:
        """Take z⁺ with this λ, and nothing else, as a holder without labels does."""
        self.solved, self.shift = self._solve(self._own.graph, ridge)
        self.mix, self.bias = torch.tensor([0.0, 0.0, 1.0], dtype=self.mix.dtype), torch.zeros_like(self.bias)

    def _divided(self, graph: PartyGraph, train: Tensor) -> tuple[Tensor, Tensor]:
        """Masks of nodes to train on, and of those to judge by: the validation nodes, or a fifth of the others."""
        if graph.val_mask is not None and bool(graph.val_mask.any()):
            return train, graph.val_mask
        nodes = train.nonzero().flatten()
        drawn = nodes[torch.randperm(len(nodes), generator=self._streams.generator("held out"))]
        judged = torch.zeros_like(train)
        judged[drawn[: max(1, len(nodes) // _HELD_OUT)]] = True
        return (train & ~judged if len(nodes) > 1 else train), judged

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Z and z⁺: Tensor[N, C] each."""
        scores = self._own.features.times(self.solved) - self.shift
        moved = scores
        for _ in range(_STEPS):
            moved = (1 - _BACK) * self._own.adjacency.mean(moved) + _BACK * scores
        return scores, moved

    def _solve(self, graph: PartyGraph, ridge: float) -> tuple[Tensor, Tensor]:
        """(E + λI)⁻¹·Wᵀ, scaled so that scores have the deviation ``_SPREAD``, and their means: [F, C] and [C]."""
        from scipy.sparse.linalg import LinearOperator, cg  # noqa: PLC0415 - slow to import, for private jobs alone

        rows: Any = to_numbers(graph.features)
        count, columns = rows.shape
        entries = graph.features.values() if is_sparse(graph.features) else graph.features
        shift = ridge * max(float(entries.double().square().sum()) / count, 1e-12)

        def multiply(vector: NDArray[Any]) -> NDArray[Any]:
            product: NDArray[Any] = rows.T @ (rows @ vector) / count + shift * vector
            return product

        operator = LinearOperator((columns, columns), matvec=multiply, dtype=np.float64)
        solved = np.stack([cg(operator, column, rtol=_CLOSE)[0] for column in self._sums().double().numpy()], 1)
        scores = rows @ solved
        scale = _SPREAD / max(float(scores.std()), 1e-12)
        found = torch.from_numpy(solved * scale), torch.from_numpy(np.asarray(scores.mean(0)).ravel() * scale)
        return found[0].to(self.solved.dtype), found[1].to(self.solved.dtype)


def at_home(
    settings: AtHomeSettings,
    own: Own,
    classes: int,
    streams: LearningStreams,
    dtype: torch.dtype,
    network: Averaged,
) -> AtHome | None:
    """Make what a holder has at home beside the averaged ``network``; None: nothing, without labels."""
    if isinstance(network, LinearNetwork):
        return ClassSums(settings, own, classes, streams, dtype, network.output.weight.detach)
    return None if own.graph.labels is None else Personalised(settings, own, classes, streams, dtype)


def _mixture(parts: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit weights of log-probabilities, Tensor[V, C] each, and a bias to labels: [parts] and [C].

    Cross-entropy with L2 on the distance from the first part alone, in units of each part's root mean square.
    """
    together, target = torch.stack([part.double() for part in parts]), torch.eye(len(parts), dtype=torch.float64)[0]
    units = together.square().mean((1, 2)).sqrt()
    mix, bias = target.clone().requires_grad_(), torch.zeros(together.shape[2], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [mix, bias], max_iter=500, tolerance_grad=_CLOSE, tolerance_change=_CLOSE**2, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        far = ((mix - target) * units).square().sum() + bias.square().sum()
        found = functional.cross_entropy((mix[:, None, None] * together).sum(0) + bias, labels) + _DECAY / 2 * far
        found.backward()  # type: ignore[no-untyped-call]
        return found

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return mix.detach().to(parts[0].dtype), bias.detach().to(parts[0].dtype)


def _accuracy_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return accuracy and minus cross-entropy, compared in this order: higher is better."""
    right = float((logits.argmax(dim=1) == labels).double().mean())
    return right, -float(functional.cross_entropy(logits, labels))
