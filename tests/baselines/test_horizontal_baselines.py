"""What a horizontal run is compared with, from the graphs and ids that a run keeps."""

from dataclasses import replace

import torch

from tests.paradigms.horizontal import job
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.features import choose_rows
from veilgraph.graph.partition import split_horizontally
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.paradigms.horizontal.settings import horizontal
from veilgraph.paradigms.horizontal.twin import parts_of
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.protocol.plain_fitting import Inputs, PlainResult

SETTINGS = horizontal(job(2, {"train": {"epochs": 3}}))
PARTS = split_horizontally(synthetic_data(60, 6, 3, 1), names=("A", "B"), seed=1, overlap=0.3)
HORIZONTAL = PARADIGMS["horizontal"]


def shuffled(part: HorizontalPart, seed: int) -> tuple[PartyGraph, list[str]]:
    """The same graph with its rows in another order, as tables may have them, and ids that sort as text."""
    graph = part.graph
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    moved = {name: getattr(graph, name)[order] for name in ("labels", "train_mask", "val_mask", "test_mask")}
    features, edges = choose_rows(graph.features, order), order.argsort()[graph.edge_index]
    return replace(graph, features=features, edge_index=edges, **moved), [f"n{node:03}" for node in part.ids[order]]


def inputs() -> Inputs:
    graphs, ids = zip(*(shuffled(part, seed) for seed, part in enumerate(PARTS)), strict=True)
    return Inputs(SETTINGS, graphs, dict(zip("AB", ids, strict=True)))


def scores(result: PlainResult | None) -> list[float]:
    assert result is not None
    return [record["loss"] for record in result.metrics]


def test_rows_are_told_by_their_ids_whatever_their_order() -> None:
    given = inputs()
    for found, part in zip(parts_of(given.graphs, given.ids), PARTS, strict=True):
        assert torch.equal(found.ids, part.ids)
        assert torch.equal(found.graph.features, part.graph.features)
        assert torch.equal(found.graph.edge_index, part.graph.edge_index)
        for name in ("labels", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(found.graph, name), getattr(part.graph, name))


def test_each_holder_alone_has_its_own_part_and_together_they_have_all() -> None:
    given = inputs()
    by_holder = {holder: scores(HORIZONTAL.baselines.alone(given, holder, lambda records: None)) for holder in "AB"}
    assert by_holder["A"] != by_holder["B"]
    assert scores(HORIZONTAL.baselines.pooled(given, lambda records: None)) not in by_holder.values()
    unlabelled = replace(given.graphs[1], labels=None, train_mask=None, val_mask=None, test_mask=None, num_classes=None)
    without = replace(given, graphs=[given.graphs[0], unlabelled])
    assert HORIZONTAL.baselines.alone(without, "B", lambda records: None) is None
    assert scores(HORIZONTAL.baselines.alone(without, "A", lambda records: None)) == by_holder["A"]
