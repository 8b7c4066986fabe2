"""What a learner makes of noisy sums over its edges: after each hop a network, whose opinion the next hop adds up.

Source: Sajadmanesh & Gatica-Perez, "ProGAP: Progressive graph neural networks with differential privacy guarantees",
WSDM 2024. Its modules pass on encodings; here it is probabilities of the classes, of as many columns as there are, so
that noise has few entries. All of it is computed from releases and from what is no edge, and costs nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import backward

from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.activation import ACTIVATIONS
from veilgraph.nn.adam import Adam
from veilgraph.nn.dropout import dropout
from veilgraph.nn.linear import linear
from veilgraph.paradigms.node_dp.settings import KPropSettings
from veilgraph.protocol.job import TrainSettings
from veilgraph.protocol.judgement import Judgement
from veilgraph.protocol.scores import Objective


class HopNetwork(nn.Module):
    """Logits of nodes, of noisy sums: a hidden layer, as wide and with the activation and dropout of the job.

    As in ``KPropNetwork`` what goes in is multiplied by a constant, so that one learning rate serves any noise. Call it
    inside ``LearningStreams.global_generator``.

    Args:
        columns: of the sums.
        classes: c.
        settings: of the job's network.
        dtype: of everything.

    Attributes:
        gain: the constant, a buffer; 1 until ``scale`` finds it.
    """

    gain: Tensor

    def __init__(self, columns: int, classes: int, settings: KPropSettings, dtype: torch.dtype) -> None:
        super().__init__()
        self._settings = settings
        self.hidden = linear(columns, settings.dim, bias=True)
        self.output = linear(settings.dim, classes, bias=True)
        self.register_buffer("gain", torch.ones(()))
        self.to(dtype)

    @torch.no_grad()
    def scale(self, sums: Tensor) -> None:
        """Takes the constant from sums, Tensor[N, columns]."""
        spread = (sums @ self.hidden.weight.T).square().mean().sqrt()
        self.gain.copy_(torch.where(spread > 0, 1 / spread, 1.0))

    def forward(self, sums: Tensor, generator: torch.Generator | None) -> Tensor:
        """Tensor[N, columns] to Tensor[N, c]; the generator is of dropout, and None means evaluation."""
        h = ACTIVATIONS[self._settings.activation](self.gain * (sums @ self.hidden.weight.T) + self.hidden.bias)
        logits: Tensor = self.output(dropout(h, self._settings.dropout, generator))
        return logits


class HopLearner(nn.Module):
    """A network after each hop, each of the sums of all hops until then.

    Args:
        settings: of the job's network.
        train: how each of them is trained, and its epoch chosen.
        objective: over the nodes.
        hops: K.
        streams: of the party.
        dtype: of the weights.
    """

    def __init__(
        self,
        settings: KPropSettings,
        train: TrainSettings,
        objective: Objective,
        hops: int,
        streams: LearningStreams,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self._train, self._objective, self._streams, self._dtype = train, objective, streams, dtype
        self._classes = objective.classes
        with streams.global_generator("hops"):
            made = [HopNetwork(hop * self._classes, self._classes, settings, dtype) for hop in range(1, hops + 1)]
        self._networks = made
        self.networks = nn.ModuleList(made)
        self._learnt = 0

    def opinion(self, sums: Tensor) -> Tensor:
        """What each node is taken for after so many hops: its label where it is learnt from, else probabilities.

        Args:
            sums: Tensor[N, k·c], of all k hops until then.

        Returns:
            Tensor[N, c], without a graph.
        """
        with torch.no_grad():
            return self._objective.opinion(self.logits(sums))[1]

    def logits(self, sums: Tensor) -> Tensor:
        """Those of the network after so many hops: Tensor[N, k·c] to Tensor[N, c]."""
        network: HopNetwork = self._networks[sums.shape[1] // self._classes - 1]
        found: Tensor = network(sums.to(self._dtype), None)
        return found

    def learn(self, sums: Tensor) -> None:
        """Trains the networks of as many hops as there are sums of, but those that it has trained before.

        Args:
            sums: Tensor[N, k·c].
        """
        sums = sums.to(self._dtype)
        for hop in range(self._learnt + 1, sums.shape[1] // self._classes + 1):
            self._learn(hop, sums[:, : hop * self._classes])
            self._learnt = hop

    def _learn(self, hop: int, sums: Tensor) -> None:
        network, train, objective = self._networks[hop - 1], self._train, self._objective
        network.scale(sums)
        optimizer = Adam(network.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)
        judgement, best = Judgement(), _clone(network)
        for epoch in range(1, train.epochs + 1):
            optimizer.zero_grad()
            backward(objective.training_loss(network(sums, self._streams.generator("hop dropout", hop, epoch))))
            optimizer.step()
            if epoch % train.evaluate_every and epoch != train.epochs:
                continue
            with torch.no_grad():
                judgement = judgement.after(epoch, objective.score(network(sums, None)), train.select_by)
            if judgement.best_epoch == epoch:
                best = _clone(network)
            if judgement.stops(train):
                break
        network.load_state_dict(best)


def _clone(network: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in network.state_dict().items()}
