"""Jobs whose holders tell relations apart: the twin weight by weight, and what that is worth."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.reference.twins import assert_run_is_twin, assert_twins
from tests.roles.federation import dropout_everywhere, federate, small_job, small_parties, with_own_nodes
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.nn.local.hops import Relational, RelationalHop
from veilgraph.paradigms.vertical.network import HolderNetwork
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.runtime.launch.jobs import train

RELATIONS = {"A": (Relation("calls"), Relation("pays", hops=1)), "C": (Relation("calls"), Relation("b"), Relation("d"))}
LOCAL = {"model": {"local": {"model": "relational"}}}


def parties(own: Sequence[int] = (0, 0, 0)) -> list[PartyGraph]:
    """Two holders with relations of their own, and between them one without."""
    return [told_apart(graph) for graph in with_own_nodes(small_parties(3), own)]


def told_apart(graph: PartyGraph) -> PartyGraph:
    relations = RELATIONS.get(graph.party, ())
    if not relations:
        return graph
    return replace(graph, relations=relations, edge_relation=graph.edge_index.sum(dim=0) % len(relations))


@pytest.mark.cases(1)
@pytest.mark.parametrize("own", [(0, 0, 0), (5, 0, 4)], ids=["common nodes", "own nodes"])
def test_every_weight_equals_the_twins(own: tuple[int, ...]) -> None:
    settings = small_job(3, dropout_everywhere(), LOCAL, {"model": {"rounds": 2}})
    _, twin = assert_twins(settings, parties(own))
    for party, relations in RELATIONS.items():
        assert widths(twin.holders[party]) == [sum(each.hops is None for each in relations), len(relations)]
    assert widths(twin.holders["B"]) == [1, 1]


def widths(network: HolderNetwork) -> list[int]:
    """How many relations each hop of the first round looks at."""
    first = network.local[0]
    assert isinstance(first, Relational)
    return [len(hop.related) for hop in first.hops if isinstance(hop, RelationalHop)]


def test_every_weight_equals_the_twins_in_batches_of_drawn_neighbourhoods(tmp_path: Path) -> None:
    drawn = {"model": {"local": {"fanout": 2, "dropout": 0.3}}, "train": {"batch_size": 25, "select_by": "last"}}
    settings, graphs = small_job(3, {"precision": "float64"}, LOCAL, drawn), parties((5, 0, 4))
    assert_run_is_twin(train(settings, tmp_path / "run", parties=graphs), settings, graphs)


def test_relations_change_no_bit_for_a_model_that_does_not_know_them() -> None:
    settings = small_job(3, dropout_everywhere())
    told, alike = (PlainNetwork(settings, graphs, "A") for graphs in (parties(), small_parties(3)))
    for epoch in (1, 2):
        assert told.train_step(epoch) == alike.train_step(epoch)
    assert torch.equal(told.infer(), alike.infer())
    role = federate(settings, parties(), 1, keep_transcripts=False).label_holder
    assert role.adjacency.kinds is None, "kept for nothing"
