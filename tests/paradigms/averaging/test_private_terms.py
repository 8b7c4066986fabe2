"""Terms of a private training: of how many a node is a part, on all small graphs; and how far a sum of them moves."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import pytest
import torch
from torch.nn import functional
from veilgraph_averaging.private.event import reach
from veilgraph_averaging.private.sampled import SampledSum
from veilgraph_averaging.training import Terms

from tests.errors import refused
from tests.paradigms.averaging.private_jobs import graph, job, local, network, without
from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.propagate import Adjacency, FixedInput
from veilgraph.privacy.aggregation import most_neighbours, too_many_neighbours


def source(number: int) -> SecretSource:
    """Draws that can be repeated."""
    generator = torch.Generator().manual_seed(number)
    return lambda count: bytes(torch.randint(256, (count,), generator=generator, dtype=torch.uint8).tolist())


def undirected(nodes: int) -> Iterator[PartyGraph]:
    pairs = list(combinations(range(nodes), 2))
    for chosen in product((False, True), repeat=len(pairs)):
        kept = [pair for pair, there in zip(pairs, chosen, strict=True) if there]
        yield graph(nodes, [*kept, *((b, a) for a, b in kept)])


def directed(nodes: int) -> Iterator[PartyGraph]:
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    for chosen in product((False, True), repeat=len(pairs)):
        yield graph(nodes, [pair for pair, there in zip(pairs, chosen, strict=True) if there])


def balls(whole: PartyGraph, hops: int) -> list[tuple[list[int], list[list[int]]]]:
    """Of every node the nodes of its ball, and the edges between them."""
    terms, found = Terms(whole, hops, torch.float64), []
    for node in range(whole.num_nodes):
        ball = terms.ball(node)
        inside = torch.isin(whole.edge_index, torch.tensor(ball)).all(dim=0)
        found.append((ball, whole.edge_index[:, inside].t().tolist()))
    return found


def held_to(whole: PartyGraph, hops: int) -> int:
    """The most terms that differ when a node goes, which must be those of whose ball it is."""
    before, most = balls(whole, hops), 0
    for node in range(whole.num_nodes):
        after = balls(without(whole, node), hops)
        differ = [each for each in range(whole.num_nodes) if each == node or before[each] != after[each]]
        assert differ == [each for each in range(whole.num_nodes) if node in before[each][0]]
        assert len(differ) <= reach(hops, max(1, most_neighbours(whole.edge_index, whole.num_nodes)))
        most = max(most, len(differ))
    return most


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_node_is_in_no_more_terms_than_are_counted_on_all_graphs_of_four(hops: int) -> None:
    assert max(held_to(each, hops) for each in undirected(4)) == (1, 4, 4)[hops]


def test_directions_of_edges_change_nothing_of_that() -> None:
    for each in directed(3):
        for hops in (1, 2):
            held_to(each, hops)


def test_the_count_is_reached() -> None:
    tree = [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5), (2, 6), (2, 7), (3, 8), (3, 9)]
    whole = graph(10, [*tree, *((b, a) for a, b in tree)])
    before = balls(whole, 2)
    assert sum(0 in ball for ball, _ in before) == reach(2, 3) == 10


@pytest.mark.parametrize("name", ["gin", "sage-mean"])
@pytest.mark.parametrize("hops", [0, 1, 2])
def test_a_term_is_the_loss_that_the_network_over_the_whole_graph_has_at_its_node(name: str, hops: int) -> None:
    bound = None if hops == 0 else 20
    settings = job(local(name, hops), {"averaging": {"privacy": {"degree_bound": bound}}})
    edges = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 1), (1, 4), (5, 4), (2, 0)]
    whole, net = graph(6, edges), network(settings)
    assert whole.labels is not None
    terms = Terms(whole, hops, torch.float64)
    everything = Adjacency.from_graph(whole, torch.float64)
    for node in range(6):
        logits = net(FixedInput(whole.features, torch.float64), everything, None)
        loss = functional.cross_entropy(logits[node : node + 1], whole.labels[node : node + 1])
        parts = torch.autograd.grad(loss, net.shared(), allow_unused=True)
        known = torch.cat(
            [(torch.zeros_like(w) if g is None else g).flatten() for w, g in zip(net.shared(), parts, strict=True)]
        )
        assert torch.allclose(terms.gradient(net, node), known, atol=1e-12)


@pytest.mark.parametrize("name", ["gin", "sage-mean"])
def test_a_sum_moves_by_no_more_than_its_drawn_terms_may_and_others_keep_every_bit(name: str) -> None:
    """For every node of some graphs, with the same draws and noise in both worlds."""
    settings = job(local(name, 1))
    net, summed = network(settings), SampledSum(0.5, 1.0, 0.6)
    for number, whole in enumerate(list(undirected(4))[5::12]):
        terms = Terms(whole, 1, torch.float64)
        drawn = summed.drawn(4, source(number))
        for node in range(4):
            gone = Terms(without(whole, node), 1, torch.float64)
            places = {each: at for at, each in enumerate(n for n in range(4) if n != node)}
            near = [each for each in range(4) if node in terms.ball(each)]
            moved = torch.zeros(len(net.vector()), dtype=torch.float64)
            for each in drawn:
                one = summed_terms(summed, terms.gradient(net, each))
                other = (
                    torch.zeros_like(one) if each == node else summed_terms(summed, gone.gradient(net, places[each]))
                )
                if each not in near:
                    assert torch.equal(one, other)
                moved += one - other
            most = 0.5 * sum(1 if each == node else 2 for each in drawn if each in near)
            assert float(moved.norm()) <= most + 1e-12


def summed_terms(summed: SampledSum, gradient: torch.Tensor) -> torch.Tensor:
    """What one term adds to a sum, by a sum of it alone."""
    alone = SampledSum(summed.clip, summed.noise_multiplier, 1.0)
    return alone.added(1, lambda _: gradient, len(gradient), source(0))[0].sum(dim=0)


def test_terms_are_clipped_drawn_by_themselves_and_noised_with_the_deviation_that_is_counted() -> None:
    summed = SampledSum(2.0, 3.0, 0.25)
    shares = torch.tensor([len(summed.drawn(1000, source(each))) for each in range(20)]) / 1000
    assert float(shares.mean()) == pytest.approx(0.25, abs=0.01)
    assert summed.drawn(3, source(1)) == summed.drawn(3, source(1))
    assert SampledSum(2.0, 3.0, 1.0).drawn(5, source(1)) == [0, 1, 2, 3, 4]
    long = torch.full((20_000,), 100.0, dtype=torch.float64)
    one, _ = SampledSum(2.0, 3.0, 1.0).added(1, lambda _: long, 20_000, source(2))
    assert 1.999 < float(one.norm()) <= 2.0
    plan = job({"averaging": {"privacy": {"clip": 2.0, "noise_multiplier": 3.0, "sampling_rate": 0.25}}}).training_plan
    assert plan is not None
    noise = plan.paid_by(None, source(2)).sampled_sum(0, lambda _: long, 20_000, 1)
    assert float(noise.std()) == pytest.approx(6.0, rel=0.03)
    of = plan.paid_by(None, source(3))
    found = of.sampled_sum(1000, lambda _: long, 20_000, 1)
    assert bool(of.drawn.sum())
    assert torch.equal(of.clean[1], of.clean[0])
    assert float((found - of.clean[1]).std()) == pytest.approx(6.0, rel=0.03)
    assert float(of.clean[1].norm()) == pytest.approx(2.0 * int(of.drawn.sum()), rel=1e-3)


@pytest.mark.parametrize("entry", [torch.nan, torch.inf, -torch.inf, 1e200])
def test_a_gradient_that_is_not_finite_counts_as_nothing(entry: float) -> None:
    """An error in its place would say that one node was drawn whose gradient overflows."""
    terms = [torch.tensor([0.5, 0.25], dtype=torch.float64), torch.tensor([0.5, entry], dtype=torch.float64)]
    every = SampledSum(1.0, 1.0, 1.0)
    (one, _), (both, drawn) = (every.added(count, terms.__getitem__, 2, source(1)) for count in (1, 2))
    assert torch.equal(one, both)
    assert drawn.tolist() == [1, 1], "it was drawn all the same"


def test_weights_that_the_server_chose_make_no_error_of_one_node_alone() -> None:
    """Weights with which the network overflows at nodes of large features alone; the others learn it from no error."""
    net = network(job())
    net.take(1e200 * net.vector())
    whole = graph(4, [(0, 1), (1, 0)])
    ordinary, large = (replace(whole, features=whole.features * scale) for scale in (0.0, 1e200))
    summed, size = SampledSum(1.0, 1.0, 1.0), len(net.vector())
    for given in (ordinary, large):
        terms = Terms(given, 1, torch.float64)
        sums, _ = summed.added(len(terms), partial(terms.gradient, net), size, source(1))
        assert bool(sums.isfinite().all())
    overflowing = [terms.gradient(net, each) for each in range(4)]
    assert not all(bool(each.isfinite().all()) for each in overflowing)


def test_noise_too_fine_for_exact_sums_is_refused() -> None:
    with refused(ConfigError, key="noise_multiplier"):
        SampledSum(1.0, 1e-8, 1.0).added(10**4, lambda _: torch.zeros(1), 1, source(1))


def test_a_node_with_more_neighbours_is_refused_and_edges_to_itself_are_none() -> None:
    star = graph(4, [(1, 0), (2, 0), (0, 3), (0, 0), (1, 0)])
    setting = "averaging.privacy.degree_bound"
    assert [too_many_neighbours(rule, star) for rule in ((setting, 3), None)] == ["", ""]
    assert f"a node of its graph has more than {setting}=2 neighbours" in too_many_neighbours((setting, 2), star)
