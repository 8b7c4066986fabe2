"""What a holder adds to a private model at home: logits of its own, from all its edges and labels, without noise.

    logits = a·o + b·(mean of the neighbours' o) + N(x, edges)

with o the logits of the averaged network, which stays as it is, and N, a and b the holder's own. They begin at N = 0,
a = 1 and b = 0, the averaged network alone, and learn from its training nodes by Adam; then once more with a = b = 0
throughout, the holder by itself, for an averaged network that noise has left nothing of. What did best on its
validation nodes is kept. It is computed after the last round from what was released and from the holder's own data, and
goes nowhere: ε, which is about what others find out, is not touched. It is the cheapest private use of edges there is.

To start from a global model and correct it where one's own data say otherwise is old in federated learning (Bietti et
al. 2022, ICML, https://proceedings.mlr.press/v162/bietti22a.html, with privacy of the part that is shared).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.local.build import local_settings
from veilgraph.paradigms.averaging.at_home_settings import AtHomeSettings
from veilgraph.paradigms.averaging.network import AveragedNetwork
from veilgraph.paradigms.averaging.network_settings import NetworkSettings
from veilgraph.paradigms.averaging.tasks.own import Own


class AtHome(nn.Module):
    """A holder's own correction of the averaged network.

    Args:
        settings: of the job.
        own: the holder's data.
        classes: C.
        streams: the holder's.
        dtype: of the weights.

    Attributes:
        learnt: whether it has been trained; kept with the weights.
    """

    learnt: Tensor

    def __init__(
        self, settings: AtHomeSettings, own: Own, classes: int, streams: LearningStreams, dtype: torch.dtype
    ) -> None:
        super().__init__()
        local = local_settings({"model": "sage-mean", "hops": settings.hops, "normalize": False})
        network = NetworkSettings(dim=settings.dim, dropout=0.0, local=local)
        self._settings, self._own = settings, own
        self.network = AveragedNetwork(network, own.graph.num_features, classes, streams, dtype)
        self.mix = nn.Parameter(torch.tensor([1.0, 0.0], dtype=dtype))
        nn.init.zeros_(self.network.output.weight)
        self.register_buffer("learnt", torch.tensor(False))

    def forward(self, averaged: Tensor) -> Tensor:
        """Logits of all of the holder's nodes.

        Args:
            averaged: Tensor[N, C], those of the averaged network.
        """
        near = self._own.adjacency.mean(averaged)
        found: Tensor = self.network(self._own.features, self._own.adjacency, None)
        return self.mix[0] * averaged + self.mix[1] * near + found

    def learn(self, averaged: Tensor) -> None:
        """Trains once; nothing happens where that was done before, or there are no training nodes.

        Args:
            averaged: as for ``forward``.
        """
        graph = self._own.graph
        if bool(self.learnt) or graph.labels is None or graph.train_mask is None or not bool(graph.train_mask.any()):
            return
        labels, train = graph.labels, graph.train_mask
        judged = graph.val_mask if graph.val_mask is not None and bool(graph.val_mask.any()) else None
        best, kept, start = (-1.0, 0.0), self._weights(), self._weights()
        for together in (True, False) if judged is not None else (True,):
            self.load_state_dict(start)
            if not together:
                nn.init.zeros_(self.mix)
            for logits in self._epochs(averaged, labels, train, together=together):
                if judged is not None and (now := _judged(logits[judged], labels[judged])) > best:
                    best, kept = now, self._weights()
        if judged is not None:
            self.load_state_dict(kept)
        self.learnt.fill_(value=True)

    def _epochs(self, averaged: Tensor, labels: Tensor, train: Tensor, *, together: bool) -> Iterator[Tensor]:
        """Logits before the first epoch of Adam and after each."""
        settings = self._settings
        decayed: dict[str, Any] = {"params": list(self.network.parameters()), "weight_decay": settings.weight_decay}
        groups = [decayed, {"params": [self.mix]}] if together else [decayed]
        optimizer = torch.optim.Adam(groups, lr=settings.learning_rate)
        for epoch in range(settings.epochs + 1):
            with torch.enable_grad():
                logits = self(averaged)
                loss = functional.cross_entropy(logits[train], labels[train])
            yield logits.detach()
            if epoch < settings.epochs:
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}


def _judged(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy, and of two that are equal the lower loss: higher is better."""
    right = float((logits.argmax(dim=1) == labels).double().mean())
    return right, -float(functional.cross_entropy(logits, labels))
