"""What every local model must do. Needs pytest to run, and nothing of it to be imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.testing import assert_close

from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.rules import Relation
from veilgraph.nn.local.build import CustomModel, build_local, local_settings
from veilgraph.nn.local.model import LOCAL_MODELS, LocalModel, LocalSettings
from veilgraph.nn.neighbourhood import Sampler
from veilgraph.nn.propagate import Adjacency
from veilgraph_testing.graphs import (
    ISOLATED,
    NODES,
    check_part,
    of_relations,
    path,
    random_graph,
    random_rows,
    seeded,
    without_edges,
)

DIM = 8


class LocalModelConformance:
    """Inherit it in a class that pytest finds, and name a model that is installed or one of ours.

    Attributes:
        name: of the model, as jobs have it.
        said: what is said under ``model.local`` beside that.
        hops: values of K to try; (2,) for a model that does not follow that setting.
        relations: of the graphs, for a model that tells them apart; each edge is of one of them.
    """

    name: ClassVar[str]
    said: ClassVar[Mapping[str, object]] = {}
    hops: ClassVar[Sequence[int]] = (0, 1, 3)
    relations: ClassVar[tuple[Relation, ...]] = ()

    def custom(self) -> CustomModel | None:
        """What makes the module of a ``CustomLocal``."""
        return None

    def settings(self, **said: object) -> LocalSettings:
        """Of a job with the model."""
        return local_settings({"model": self.name, **self.said, **said})

    def build(
        self,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        last_round: bool = False,
        **said: object,
    ) -> LocalModel[Any]:
        """As a holder of two builds it."""
        streams = LearningStreams(seed, "A")
        return build_local(
            self.settings(**said),
            DIM,
            2,
            last_round=last_round,
            streams=streams,
            round=1,
            custom=self.custom(),
            dtype=dtype,
            relations=self.relations,
        )

    def graph(self, dtype: torch.dtype = torch.float64, *, weighted: bool = False) -> Adjacency:
        """``random_graph`` with the relations."""
        return random_graph(dtype, weighted=weighted, relations=self.relations)

    def test_its_settings_are_kept_and_others_refused(self) -> None:
        check_part(LOCAL_MODELS, self.name, local_settings, {"model": self.name, **self.said})

    def test_shape_dtype_and_gradients(self) -> None:
        for dtype in (torch.float32, torch.float64):
            model, h = self.build(dtype=dtype, dropout=0.3), random_rows(DIM).to(dtype).requires_grad_()
            out = model(h, h, self.graph(dtype), seeded(3))
            assert out.shape == h.shape
            assert out.dtype == dtype
            out.sum().backward()
            assert h.grad is not None
            assert [name for name, weight in model.named_parameters() if weight.grad is None] == []

    def test_the_seed_fixes_everything(self) -> None:
        h, graph, before = random_rows(DIM), self.graph(), torch.get_rng_state()
        first, again = (self.build(dropout=0.5)(h, h, graph, seeded(3)) for _ in range(2))
        assert torch.equal(first, again)
        assert torch.equal(before, torch.get_rng_state()), "torch's process-wide generator has moved"
        assert not torch.equal(first, self.build(dropout=0.5)(h, h, graph, seeded(4)))
        if list(self.build().parameters()):
            assert not torch.equal(first, self.build(dropout=0.5, seed=1)(h, h, graph, seeded(3)))

    def test_evaluation_has_no_randomness(self) -> None:
        h, graph, model = random_rows(DIM), self.graph(), self.build(dropout=0.5)
        assert torch.equal(model(h, h, graph, None), model(h, h, graph, None))

    def test_renaming_the_nodes_renames_the_result(self) -> None:
        h, graph, model = random_rows(DIM), self.graph(), self.build()
        new = torch.randperm(NODES, generator=seeded(3))
        moved = torch.empty_like(h)
        moved[new] = h
        renamed = of_relations(new[graph.edge_index], None, NODES, torch.float64, self.relations)
        assert_close(model(moved, moved, renamed, None)[new], model(h, h, graph, None))

    def test_isolated_nodes_no_edges_and_one_node(self) -> None:
        h, model, empty = random_rows(DIM), self.build(), without_edges(relations=self.relations)
        for generator in (None, seeded(3)):
            assert torch.isfinite(model(h, h, empty, generator)).all()
        alone = slice(NODES - ISOLATED, None)
        assert_close(model(h, h, self.graph(), None)[alone], model(h, h, empty, None)[alone])
        loop = of_relations(torch.zeros(2, 1, dtype=torch.int64), None, 1, torch.float64, self.relations)
        assert torch.isfinite(model(h[:1], h[:1], loop, None)).all()

    def test_no_hops_return_the_input(self) -> None:
        if 0 in self.hops:
            h = random_rows(DIM)
            assert torch.equal(self.build(hops=0, dropout=0.5)(h, h, self.graph(), seeded(3)), h)

    def test_rows_have_length_1_in_the_last_round_alone(self) -> None:
        h, graph, ones = random_rows(DIM), self.graph(), torch.ones(NODES - ISOLATED, dtype=torch.float64)
        h[-1] = 0  # an isolated node without features stays zero instead of NaN
        last, earlier = (self.build(last_round=flag)(h, h, graph, None) for flag in (True, False))
        assert_close(last[:-ISOLATED].norm(dim=1), ones)
        assert not torch.allclose(earlier[:-ISOLATED].norm(dim=1), ones)
        assert torch.isfinite(last).all()

    def test_a_neighbourhood_of_k_hops_is_all_that_counts(self) -> None:
        for hops in self.hops:
            for graph in (self.graph(), self.graph(weighted=True)):
                self._check_neighbourhood(graph, hops)

    def _check_neighbourhood(self, graph: Adjacency, hops: int) -> None:
        model, targets = self.build(hops=hops, last_round=True), torch.tensor([7, 11, 3])
        around = Sampler(graph, hops, None).around(targets, None)
        rows = random_rows(DIM)[around.nodes].requires_grad_()
        ours = model(rows, rows, around, None)
        whole = random_rows(DIM).requires_grad_()
        expected = model(whole, whole, graph, None)[targets]
        assert_close(ours, expected)
        (mine,) = torch.autograd.grad(ours.cos().sum(), rows)
        (everywhere,) = torch.autograd.grad(expected.cos().sum(), whole)
        assert_close(mine, everywhere[around.nodes])
        outside = everywhere.index_fill(0, around.nodes, 0.0)
        assert torch.equal(outside, torch.zeros_like(outside)), f"it looks farther than {hops} hops"

    def test_weights_count_and_weights_of_1_are_none(self) -> None:
        h, graph, model = random_rows(DIM), self.graph(), self.build(last_round=True)
        expected, count = model(h, h, graph, None), graph.edge_index.shape[1]
        kinds = torch.arange(count) % max(len(self.relations), 1)  # as ``of_relations`` has it
        _, group = torch.unique(torch.stack([graph.edge_index[1], kinds]), dim=1, return_inverse=True)
        source, target = graph.edge_index
        edge = int(torch.where(source != target, group.bincount()[group], 0).argmax())  # one of several, and no loop

        def of_weight(weight: float) -> Tensor:
            weights = torch.ones(count, dtype=torch.float64)
            weights[edge] = weight
            other = of_relations(graph.edge_index, weights, NODES, torch.float64, self.relations)
            result: Tensor = model(h, h, other, None)
            return result

        assert torch.equal(of_weight(1), expected)
        assert not torch.allclose(of_weight(100), expected)
        assert not torch.allclose(of_weight(10), of_weight(100))

    def test_in_blocks_is_the_evaluation_of_the_whole_graph(self) -> None:
        h, graph, model = random_rows(DIM), self.graph(), self.build(last_round=True)
        assert_close(model.in_blocks(h, _FewRows(graph, 1, None)), model(h, h, graph, None))

    def test_what_is_released_once_has_no_weights_and_an_edge_does_not_change_more_rows_than_are_counted(self) -> None:
        if not LOCAL_MODELS[self.name].is_fixed:
            return
        assert list(self.build().parameters()) == []
        nodes, at = 20, 9
        h = random_rows(DIM, nodes)
        for hops in (count for count in self.hops if count):
            model = self.build(hops=hops)
            with_edge, without = (model(h, h, path(nodes, missing), None) for missing in (None, at))
            changed = (with_edge != without).any(dim=1).nonzero().flatten()
            assert int(changed.min()) > at - hops
            assert int(changed.max()) < at + 1 + hops


class _FewRows(Sampler):
    """Makes blocks of a few rows."""

    def blocks(self, rows: int = 5) -> Iterator[tuple[slice, Any]]:
        return super().blocks(rows)
