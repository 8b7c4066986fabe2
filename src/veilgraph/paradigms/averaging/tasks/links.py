"""Link prediction: of two nodes of one holder whether they are joined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.linear import linear
from veilgraph.paradigms.averaging.network import Averaged, AveragedNetwork
from veilgraph.paradigms.averaging.tasks.pairs import TRAIN, Pairs, PairsOwn
from veilgraph.paradigms.averaging.tasks.task import Task, TaskSettings
from veilgraph.protocol.figures import Figure, Found, Measures
from veilgraph.protocol.judge import Predicted
from veilgraph.protocol.score_histograms import binned_auc, binned_precision, histogram

_SPLITS: Final = ("train", "val", "test")
_SORTS: Final = 2
"""Histograms of a split: of pairs with an edge, and without."""

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

    decoder: Literal["inner", "mlp"] = Field(
        "inner", description="a pair's score: inner product of two embeddings; or an MLP of their product"
    )
    validation: float = Field(0.1, gt=0, lt=1, description="share of a holder's edges to choose the epoch by")
    test: float = Field(0.2, ge=0, lt=1, description="share of a holder's edges to test on")
    negatives: int = Field(1, ge=1, le=100, description="pairs without an edge, of every training edge")
    bins: int = Field(500, ge=2, le=100_000, description="of the histograms of scores that are added up")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(
                f"validation={self.validation:g} and test={self.test:g} leave no edge to train on; lower one of them"
            )
        return self


class LinkNetwork(Averaged):
    """Embeddings of a graph's nodes, and a score of two of them.

    Args:
        body: makes embeddings, Tensor[N, d].
        decoder: Tensor[M, d] → Tensor[M, 1], of the product of two embeddings; None: its sum.
    """

    def __init__(self, body: AveragedNetwork, decoder: nn.Module | None) -> None:
        super().__init__()
        self.body, self.decoder = body, decoder

    def forward(self, own: PairsOwn, pairs: Pairs, generator: torch.Generator | None) -> Tensor:
        """Logits of pairs, Tensor[M]; ``generator`` None means evaluation."""
        z = self.body(own.features, own.adjacency, generator)
        product: Tensor = z[pairs.ends[0]] * z[pairs.ends[1]]
        return product.sum(dim=1) if self.decoder is None else self.decoder(product)[:, 0]


class Links(Task[LinksSettings, PairsOwn]):
    """Binary cross-entropy of a holder's training edges and as many pairs without; messages pass training edges alone.

    A pair is joined or not, whichever the direction. AUC and average precision are of summed histograms of scores.
    """

    settings: ClassVar[type[TaskSettings]] = LinksSettings
    measures: ClassVar[Measures] = _MEASURES
    words: ClassVar[str] = "whether two nodes are joined"
    examples_are: ClassVar[str] = "training edges"

    @classmethod
    @override
    def describe(cls, given: LinksSettings) -> list[str]:
        return [
            f"They learn to predict which nodes are joined: each holds {given.validation:.0%} of its own edges back "
            f"for validation and {given.test:.0%} for testing, and draws as many pairs of its own nodes without one."
        ]

    @override
    def own(self, graph: PartyGraph, streams: LearningStreams) -> PairsOwn:
        return PairsOwn.divided(graph, self.public.dtype, streams, self.given.validation, self.given.test)

    @override
    def network(self, streams: LearningStreams) -> LinkNetwork:
        dim, decoder = self.public.model.dim, None
        if self.given.decoder == "mlp":
            with streams.global_generator("decoder"):
                decoder = nn.Sequential(linear(dim, dim, bias=True), nn.ReLU(), linear(dim, 1, bias=True))
        network = LinkNetwork(self.graph_network(dim, streams), decoder)
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
    def scores(self, network: Averaged, total: Tensor) -> Found:
        counts = total[len(_SPLITS) :].round().view(len(_SPLITS), _SORTS, self.given.bins)
        values: dict[str, float | None] = {}
        means = []
        for split, loss, (linked, others) in zip(_SPLITS, total.tolist(), counts, strict=False):
            pairs = float(linked.sum() + others.sum())
            means.append(loss / pairs if pairs else math.nan)
            for name, found in (("auc", binned_auc(linked, others)), ("ap", binned_precision(linked, others))):
                values[f"{split}_{name}"] = None if found is None else found[0]
                values[f"{split}_{name}_error"] = None if found is None else found[1]
        return Found(self.measures, means[0], means[1], values)

    @override
    def predictions(self, network: Averaged, own: PairsOwn, output: Tensor) -> Predicted:
        """The pairs held back, with an edge and without, and how probable an edge is."""
        held = own.pairs.split != TRAIN
        pairs, chances = own.pairs.where(held), output[held].double().sigmoid()
        return Predicted(
            output.new_empty(len(pairs), 0),
            {"probability": chances, "edge": pairs.linked.long(), "test": (pairs.split > 1).long()},
            rows=pairs.ends.t().contiguous(),
            keys=("source", "target"),
        )
