"""What every combine strategy must do. Needs pytest to run, and nothing of it to be imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.testing import assert_close

from veilgraph.nn.combine import COMBINES, Combine, CombineSettings, build_combine, combine_settings
from veilgraph.nn.propagate import Adjacency
from veilgraph_testing.graphs import NODES, check_part, is_refused, random_graph, random_rows

DIM = 4
HOLDERS = 3


class CombineConformance:
    """Inherit it in a class that pytest finds, and name a strategy that is installed or one of ours.

    Attributes:
        name: of the strategy, as jobs have it.
        said: what is said under ``model.combine`` beside that.
    """

    name: ClassVar[str]
    said: ClassVar[Mapping[str, object]] = {}

    def settings(self, **said: object) -> CombineSettings:
        """Of a job with the strategy."""
        return combine_settings({"strategy": self.name, **self.said, **said})

    def strategy(self) -> Combine[Any]:
        """As a party builds it."""
        return build_combine(self.settings())

    def parts(self, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Adjacency, nn.Module]]:
        """Each holder's t, its edges, and its part of the strategy."""
        graphs = [random_graph(dtype, seed=seed) for seed in range(HOLDERS)]
        rows = [random_rows(DIM, seed=seed).to(dtype) for seed in range(HOLDERS)]
        strategy = self.strategy()
        return [(t, graph, strategy.holder_part(DIM, HOLDERS, graph)) for t, graph in zip(rows, graphs, strict=True)]

    def weight_total(self) -> Tensor | None:
        """The sum of the holders' weights."""
        weights = [self.strategy().holder_weight(HOLDERS, graph) for _, graph, _ in self.parts()]
        given = [weight for weight in weights if weight is not None]
        return torch.stack(given).sum(dim=0) if given else None

    def test_its_settings_are_kept_and_others_refused(self) -> None:
        check_part(COMBINES, self.name, combine_settings, {"strategy": self.name, **self.said})

    def test_what_is_not_linear_cannot_be_masked(self) -> None:
        said = {"strategy": self.name, **self.said, "masked": True}
        assert is_refused(combine_settings, said) != self.strategy().linear

    def test_shape_dtype_and_gradients(self) -> None:
        for dtype in (torch.float32, torch.float64):
            strategy, total = self.strategy(), self.weight_total()
            held = [(t.requires_grad_(), part) for t, _, part in self.parts(dtype)]
            merged = strategy.merge([part(t) for t, part in held], None if total is None else total.to(dtype))
            assert merged.shape == (NODES, strategy.output_dim(DIM, HOLDERS))
            assert merged.dtype == dtype
            backward(merged.sum())
            for t, part in held:
                assert t.grad is not None
                assert torch.isfinite(t.grad).all()
                assert [name for name, weight in part.named_parameters() if weight.grad is None] == []

    def test_of_a_linear_one_the_server_needs_the_sum_alone(self) -> None:
        strategy, total = self.strategy(), self.weight_total()
        if strategy.linear:
            pieces = [part(t) for t, _, part in self.parts()]
            assert_close(strategy.merge([torch.stack(pieces).sum(dim=0)], total), strategy.merge(pieces, total))

    def test_it_works_row_by_row(self) -> None:
        strategy, total, rows = self.strategy(), self.weight_total(), torch.tensor([11, 0, 5])
        whole = [part(t) for t, _, part in self.parts()]
        some = [part(t[rows], rows) for t, _, part in self.parts()]
        for piece, expected in zip(some, whole, strict=True):
            assert_close(piece, expected[rows])
        weights = None if total is None else total[rows]
        assert_close(strategy.merge(some, weights), strategy.merge(whole, total)[rows])

    def test_a_weight_is_of_the_degrees_alone(self) -> None:
        strategy = self.strategy()
        for _, graph, _ in self.parts():
            weight = strategy.holder_weight(HOLDERS, graph)
            assert (weight is not None) == strategy.needs_weight
            if weight is None:
                continue
            assert weight.shape == (NODES, 1)
            assert weight.dtype == torch.float64
            assert (weight > 0).all()
            source, target = graph.edge_index
            others = Adjacency.of_edges(torch.stack([source.flip(0), target]), None, NODES, torch.float64)
            again = strategy.holder_weight(HOLDERS, others)
            assert again is not None
            assert torch.equal(weight, again)

    def test_one_holder_is_enough(self) -> None:
        strategy, (t, graph, _) = self.strategy(), self.parts()[0]
        piece = strategy.holder_part(DIM, 1, graph)(t)
        merged = strategy.merge([piece], strategy.holder_weight(1, graph))
        assert merged.shape == (NODES, strategy.output_dim(DIM, 1))
        assert torch.isfinite(merged).all()
