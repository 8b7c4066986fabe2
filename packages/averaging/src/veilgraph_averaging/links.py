"""Link prediction: of two nodes of one holder whether they are joined.

Pairs are a holder's own edges, divided into splits, and pairs of its nodes without an edge, drawn at home.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import linear
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.protocol.figures import Figure, Measures, Scores
from veilgraph.protocol.judge import Predicted, binned_auc, binned_precision, histogram
from veilgraph_averaging.network import Averaged, AveragedNetwork, Own
from veilgraph_averaging.tasks import Judging, Subject, Task, TaskSettings, graph_network, side_by_side

TRAIN: Final = 0
_ATTEMPTS: Final = 16
"""How often a pair is drawn; it is left out where it had an edge every time, in a graph that is nearly complete."""


class Pairs(NamedTuple):
    """Pairs of nodes, whichever the direction; the last dimension of each tensor counts them.

    Attributes:
        first: Tensor[M] int64, of the holder's rows the first: pairs without an edge are drawn among its own nodes.
    """

    ends: Tensor  # Tensor[2, M] int64, of each pair the two nodes
    split: Tensor  # Tensor[M] int64: 0 training, 1 validation, 2 test
    linked: Tensor  # Tensor[M] bool, whether there is an edge
    first: Tensor
    nodes: Tensor  # Tensor[M] int64, how many rows the holder has

    @property
    def size(self) -> int:
        """M."""
        return len(self.split)

    def where(self, chosen: Tensor) -> Pairs:
        """Return the pairs that ``chosen`` selects: Tensor[M] bool, or Tensor of indices."""
        return Pairs(*(column[..., chosen] for column in self))


@dataclass(frozen=True, eq=False)
class PairsOwn(Own):
    """A holder's graph of training edges alone, and its pairs."""

    pairs: Pairs  # all edges, and as many pairs without; they are what a model is judged on
    taken: Tensor  # Tensor[T] int64 ascending, keys of the training edges, beside which training draws pairs

    @classmethod
    def divided(
        cls, graph: PartyGraph, dtype: torch.dtype, streams: LearningStreams, validation: float, test: float
    ) -> Self:
        """Split a holder's edges at random, without loops, and draw as many pairs without an edge."""
        nodes = graph.num_nodes
        keys = _pair_keys(graph.edge_index, nodes)
        every = torch.unique(keys[graph.edge_index[0] != graph.edge_index[1]])
        order = torch.randperm(len(every), generator=streams.generator("links"))
        split = torch.zeros(len(every), dtype=torch.int64)
        held, last = round(validation * len(every)), round(test * len(every))
        split[order[:held]], split[order[held : held + last]] = 1, 2
        edges = Pairs(
            torch.stack([every // nodes, every % nodes]),
            split,
            torch.ones(len(every), dtype=torch.bool),
            torch.zeros(len(every), dtype=torch.int64),
            torch.full((len(every),), nodes),
        )
        drawn = unlinked(edges, every, nodes, streams.generator("no links"))
        taken = every[split == TRAIN]
        seen = graph.with_edges(torch.isin(keys, every[split != TRAIN], invert=True))
        ready = Own.of(seen, dtype)
        return cls(seen, ready.features, ready.adjacency, _concatenate([edges, drawn]), taken)

    @classmethod
    def joined(cls, owns: Sequence[PairsOwn], dtype: torch.dtype) -> Self:
        """Join several holders' graphs and pairs; each pair stays between nodes of its holder."""
        graph = side_by_side([own.graph for own in owns])
        parts, taken, start = [], [], 0
        for own in owns:
            pairs, nodes = own.pairs, own.graph.num_nodes
            parts.append(pairs._replace(ends=pairs.ends + start, first=pairs.first + start))
            ends = torch.stack([own.taken // nodes, own.taken % nodes]) + start
            taken.append(_pair_keys(ends, graph.num_nodes))
            start += nodes
        features, adjacency = FixedInput(graph.features, dtype), Adjacency.from_graph(graph, dtype)
        return cls(graph, features, adjacency, _concatenate(parts), torch.cat(taken).sort().values)

    def training(self, negatives: int, generator: torch.Generator) -> Pairs:
        """Return the training edges, and for each ``negatives`` new random pairs without a training edge."""
        edges = self.pairs.where((self.pairs.split == TRAIN) & self.pairs.linked)
        times = edges.where(torch.arange(edges.size).repeat(negatives))
        return _concatenate([edges, unlinked(times, self.taken, self.graph.num_nodes, generator)])


def unlinked(like: Pairs, taken: Tensor, nodes: int, generator: torch.Generator) -> Pairs:
    """Draw for each of ``like`` a uniform pair of the same holder without an edge; it is left out after 16 failures.

    ``taken`` is Tensor[T] int64 ascending, the keys of pairs with an edge; ``nodes``: how many rows there are.
    """
    ends = torch.zeros_like(like.ends)
    wrong = torch.ones(like.size, dtype=torch.bool)
    for _ in range(_ATTEMPTS):
        if not bool(wrong.any()):
            break
        first, count = like.first[wrong], like.nodes[wrong]
        drawn = torch.rand(2, len(first), generator=generator, dtype=torch.float64)
        ends[:, wrong] = first + (drawn * count).long()
        wrong = (ends[0] == ends[1]) | torch.isin(_pair_keys(ends, nodes), taken)
    return like._replace(ends=ends, linked=torch.zeros(like.size, dtype=torch.bool)).where(~wrong)


def _pair_keys(ends: Tensor, nodes: int) -> Tensor:
    """Number each pair of ``ends`` [2, M], the same in both directions: Tensor[M] int64."""
    low, high = ends.sort(dim=0).values
    keys: Tensor = low * nodes + high
    return keys


def _concatenate(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(*(torch.cat(columns, dim=-1) for columns in zip(*parts, strict=True)))


_SPLITS: Final = ("train", "val", "test")
_SORTS: Final = 2  # histograms of a split: of pairs with an edge, and without

_MEASURES: Final = Measures(
    "cross-entropy of pairs",
    (
        Figure("auc", "AUC", "chance that a pair with an edge is ranked above one without; 0.5 is guessing"),
        Figure("ap", "average precision", "of pairs with an edge among those ranked as high; half of them have one"),
        Figure("auc_error", "AUC ±", "the most that AUC can be off, as scores are counted in bins", rises=False),
        Figure("ap_error", "average precision ±", "the most that it can be off, likewise", rises=False),
    ),
    of="edges",
)


class LinksSettings(TaskSettings):
    """Link prediction."""

    decoder: Literal["inner", "mlp"] = "inner"
    """score of a pair: inner product, or an MLP of the embeddings' product"""
    validation: float = Field(0.1, gt=0, lt=1)
    """share of edges to choose the epoch by"""
    test: float = Field(0.2, ge=0, lt=1)
    """share of edges to test on"""
    negatives: int = Field(1, ge=1, le=100)
    """pairs without an edge per training edge"""
    bins: int = Field(500, ge=2, le=100_000)
    """of the summed histograms of scores"""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation={self.validation:g} and test={self.test:g} leave no edge to train on; lower one of them"
            )
        return self

    @override
    def describe(self) -> list[str]:
        return [
            f"They learn to predict which nodes are joined: each holds {self.validation:.0%} of its own edges back "
            f"for validation and {self.test:.0%} for testing, and draws as many pairs of its own nodes without one."
        ]


class _LinkNetwork(Averaged):
    """Embeddings of a graph's nodes, Tensor[N, d] by ``body``, and a score of two, by ``decoder`` or the sum."""

    def __init__(self, body: AveragedNetwork, decoder: nn.Module | None) -> None:
        super().__init__()
        self.body, self.decoder = body, decoder

    def forward(self, own: PairsOwn, pairs: Pairs, generator: torch.Generator | None) -> Tensor:
        """Logits of pairs, Tensor[M]; ``generator`` None means evaluation."""
        z = self.body(own.features, own.adjacency, generator)
        product: Tensor = z[pairs.ends[0]] * z[pairs.ends[1]]
        return product.sum(dim=1) if self.decoder is None else self.decoder(product)[:, 0]


class Links(Task[LinksSettings, PairsOwn], Judging[PairsOwn]):
    """Binary cross-entropy of a holder's training edges and as many pairs without; messages pass training edges alone.

    A pair is joined or not, whichever the direction. AUC and average precision are of summed histograms of scores.
    """

    settings: ClassVar[type[TaskSettings]] = LinksSettings
    measures: ClassVar[Measures] = _MEASURES
    subject: ClassVar[Subject] = Subject("whether two nodes are joined", "training edges")

    @property
    @override
    def judging(self) -> Judging[PairsOwn]:
        return self

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> PairsOwn:
        return PairsOwn.divided(graph, self.public.dtype, streams, self.given.validation, self.given.test)

    @override
    def network(self, streams: LearningStreams) -> _LinkNetwork:
        dim, decoder = self.public.model.dim, None
        if self.given.decoder == "mlp":
            with streams.global_generator("decoder"):
                decoder = nn.Sequential(linear(dim, dim, bias=True), nn.ReLU(), linear(dim, 1, bias=True))
        network = _LinkNetwork(graph_network(self.public, dim, streams), decoder)
        return network.to(self.public.dtype)

    @override
    def join(self, owns: Sequence[PairsOwn]) -> PairsOwn:
        return PairsOwn.joined(owns, self.public.dtype)

    @override
    def examples(self, own: PairsOwn) -> int:
        return int(((own.pairs.split == TRAIN) & own.pairs.linked).sum())

    @override
    def loss(self, network: Averaged, own: PairsOwn, generator: torch.Generator) -> Tensor:
        pairs = own.training(self.given.negatives, generator)
        logits: Tensor = network(own, pairs, generator)
        return functional.binary_cross_entropy_with_logits(logits, pairs.linked.to(logits.dtype))

    @override
    def output(self, network: Averaged, own: PairsOwn) -> Tensor:
        """Logits of all pairs, Tensor[M]."""
        found: Tensor = network(own, own.pairs, None)
        return found

    @property
    @override
    def tally_size(self) -> int:
        return len(_SPLITS) * (1 + _SORTS * self.given.bins)

    @override
    def tally(self, network: Averaged, own: PairsOwn, output: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(
            output.double(), own.pairs.linked.double(), reduction="none"
        )
        parts = [torch.stack([losses[own.pairs.split == split].sum() for split in range(len(_SPLITS))])]
        for split in range(len(_SPLITS)):
            for linked in (own.pairs.linked, ~own.pairs.linked):
                parts.append(histogram(output[(own.pairs.split == split) & linked], self.given.bins))
        return torch.cat(parts)

    @override
    def scores(self, network: Averaged, total: Tensor) -> Scores:
        counts = total[len(_SPLITS) :].round().view(len(_SPLITS), _SORTS, self.given.bins)
        values: dict[str, float | None] = {}
        means = []
        for split, loss, (linked, others) in zip(_SPLITS, total.tolist(), counts, strict=False):
            pairs = float(linked.sum() + others.sum())
            means.append(loss / pairs if pairs else math.nan)
            for name, found in (("auc", binned_auc(linked, others)), ("ap", binned_precision(linked, others))):
                values[f"{split}_{name}"] = None if found is None else found[0]
                values[f"{split}_{name}_error"] = None if found is None else found[1]
        return Scores(_MEASURES, means[0], means[1], values)

    @override
    def predictions(self, network: Averaged, own: PairsOwn, output: Tensor) -> Predicted:
        """Return the validation and test pairs, with and without an edge, and how probable an edge is."""
        held = own.pairs.split != TRAIN
        pairs, chances = own.pairs.where(held), output[held].double().sigmoid()
        return Predicted(
            output.new_empty(pairs.size, 0),
            {"probability": chances, "edge": pairs.linked.long(), "test": (pairs.split > 1).long()},
            rows=pairs.ends.t().contiguous(),
            keys=("source", "target"),
        )
