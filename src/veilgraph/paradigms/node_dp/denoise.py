"""Learning from labels that went through randomised response: forward correction and denoising over neighbours.

Source: Sajadmanesh & Gatica-Perez, "Locally private graph neural networks", CCS 2021, section 3.3 (Drop); the
correction is Patrini et al. 2017.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from veilgraph.core.errors import DataError
from veilgraph.nn.correction import corrected
from veilgraph.nn.propagate import Adjacency
from veilgraph.paradigms.node_dp.kprop import propagate
from veilgraph.paradigms.node_dp.settings import DenoiseSettings


class LabelDenoising:
    """Compares what the network says of a node's neighbours' labels, K_y hops away, with those labels.

    Both sides are the same linear function of labels: ỹ = A^K_y·Y' over its row sums, Y' being one-hot for nodes whose
    perturbed label is known and zero for others, and p̃ = A^K_y·p(y'|x) over the same. So with the true p(y|x) p̃ is the
    expectation of ỹ, whose noise falls with the number of labels in reach. Where none is, the node's own takes its
    place.

    Args:
        labels: Tensor[N] int64, perturbed; read where ``known``.
        known: Tensor[N] bool, nodes whose perturbed label the server has.
        transition: Tensor[c, c], as for ``corrected``.
        settings: K_y and the targets.
        adjacency: of a linear aggregate without self-loops, as ``neighbour_adjacency`` makes it.

    Attributes:
        targets: ỹ, Tensor[N, c] of probabilities, one-hot where settings say ``hard``.

    Raises:
        DataError: the transition is no matrix of probabilities, or a known label is none of its classes.
    """

    def __init__(
        self, labels: Tensor, known: Tensor, transition: Tensor, settings: DenoiseSettings, adjacency: Adjacency
    ) -> None:
        classes = _checked(transition, labels[known])
        self._transition = transition.to(adjacency.dtype)
        self._steps, self._adjacency = settings.denoise_steps, adjacency
        self._known = known.to(adjacency.dtype).unsqueeze(1)
        self._reach = propagate(adjacency, self._known, self._steps)
        own = functional.one_hot(torch.where(known, labels, 0), classes).to(adjacency.dtype)
        self.targets = self._aggregated(own)
        if settings.targets == "hard":
            self.targets = functional.one_hot(self.targets.argmax(dim=1), classes).to(adjacency.dtype)

    def loss(self, logits: Tensor, nodes: Tensor) -> Tensor:
        """Mean cross-entropy of p̃ against the targets.

        Args:
            logits: Tensor[N, c] of the true classes.
            nodes: Tensor[N] bool, those to learn from.
        """
        predicted = self._aggregated(corrected(logits, self._transition))
        least = torch.finfo(predicted.dtype).tiny
        return -(self.targets[nodes] * predicted[nodes].clamp_min(least).log()).sum(dim=1).mean()

    def scores(self, logits: Tensor) -> Tensor:
        """Logits of the perturbed labels, log p(y'|x): Tensor[N, c] to Tensor[N, c]."""
        return corrected(logits, self._transition).clamp_min(torch.finfo(logits.dtype).tiny).log()

    def _aggregated(self, probabilities: Tensor) -> Tensor:
        """A^K_y·(known·p) over its row sums; p where that is zero. Tensor[N, c] to Tensor[N, c]."""
        if self._steps == 0:
            return probabilities
        total = propagate(self._adjacency, self._known * probabilities, self._steps)
        reached = self._reach > 0
        return torch.where(reached, total / torch.where(reached, self._reach, 1.0), probabilities)


def _checked(transition: Tensor, labels: Tensor) -> int:
    """The number of classes."""
    if transition.dim() != 2 or transition.shape[0] != transition.shape[1]:
        raise DataError(f"transition: of shape {list(transition.shape)} must be [c, c]: a row for every true class")
    if bool((transition < 0).any()) or not torch.allclose(transition.sum(dim=1), torch.ones_like(transition[0])):
        raise DataError("transition: has a row that is no distribution: probabilities of the released label, sum 1")
    classes = len(transition)
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise DataError(
            f"labels: lie in {int(labels.min())}..{int(labels.max())}, and transition has {classes} classes from 0; "
            "give the matrix of the mechanism that released them"
        )
    return classes
