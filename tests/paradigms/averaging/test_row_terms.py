"""Gradients of single rows: those of autograd, of one node each, and added up as they would be by themselves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.network import Averaged, LinearNetwork
from veilgraph_averaging.private.sampled import Places, SampledSum
from veilgraph_averaging.settings import AveragingJob
from veilgraph_averaging.training import LinearTerms, RowTerms, Terms

from tests.paradigms.averaging.private_jobs import graph, job, local, network, source, without
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.layers import ACTIVATIONS
from veilgraph.privacy.mechanism import clip_to_grid


def bare(**model: object) -> AveragingJob:
    return job(local("gin", 0), {"model": model, "averaging": {"privacy": {"degree_bound": None}}})


def holey(nodes: int) -> PartyGraph:
    """Rows that have zeros here and there, and one of zeros alone."""
    whole = graph(nodes, [(0, 1), (1, 0)])
    features = whole.features.clone()
    features[::2, 1], features[3] = 0.0, 0.0
    return replace(whole, features=features)


def linear_network() -> Averaged:
    found = LinearNetwork(3, 2, torch.float64)
    found.take(torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    return found


def spread(term: Places, size: int) -> Tensor:
    found = torch.zeros(size, dtype=term.values.dtype)
    found[term.places] = term.values
    return found


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "linear"])
def test_a_gradient_is_that_of_autograd(activation: str, sparse: bool) -> None:
    linear = activation == "linear"
    whole, net = holey(7), linear_network() if linear else network(bare(activation=activation))
    given = replace(whole, features=whole.features.to_sparse_csr()) if sparse else whole
    balls = Terms(whole, 0, torch.float64)
    rows = LinearTerms(given, "none", torch.float64) if linear else RowTerms(given, activation, torch.float64)  # type: ignore[arg-type]
    assert len(rows) == len(balls) == 7
    for number in range(7):
        term = rows.at(net)(number)
        assert len(term.places.unique()) == len(term.places) == len(term.values)
        size = len(net.vector())
        assert torch.allclose(spread(term, size), balls.gradient(net, number), atol=1e-12)


def added(summed: SampledSum, rows: RowTerms, net: Averaged, chosen: list[int]) -> Tensor:
    """What terms add to a sum."""
    size, at = len(net.vector()), rows.at(net)
    return summed.added(len(chosen), lambda number: at(chosen[number]), size, source("A"))[0].sum(dim=0)


@pytest.mark.parametrize("kind", [RowTerms, LinearTerms])
def test_a_node_moves_a_sum_by_its_own_clipped_term_to_the_last_bit(kind: type[RowTerms]) -> None:
    whole, summed = holey(9), SampledSum(0.5, 1.0, 1.0)
    net = linear_network() if kind is LinearTerms else network(bare())
    rows = kind(whole, "relu", torch.float64)
    everything = added(summed, rows, net, list(range(9)))
    for node in range(9):
        gone = kind(without(whole, node), "relu", torch.float64)
        moved = everything - added(summed, gone, net, list(range(8)))
        assert torch.equal(moved, added(summed, rows, net, [node]))
        assert float(moved.norm()) <= 0.5


def test_terms_by_places_are_clipped_and_added_up_as_whole_ones() -> None:
    summed, cell = SampledSum(1.0, 1.0, 1.0), 2.0**-40
    terms = [
        Places(torch.tensor([3, 0]), torch.tensor([3.0, 4.0])),
        Places(torch.tensor([0, 1]), torch.tensor([0.25, 0.5])),
        Places(torch.tensor([2]), torch.tensor([-9.0])),
    ]
    found = summed.added(3, terms.__getitem__, 4, source("B"))[0].sum(dim=0)
    known = sum(clip_to_grid(spread(each, 4).reshape(1, -1), 1.0, 2, cell)[0] for each in terms)
    assert torch.allclose(found, torch.as_tensor(known), atol=1e-5)


def test_the_first_gradient_of_a_linear_network_is_a_sum_of_rows_for_each_class() -> None:
    """Each class's rows less the mean of all classes': no row of length 1 is clipped."""
    whole, net = holey(9), LinearNetwork(3, 2, torch.float64)
    whole = replace(whole, features=torch.nn.functional.normalize(whole.features))
    assert whole.labels is not None
    rows = LinearTerms(whole, "none", torch.float64)
    found = added(SampledSum(1.0, 1.0, 1.0), rows, net, list(range(9))).view(2, 3)
    sums = torch.nn.functional.one_hot(whole.labels, 2).double().T @ whole.features
    assert torch.allclose(-found, sums - sums.mean(0), atol=1e-5)
