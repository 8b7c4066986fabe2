"""What payments amount to: it is in what each bank makes at home, and in nothing that goes over hops."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import nightly
from tests.paradigms.union.banks import (
    ALMOST,
    BOOSTED,
    JOINT,
    JUDGED,
    banks,
    by_name,
    job_of,
    of_twin,
    predicted,
    trained,
    weighted,
    with_network,
    without,
)
from tests.roles.federation import Settings
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.rules import Relation
from veilgraph.paradigms.sealed.inputs import plan_of
from veilgraph.paradigms.union.inputs import own_edges_and_columns, symmetric_graph
from veilgraph.paradigms.union.twin import pooled
from veilgraph.protocol.paradigm import PARADIGMS

pytestmark = pytest.mark.usefixtures("few_trees")

HOME: Settings = {"model": {"network": "linear", "blocks": ["own", "neighbours"]}}


def small() -> PartyGraph:
    """Three accounts, of which the first pays the second 2 and 3, and gets 9 back; one payment is to itself."""
    edges = torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]])
    return PartyGraph("A", torch.tensor([[1.0], [4.0], [7.0]]), edges, torch.tensor([2.0, 3.0, 9.0, 50.0]))


def test_a_pair_of_accounts_counts_the_logarithm_of_all_that_was_paid() -> None:
    job = job_of(banks(2), HOME)
    put = own_edges_and_columns(plan_of(job), small(), job)
    mean, deviation, degree = put.columns["neighbours"].T
    weight = torch.tensor(15.0).double().log()  # 1 + 2 + 3 + 9
    assert torch.allclose(degree, torch.tensor([weight.log1p(), weight.log1p(), 0.0]).double())
    assert torch.allclose(mean, torch.tensor([4.0, 1.0, 0.0]).double())
    assert torch.allclose(deviation, torch.zeros(3).double())
    assert put.edge_weights is None
    plain = own_edges_and_columns(plan_of(job), replace(small(), edge_weight=None), job)
    assert torch.allclose(plain.columns["neighbours"][:, 2], torch.tensor([2.0, 2.0, 1.0]).double().log())
    assert torch.equal(plain.edges, put.edges)


@pytest.mark.parametrize("block", ["own", "neighbours", "boosting", "pooled.2", "each.1"])
def test_pairs_are_summed_for_blocks_that_a_bank_makes_of_its_edges(block: str) -> None:
    seen = symmetric_graph(small(), plan_of(job_of(banks(2), {"model": {"network": "linear", "blocks": [block]}})))
    summed = {(0, 1), (1, 0)} if block in ("neighbours", "boosting") else {(0, 1), (1, 0), (2, 2)}
    assert set(map(tuple, seen.edge_index.T.tolist())) == summed


def test_a_neighbour_counts_more_the_more_was_paid() -> None:
    job = job_of(banks(2), HOME)
    edges, paid = torch.tensor([[0, 0], [1, 2]]), torch.tensor([1.0, 1000.0])
    put = own_edges_and_columns(plan_of(job), replace(small(), edge_index=edges, edge_weight=paid), job)
    weights = paid.double().log1p()
    assert torch.isclose(put.columns["neighbours"][0, 0], (weights * torch.tensor([4.0, 7.0])).sum() / weights.sum())


@pytest.mark.parametrize("changes", [(JUDGED,), (BOOSTED,)], ids=["neighbours", "boosting"])
def test_parties_compute_with_amounts_what_the_twin_does(changes: tuple[Settings, ...], tmp_path: Path) -> None:
    """One of the banks has none; a network's amounts count nowhere."""
    plain = with_network(banks(), knows=True)
    found = weighted(plain, "ACN")
    job = job_of(found, *changes)
    run, twin, others = trained(job, found, tmp_path / "run"), of_twin(job, found), of_twin(job, plain)
    for party, expected in twin.items():
        assert (predicted(run, party) - expected).abs().max() < ALMOST
    assert max(float((twin[party] - others[party]).abs().max()) for party in twin) > ALMOST
    network = of_twin(job, weighted(plain, "AC"))
    assert all(torch.equal(twin[party], network[party]) for party in twin)


def test_hops_count_every_pair_alike() -> None:
    plain = banks()
    job = job_of(plain, JOINT)
    found, expected = of_twin(job, weighted(plain)), of_twin(job, plain)
    assert all(torch.equal(found[party], expected[party]) for party in "ABC")


@nightly
def test_relations_are_not_told_apart() -> None:
    plain = banks()
    kinds = (Relation("transfer", None), Relation("card", None))
    told = [replace(each, edge_relation=torch.arange(each.num_edges) % 2, relations=kinds) for each in plain[0]]
    job = job_of(plain, BOOSTED)
    found, expected = of_twin(job, (told, plain[1])), of_twin(job, plain)
    assert all(torch.equal(found[party], expected[party]) for party in "ABC")


def test_in_one_place_a_payment_that_two_banks_have_counts_once() -> None:
    found = weighted(banks())
    job = job_of(found, HOME)
    less = without(found, "B", "A")

    def output(graphs: list[PartyGraph]) -> torch.Tensor:
        inputs = PARADIGMS["union"].data.accept(job, graphs, found[1])
        return pooled(job, inputs.graphs, inputs.ids, lambda _: None).output

    assert by_name(less)["B"].num_edges < by_name(found)["B"].num_edges
    assert torch.allclose(output(found[0]), output(less[0]))
    plain = [replace(graph, edge_weight=None) for graph in found[0]]
    assert not torch.allclose(output(found[0]), output(plain))
