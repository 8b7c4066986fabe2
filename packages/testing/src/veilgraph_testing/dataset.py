"""What every data set promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import DataSet, load_for_learner, load_parties, load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DATASETS, DataSettings


class DataSetConformance:
    """Inherit it and name a data set that is installed or one of ours.

    Attributes:
        name: as jobs have it.
        said: what a job says under ``data`` beside that.
        is_one_graph: whether it can be had undivided.
        has_labels: whether its nodes have classes; without, it is for holders of nodes of their own.
    """

    name: ClassVar[str]
    said: ClassVar[Mapping[str, Any]] = {}
    is_one_graph: ClassVar[bool] = True
    has_labels: ClassVar[bool] = True

    def settings(self, **said: object) -> DataSettings:
        """Of a job with the data set."""
        return DataSettings.model_validate({"dataset": self.name, **self.said, **said})

    def test_it_is_found_by_its_name(self) -> None:
        assert isinstance(DATASETS[self.name], DataSet)
        assert self.settings().dataset == self.name

    def test_the_whole_graph_keeps_the_rules(self) -> None:
        settings = self.settings()
        if not self.is_one_graph:
            with pytest.raises(ConfigError, match=self.name):
                DATASETS[self.name].whole(settings, 0)
            return
        data = DATASETS[self.name].whole(settings, 0)
        nodes = data.x.shape[0]
        assert data.x.layout in (torch.strided, torch.sparse_csr)
        assert data.x.dtype == torch.float32
        assert bool(data.x.to_dense().isfinite().all())
        assert data.edge_index.dtype == torch.int64
        assert data.edge_index.shape[0] == 2
        assert bool(((data.edge_index >= 0) & (data.edge_index < nodes)).all())
        if not self.has_labels:
            assert "y" not in data
            return
        assert data.y.dtype == torch.int64
        assert len(data.y) == nodes
        masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
        assert masks.dtype == torch.bool
        assert int(masks.sum(0).max()) == 1, "a node is in two parts of the split"
        assert bool(masks.any(1).all()), "a part of the split is empty"
        assert bool((data.y[masks.any(0)] >= 0).all()), "a node of the split has no label"

    def test_the_same_seed_gives_the_same(self) -> None:
        first, again = (self._holders() for _ in range(2))
        for one, other in zip(first, again, strict=True):
            assert torch.equal(one.features.to_dense(), other.features.to_dense())
            assert torch.equal(one.edge_index, other.edge_index)
            assert _equal(one.labels, other.labels)
            assert _equal(one.train_mask, other.train_mask)

    def _holders(self) -> list[PartyGraph]:
        if self.has_labels:
            return load_parties(self.settings(), 3)
        return [part.graph for part in load_parts(self.settings(), 3)]

    @pytest.mark.parametrize("last", [False, True])
    def test_holders_have_the_same_nodes_and_one_has_the_labels(self, last: bool) -> None:
        settings = self.settings()
        if not self.has_labels:
            with pytest.raises(DataError):
                load_parties(settings, 0)
            return
        labelled = settings.names[-1 if last else 0]
        parties = load_parties(self.settings(label_holder=labelled), 0)
        assert [graph.party for graph in parties] == list(settings.names)
        assert len({graph.num_nodes for graph in parties}) == 1
        for graph in parties:
            graph.validate()
            assert graph.num_features > 0
            assert (graph.labels is None) == (graph.party != labelled)

    def test_it_can_be_divided_by_nodes_and_for_a_learner(self) -> None:
        settings = self.settings()
        if not self.is_one_graph:
            return
        parts = load_parts(settings, 0)
        assert [part.graph.party for part in parts] == list(settings.names)
        assert all((part.graph.labels is not None) == self.has_labels for part in parts)
        if not self.has_labels:
            return
        learner, *others = load_for_learner(settings, settings.label_party, 0)
        assert learner.num_edges > 0
        assert all(graph.num_features > 0 for graph in others)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)
