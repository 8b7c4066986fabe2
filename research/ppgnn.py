"""PPGNN, which SAPGNN is compared with (5.2), as published and end to end.

Every holder has all columns of all nodes, and its own edges. As published (``two_stages``), holders train by
themselves first; then a linear map predicts from their embeddings side by side. SAPGNN's authors do not say how the
embeddings are combined; those of separate trainings have no common basis, so they are concatenated here. End to end
(``ppgnn``) it is VFGNN, the later version of the same work, which trains all parts together.

The layers are those of SAPGNN's eq. 23, as for all methods of its evaluation, with weights of each holder's own:

    t_v = x_v + max(0, max x_u)            what a holder has once and for all
    h_v = dropout(activation(W·t_v))       h^0 of VFGNN
    z_v = h_v + max(0, max h_u)            its local embedding
    logits of the mean of all z_v          at the label holder

With one holder the end-to-end network is the horizontal network itself, whose W has a bias too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.autograd import backward

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import MASKS, SERVER
from veilgraph.graph.features import compact
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.nn.layers import Adam, linear
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.paradigms.horizontal.network import HolderLayer, layer_widths
from veilgraph.paradigms.horizontal.settings import HorizontalSettings, horizontal
from veilgraph.paradigms.horizontal.twin import LayeredNetwork
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.figures import Scores
from veilgraph.protocol.job import JobSettings, TrainSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.plain_fitting import PlainResult, Progress, fit
from veilgraph.protocol.role import precision


def ppgnn(
    settings: JobSettings, parts: Sequence[HorizontalPart], progress: Progress = lambda records: None
) -> PlainResult:
    """Train PPGNN end to end on a horizontal split.

    Its holders must be aligned on all nodes, so the split has ``data.partition.knows: all``. The paper does not say who
    has the labels; here it is ``data.label_party`` alone, as in VFGNN, which loses nothing, as all have the same.

    Args:
        settings: the horizontal job.
        parts: of all holders, in its order.
        progress: called after every epoch.

    Raises:
        ConfigError: the job's network is not that of eq. 23 with two layers.
        DataError: the holders know different nodes.
    """
    _check_aligned(parts)
    vertical = as_vertical(settings)
    dtype = precision(settings)
    graphs = [_first_layer(settings, part.graph, dtype) for part in parts]
    network = PlainNetwork(
        vertical, graphs, settings.data.label_party, lambda dim: _LastLayer(horizontal(settings).model, dim, dtype)
    )
    return fit(network, progress)


def as_vertical(settings: JobSettings) -> JobSettings:
    """The vertical job with the same training, and a network of the same width, activation and dropout.

    Raises:
        ConfigError: as ``ppgnn``.
    """
    network = horizontal(settings).model
    if (network.layers, network.message, network.update) != (2, "none", "sum") or not network.pools:
        raise ConfigError(
            f"horizontal: layers={network.layers}, message={network.message!r}, aggregate={network.aggregate!r}, "
            f"update={network.update!r}: PPGNN is offered for the network of SAPGNN's eq. 23 alone; set 2, none, max "
            "or min, and sum"
        )
    if network.server.batch_norm:
        raise ConfigError("model.server.batch_norm=true: PPGNN has none; set it to false")
    server = network.server
    content = settings.model_dump(
        mode="json", exclude={"paradigm": True, "model": True, "horizontal": True, "data": {"partition"}}
    )
    content["preset"] = "paper"
    content["model"] = {
        "dim": network.dim,
        "initial": {"method": "individual", "activation": server.activation, "dropout": server.dropout},
        "local": {"model": "custom", "normalize": False},
        "combine": {"strategy": "mean"},
        "server": {"layers": 0, "dropout": 0.0},
    }
    return parse_job(content, f"PPGNN of {settings.name}")


def two_stages(
    settings: JobSettings, parts: Sequence[HorizontalPart], progress: Progress = lambda records: None
) -> PlainResult:
    """Train every holder alone, then a linear map from all their embeddings; arguments and errors are ``ppgnn``'s."""
    _check_aligned(parts)
    as_vertical(settings)  # refuses other networks
    network, dtype = horizontal(settings).model, precision(settings)
    alone = [_Alone(network, settings.train, [part], seed=settings.seed, dtype=dtype) for part in parts]
    embeddings = torch.cat([fit(each, progress).output for each in alone], dim=1)
    return fit(_Joint(embeddings, parts[0].graph, settings.train, settings.seed), progress)


class _Alone(LayeredNetwork):
    """One holder's network, whose output is its embeddings."""

    def infer(self) -> Tensor:
        """Tensor[N, width], of the chosen epoch."""
        with torch.no_grad():
            return self.forward(None)

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """Score embeddings by the newest predict layer."""
        with torch.no_grad():
            return super().score(self.holder.predict(logits), everything=everything)


class _Joint:
    """A linear map from fixed embeddings to class scores.

    Args:
        embeddings: Tensor[N, P·d].
        graph: with labels and masks.
        train: of the training.
        seed: of the first weights.
    """

    def __init__(self, embeddings: Tensor, graph: PartyGraph, train: TrainSettings, seed: int) -> None:
        self.train_settings, self._embeddings = train, embeddings
        self._objective = Objective(graph, train, embeddings.dtype)
        with LearningStreams(seed, SERVER).global_generator("second stage"):
            self._predict = linear(embeddings.shape[1], self._objective.classes, bias=True).to(embeddings.dtype)
        self._optimizer = Adam(self._predict.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)

    def train_step(self, epoch: int) -> float:
        """One step over all training nodes."""
        self._optimizer.zero_grad()
        loss = self._objective.training_loss(self._predict(self._embeddings))
        backward(loss)
        self._optimizer.step()
        return float(loss.detach())

    def infer(self) -> Tensor:
        """Logits, Tensor[N, C]."""
        with torch.no_grad():
            logits: Tensor = self._predict(self._embeddings)
            return logits

    judged = infer

    def score(self, logits: Tensor, *, everything: bool = False) -> Scores:
        """As ``Objective.score``."""
        return self._objective.score(logits, everything=everything)


def _check_aligned(parts: Sequence[HorizontalPart]) -> None:
    if any(not torch.equal(part.ids, parts[0].ids) for part in parts):
        raise DataError("data.partition: PPGNN's holders must all know the same nodes; set knows to all")


class _LastLayer(nn.Module):
    """The second layer's pooling over a holder's own edges, as a local model; without weights."""

    def __init__(self, settings: HorizontalSettings, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._layer = HolderLayer(settings, layer_widths(settings, dim)[-1])
        self._dtype = dtype
        self._adjacency: Adjacency | None = None

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Tensor[N, d] to Tensor[N, d]; edges stay those of the first call."""
        if self._adjacency is None:
            self._adjacency = Adjacency.of_edges(edge_index, edge_weight, len(x), self._dtype)
        embedding: Tensor = self._layer(x, self._adjacency)
        return embedding


def _first_layer(settings: JobSettings, graph: PartyGraph, dtype: torch.dtype) -> PartyGraph:
    """The graph with the first layer's t as its features, and labels at the label holder alone."""
    layer = HolderLayer(horizontal(settings).model, layer_widths(horizontal(settings).model, graph.num_features)[0])
    pooled = layer(FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype))
    nobody: dict[str, None] = {} if graph.party == settings.data.label_party else dict.fromkeys(("labels", *MASKS))
    return replace(graph, features=compact(pooled), **nobody)  # type: ignore[arg-type]
