"""Noise in every hop against brute force: how far sums truly move between neighbouring data of the same releases."""

import itertools
import math
from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import nightly
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.aggregation import NoisySums, bound_degrees, most_neighbours, pair_matrix
from veilgraph.privacy.event import Neighbours, Unit
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.privacy.plan import aggregation_sensitivity

NODES, WIDTH = 8, 3
PAIRS = list(itertools.combinations(range(NODES), 2))


def tensor(edges: Iterable[tuple[int, int]]) -> Tensor:
    return torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2).T


def both(pairs: Iterable[tuple[int, int]]) -> Tensor:
    return tensor(edge for a, b in pairs for edge in ((a, b), (b, a)))


def rows_of(seed: int, nodes: int = NODES, width: int = WIDTH) -> Tensor:
    return torch.randn(nodes, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sums(edges: Tensor, hops: int, clip: float | None, nodes: int = NODES, sigma: float = 0.3,
         weight: Tensor | None = None, own_length: float = 1.0) -> NoisySums:  # fmt: skip
    return NoisySums(pair_matrix(edges, weight, nodes), hops, Gaussian(1.0, sigma), clip, own_length)


def own_row(limit: float, own_share: float | None, replaced: bool) -> float:
    """λ with which own rows have that share of the square of all."""
    return 1.0 if own_share is None else limit * math.sqrt(own_share) / (2 if replaced else 1)


def moved(one: NoisySums, other: NoisySums, x: Tensor, y: Tensor) -> Tensor:
    """What the noise is added to, in two worlds whose outcomes are the same: the difference, [N, (K + 1)·d]."""
    released = one.release(x, system_secrets)
    return one.clean(x, released) - other.clean(y, released)


def length(difference: Tensor) -> float:
    return float(difference.norm())


def changed(difference: Tensor, width: int = WIDTH) -> list[int]:
    """Rows that differ at all, of each matrix."""
    return [int((each != 0).any(dim=1).sum()) for each in difference.split(width, dim=1)]


def degree(pairs: Iterable[tuple[int, int]]) -> int:
    return max((sum(node in pair for pair in pairs) for node in range(NODES)), default=0)


graphs = st.frozensets(st.sampled_from(PAIRS), max_size=16)
HOPS = st.integers(1, 3)
SEEDS = st.integers(0, 2**16)
OWN = st.sampled_from([None, 0.2, 0.9])
"""What share of the square is the own row's."""


@settings(max_examples=60)
@given(graphs, HOPS, SEEDS, st.lists(st.floats(0, 3), min_size=4, max_size=4))
def test_one_pair_moves_the_sums_no_further_than_derived(pairs, hops, seed, weights):
    """{0, 1} with any weights, either way, against any others, none among them."""
    x = rows_of(seed)
    rest = both(pairs - {(0, 1)})
    worlds = []
    for forth, back in (weights[:2], weights[2:]):
        own = torch.tensor([[0, 1], [1, 0]])
        weight = torch.cat([torch.ones(rest.shape[1]), torch.tensor([forth, back])])
        worlds.append(sums(torch.cat([rest, own], dim=1), hops, None, weight=weight))
    difference = moved(worlds[0], worlds[1], x, x)
    assert length(difference) <= aggregation_sensitivity("edge", "replacement", hops)
    assert changed(difference)[0] == 0
    assert max(changed(difference)) <= 2


def test_every_pair_of_every_graph_of_four_nodes():
    pairs = list(itertools.combinations(range(4), 2))
    x, bound = rows_of(1, 4), aggregation_sensitivity("edge", "replacement", 2)
    made = {}
    for chosen in itertools.product((False, True), repeat=6):
        graph = frozenset(itertools.compress(pairs, chosen))
        made[graph] = sums(both(graph), 2, None, nodes=4)
    longest = max(length(moved(made[g], made[g ^ {pair}], x, x)) for g in made for pair in pairs)
    assert 0.999 * bound < longest <= bound, "it is reached, since an edge's sums move by two rows of length 1"


@settings(max_examples=60)
@given(graphs, HOPS, SEEDS, st.floats(0.3, 1), OWN)
def test_one_node_with_its_edges_absent(pairs, hops, seed, share, own):
    bound = max(1, degree(pairs))
    clip = share * bound
    x = rows_of(seed)
    without = x.clone()
    without[0] = 0
    fewer = frozenset(pair for pair in pairs if 0 not in pair)
    expected = aggregation_sensitivity("node-edges", "zero-out", hops, degree_bound=bound, sum_clip=clip, own_share=own)
    length_of_own = own_row(expected, own, replaced=False)
    here, there = (
        (sums(both(each), hops, clip, own_length=length_of_own), rows) for each, rows in ((pairs, x), (fewer, without))
    )
    for (one, a), (other, b) in ((here, there), (there, here)):
        difference = moved(one, other, a, b)
        assert length(difference) <= expected
        assert max(changed(difference)) <= 1 + bound


def test_rounding_is_within_the_bound_however_coarse_the_grid_is():
    """Much noise has a coarse grid, on which sums are shortened and rounded: rows are so much shorter beforehand."""
    hub, clip, width = frozenset((0, node) for node in range(1, NODES)), 2.0, 16
    limit = aggregation_sensitivity("node-edges", "zero-out", 1, degree_bound=NODES - 1, sum_clip=clip)
    others = frozenset((a, b) for a, b in PAIRS if a and b)
    for sigma in (300.0, 3000.0, 20000.0):
        for seed in range(40):
            x = rows_of(seed, width=width).abs() + 1
            without = x.clone()
            without[0] = 0
            one, other = (sums(both(pairs), 1, clip, sigma=sigma) for pairs in (hub | others, others))
            released = torch.zeros(NODES, 2 * width, dtype=torch.float64)
            difference = one.clean(x, released) - other.clean(without, released)
            assert length(difference) <= limit
            assert float(difference[1:].norm(dim=1).max()) <= 1.0


@nightly
def test_every_node_of_every_graph_of_four_nodes():
    pairs = list(itertools.combinations(range(4), 2))
    x, clip = rows_of(2, 4), 1.4
    for chosen in itertools.product((False, True), repeat=6):
        graph = frozenset(itertools.compress(pairs, chosen))
        bound = most_neighbours(both(graph), 4) if graph else 2
        with_all = sums(both(graph), 2, min(clip, bound), nodes=4)
        limit = aggregation_sensitivity("node-edges", "zero-out", 2, degree_bound=bound, sum_clip=min(clip, bound))
        for node in range(4):
            gone = both(pair for pair in graph if node not in pair)
            without = x.clone()
            without[node] = 0
            assert length(moved(with_all, sums(gone, 2, min(clip, bound), nodes=4), x, without)) <= limit


@settings(max_examples=60)
@given(graphs, graphs, HOPS, SEEDS, st.floats(0.3, 1), OWN)
def test_one_node_with_its_edges_replaced(pairs, others, hops, seed, share, own):
    """Node 0 has other features, and the edges of another graph."""
    replaced = frozenset(p for p in pairs if 0 not in p) | frozenset(p for p in others if 0 in p)
    bound = max(1, degree(pairs), degree(replaced))
    clip = share * bound
    x, y = rows_of(seed), rows_of(seed)
    y[0] = -3 * x[0]
    limit = aggregation_sensitivity("node-edges", "replacement", hops, degree_bound=bound, sum_clip=clip, own_share=own)
    one, other = (
        sums(both(each), hops, clip, own_length=own_row(limit, own, replaced=True)) for each in (pairs, replaced)
    )
    assert length(moved(one, other, x, y)) <= limit


@settings(max_examples=40)
@given(graphs, HOPS, SEEDS, OWN)
def test_one_nodes_features_are_in_the_first_hop_alone(pairs, hops, seed, own):
    bound = max(1, degree(pairs))
    x, y = rows_of(seed), rows_of(seed)
    y[0] = -x[0]
    limit = aggregation_sensitivity("node", "replacement", hops, degree_bound=bound, own_share=own)
    made = sums(both(pairs), hops, None, own_length=own_row(limit, own, replaced=True))
    difference = moved(made, made, x, y)
    assert length(difference) <= limit
    assert changed(difference)[2:] == [0] * (hops - 1)


@pytest.mark.parametrize("own", [None, 0.5, 0.99])
def test_the_bounds_are_reached(own):
    """A star: its leaves lose a row each, and its centre a sum as long as sums may be."""
    leaves, clip, hops = 5, 3.0, 3

    def made(edges: Tensor, hops: int, clip: float | None, limit: float, replaced: bool, nodes: int = leaves + 1):
        return sums(edges, hops, clip, nodes, sigma=1e-4, own_length=own_row(limit, own, replaced))

    x, gone, turned = (torch.ones(leaves + 1, 1, dtype=torch.float64) for _ in range(3))
    star, none = both((0, leaf) for leaf in range(1, leaves + 1)), torch.empty(2, 0, dtype=torch.int64)
    gone[0], turned[0] = 0, -1
    limit = aggregation_sensitivity("node-edges", "zero-out", hops, degree_bound=leaves, sum_clip=clip, own_share=own)
    absent = moved(made(star, hops, clip, limit, False), made(none, hops, clip, limit, False), x, gone)
    assert length(absent) == pytest.approx(limit, rel=1e-4)
    limit = aggregation_sensitivity("node", "replacement", 1, degree_bound=leaves, own_share=own)
    same = made(star, 1, None, limit, True)
    assert length(moved(same, same, x, turned)) == pytest.approx(limit)
    # Directed: what goes out to all leaves is turned round, and what comes in is of other leaves, turned round as well.
    signs = torch.tensor([[1.0], [1], [1], [1], [-1], [-1], [-1]]).double()
    other, out = signs.clone(), [(0, leaf) for leaf in range(1, 7)]
    other[0] = -1
    limit = aggregation_sensitivity("node-edges", "replacement", 1, degree_bound=6, sum_clip=clip, own_share=own)
    one, two = (
        made(tensor([*out, *((leaf, 0) for leaf in into)]), 1, clip, limit, True, 7) for into in ((1, 2, 3), (4, 5, 6))
    )
    difference = moved(one, two, signs, other)
    assert length(difference) == pytest.approx(limit, rel=1e-4)
    part = length(difference[:, :1]) ** 2 / length(difference) ** 2
    assert own is None or part == pytest.approx(own, rel=1e-4), "an own row has the share that it was to have"


def test_all_hops_together_cost_what_the_accountant_says():
    """Adaptive composition, played: the mean of the log likelihood ratio of two worlds is μ²/2."""
    hops, sigma, games = 3, 2.0, 200
    x, pairs = rows_of(3), frozenset({(0, 1), (1, 2), (3, 4)})
    one, other = (sums(both(each), hops, None, sigma=sigma) for each in (pairs, pairs | {(0, 3)}))
    ratios, source = [], fixed_secrets("ratios")
    for _ in range(games):
        released = one.release(x, source)
        near, far = released - one.clean(x, released), released - other.clean(x, released)
        ratios.append(float(far.square().sum() - near.square().sum()) / (2 * sigma**2))
    mu = aggregation_sensitivity("edge", "replacement", hops) / sigma
    found = torch.tensor(ratios)
    assert float(found.mean()) == pytest.approx(mu**2 / 2, abs=6 * mu / math.sqrt(games))
    assert float(found.std()) == pytest.approx(mu, rel=0.3)


# Rows that are made of what was released, and of nothing private (paradigm node-dp)


def taken(sums: Tensor) -> Tensor:
    """Rows of the next hop: of all sums until then, as a network's opinion is."""
    return sums.reshape(len(sums), -1, WIDTH).sum(dim=1).tanh().softmax(dim=1)


def moved_by_edges(one: NoisySums, other: NoisySums, x: Tensor) -> Tensor:
    released = one.release(x, system_secrets, taken)
    return one.clean(x, released, taken) - other.clean(x, released, taken)


def of_hops(edges: Tensor, hops: int, clip: float | None, nodes: int = NODES) -> NoisySums:
    return NoisySums(pair_matrix(edges, None, nodes), hops, Gaussian(1.0, 0.3), clip, 0.0)


def test_later_rows_are_made_of_earlier_sums_and_of_nothing_else():
    x, edges = rows_of(5), both([(0, 1), (1, 2), (3, 4)])
    quiet = NoisySums(pair_matrix(edges, None, NODES), 3, None, None, 0.0)
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense[edges[1], edges[0]] = 1
    rows, found = torch.nn.functional.normalize(x), []
    for _ in range(3):
        found.append(dense @ rows)
        rows = torch.nn.functional.normalize(taken(torch.cat(found, dim=1)))
    released = quiet.release(x, system_secrets, taken)
    assert torch.allclose(released, torch.cat(found, dim=1), atol=1e-10)
    assert torch.equal(quiet.clean(x, released, taken), released)


@nightly
def test_every_edge_and_node_of_every_graph_of_four_nodes_with_public_rows():
    pairs, x, clip = list(itertools.combinations(range(4), 2)), rows_of(1, 4), 1.4
    graphs_of_four = [frozenset(itertools.compress(pairs, chosen)) for chosen in itertools.product((0, 1), repeat=6)]
    edge = {graph: of_hops(both(graph), 2, None, 4) for graph in graphs_of_four}
    bound = aggregation_sensitivity("edge", "replacement", 2, public_rows=True)
    longest = max(length(moved_by_edges(edge[g], edge[g ^ {pair}], x)) for g in edge for pair in pairs)
    assert 0.999 * bound < longest <= bound
    node = {graph: of_hops(both(graph), 2, clip, 4) for graph in graphs_of_four}
    for graph, node_of in itertools.product(graphs_of_four, range(4)):
        degrees = max(2, most_neighbours(both(graph), 4) if graph else 0)
        gone = frozenset(pair for pair in graph if node_of not in pair)
        limit = aggregation_sensitivity(
            "node-edges", "zero-out", 2, degree_bound=degrees, sum_clip=clip, public_rows=True
        )
        assert length(moved_by_edges(node[graph], node[gone], x)) <= limit
        others = frozenset(pair for pair in pairs if node_of in pair) - graph
        limit = aggregation_sensitivity("node-edges", "replacement", 2, degree_bound=3, sum_clip=clip, public_rows=True)
        assert length(moved_by_edges(node[graph], node[gone | others], x)) <= limit


def test_the_bounds_of_public_rows_are_reached():
    leaves, clip, hops = 5, 3.0, 2
    ones = torch.ones(2 * leaves + 1, 1, dtype=torch.float64)

    def made(edges: Tensor) -> NoisySums:
        return NoisySums(pair_matrix(edges, None, len(ones)), hops, Gaussian(1.0, 1e-4), clip, 0.0)

    def limit(neighbours: Neighbours) -> float:
        return aggregation_sensitivity(
            "node-edges", neighbours, hops, degree_bound=leaves, sum_clip=clip, public_rows=True
        )

    star, none = both((0, leaf) for leaf in range(1, leaves + 1)), torch.empty(2, 0, dtype=torch.int64)
    released = made(star).release(ones, system_secrets, lambda _: ones)
    difference = [each.clean(ones, released, lambda _: ones) for each in (made(star), made(none))]
    assert length(difference[0] - difference[1]) == pytest.approx(limit("zero-out"), rel=1e-4)
    signs = ones.clone()
    signs[leaves + 1 :] = -1
    other = both((0, leaf) for leaf in range(leaves + 1, 2 * leaves + 1))
    released = made(star).release(signs, system_secrets, lambda _: signs)
    difference = [each.clean(signs, released, lambda _: signs) for each in (made(star), made(other))]
    assert length(difference[0] - difference[1]) == pytest.approx(limit("replacement"), rel=1e-4)


# Why the degree bound is a rule, and edges are not left out


def test_a_bound_by_leaving_edges_out_spreads_one_node_over_all():
    """Everybody around node 0 has one neighbour too many; without node 0 each of them keeps one more."""
    bound, around = 2, 40
    pairs = [(0, u) for u in range(1, around + 1)]
    nodes = around + 1
    for u in range(1, around + 1):
        pairs += [(u, nodes), (u, nodes + 1)]
        nodes += 2
    assert most_neighbours(both(pairs[around:]), nodes) == bound, "without node 0 all keep the rule"

    def kept(of: list[tuple[int, int]]) -> Tensor:
        edges = both(of)
        return edges[:, bound_degrees(edges, nodes, bound)]

    x, clip, sigma = rows_of(4, nodes), math.sqrt(bound), 4.0
    without = x.clone()
    without[0] = 0
    one, other = sums(kept(pairs), 1, clip, nodes, sigma), sums(kept(pairs[around:]), 1, clip, nodes, sigma)
    difference = moved(one, other, x, without)
    claimed = aggregation_sensitivity("node-edges", "zero-out", 1, degree_bound=bound, sum_clip=clip)
    assert changed(difference)[1] > 5 * (1 + bound)
    assert length(difference) > 2 * claimed
    assert gaussian_epsilon(length(difference) / sigma, 1e-5) > 2 * gaussian_epsilon(claimed / sigma, 1e-5)
    wins, source = 0, fixed_secrets("games")
    for _ in range(200):
        scores = []
        for world, rows in ((one, x), (other, without)):
            released = world.release(rows, source)
            scores.append(float((released * difference).sum()))
        wins += scores[0] > scores[1]
    honest = 0.5 * (1 + math.erf(claimed / sigma / 2))
    assert wins / 200 > honest + 0.1, "an attack tells node 0's presence more often than the claim allows"


def test_neighbours_are_counted_once_and_in_either_direction():
    assert most_neighbours(tensor([(0, 1), (1, 0), (2, 0), (0, 0), (3, 3)]), 5) == 2
    assert most_neighbours(torch.tensor([[0, 0, 0], [1, 1, 2]]), 3) == 2, "copies are one"
    assert most_neighbours(torch.empty(2, 0, dtype=torch.int64), 3) == 0
    assert most_neighbours(torch.tensor([[1], [1]]), 3) == 0


# What is released


def test_without_own_rows_the_sums_are_the_same_and_so_is_their_noise():
    x, pairs, draws = rows_of(6), pair_matrix(both(PAIRS), None, NODES), []

    class Counted(Gaussian):
        def draw(self, shape, source):
            draws.append(shape)
            return torch.zeros(shape, dtype=torch.float64)

    found = [
        NoisySums(pairs, 2, Counted(1.0, 0.7), None, float(own)).release(x, fixed_secrets("a")) for own in (True, False)
    ]
    assert torch.equal(found[0][:, WIDTH:], found[1])
    assert draws == [(NODES, WIDTH)] * 5, "three matrices with noise, then two"
    made = NoisySums(pairs, 2, Gaussian(1.0, 0.7), None, 0.0)
    released = made.release(x, fixed_secrets("a"))
    drawn = [Gaussian(1.0, 0.7).draw((NODES, WIDTH), source) for source in [fixed_secrets("a")] for _ in range(2)]
    assert torch.equal(released - made.clean(x, released), torch.cat(drawn, dim=1))


def test_sums_are_exact_in_any_order():
    generator = torch.Generator().manual_seed(0)
    edges = torch.unique(torch.randint(0, 200, (2, 3000), generator=generator), dim=1)
    weight = (2 * torch.rand(edges.shape[1], generator=generator)).double()
    order = torch.randperm(edges.shape[1], generator=generator)
    x = rows_of(7, 200, 16)
    results = [
        sums(edges[:, each], 2, None, 200, weight=weight[each]).release(x, fixed_secrets("c"))
        for each in (torch.arange(len(order)), order)
    ]
    assert torch.equal(*results)


def test_a_weight_gives_between_nothing_and_the_row():
    """To the last bit: in whatever the noise's grid leaves of it, and as much whatever else the sum has."""
    x, weight = rows_of(10), torch.tensor([0.37, 0.37])
    own, rest = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[3, 4], [0, 0]])
    for sigma in (0.3, 50.0):
        made = [
            sums(edges, 1, None, sigma=sigma, weight=torch.ones(edges.shape[1]) if w is None else w)
            for edges, w in ((own, weight), (rest, None), (torch.cat([own, rest], 1), torch.tensor([0.37, 0.37, 1, 1])))
        ]
        few, others, all_ = (each.clean(x, torch.zeros(NODES, 2 * WIDTH)).split(WIDTH, dim=1)[1] for each in made)
        assert torch.equal(few + others, all_)
        first = made[0].clean(x, torch.zeros(NODES, 2 * WIDTH))[:, :WIDTH]
        term = few[0] - torch.trunc(weight[0].double() * first[2] / made[0]._cell) * made[0]._cell
        assert bool((term.abs() <= first[1].abs()).all())
        assert bool((term * first[1] >= 0).all())


def test_bad_input_is_one_error():
    with refused(ConfigError, key="hops", value=0):
        aggregation_sensitivity("edge", "replacement", 0)
    with refused(ConfigError, key="degree_bound"):
        aggregation_sensitivity("node", "replacement", 1)
    with refused(ConfigError, key="sum_clip", value=4.5):
        aggregation_sensitivity("node-edges", "zero-out", 1, degree_bound=4, sum_clip=4.5)
    with refused(ConfigError, key="unit"):
        aggregation_sensitivity("node", "replacement", 2, degree_bound=3, public_rows=True)
    wrong: list[tuple[Unit, Neighbours]] = [("row", "zero-out"), ("edge", "zero-out"), ("node", "zero-out")]
    for unit, relation in wrong:
        with refused(ConfigError, key="unit", value=unit):
            aggregation_sensitivity(unit, relation, 1, degree_bound=3)
    with refused(ConfigError, key="privacy.noise_multiplier"):
        sums(both(PAIRS), 1, None, sigma=1e-9)
    x = rows_of(9)
    for value in (math.nan, math.inf):
        x[2, 1] = value
        with pytest.raises(RangeOverflow):
            sums(both(PAIRS), 1, None).release(x, system_secrets)


def test_what_a_pair_weighs_is_decided_by_no_other_edge():
    # In another order copies add up to another last bit: 0.1 + 0.2 + 0.7 is 1.0 or 0.9999999999999999. Where the order
    # hangs on what else is in the row, one edge at a hub moves the terms of half of its neighbours by a cell each.
    nodes, width = 200, 64
    source = torch.arange(1, nodes).repeat_interleave(3)
    weight = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).repeat(nodes - 1)
    mixed = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    edges, weight = torch.stack([source, torch.zeros_like(source)])[:, mixed], weight[mixed]
    rows, nothing = rows_of(0, nodes, width), torch.empty(0, dtype=torch.int64)
    made = [sums(edges[:, kept], 1, None, nodes, sigma=3.0, weight=weight[kept])
            for gone in (1, 100, 199) for kept in (edges[0] != gone, edges[0] == gone)]  # fmt: skip
    whole, none = sums(edges, 1, None, nodes, 3.0, weight), sums(edges[:, nothing], 1, None, nodes, 3.0)
    for without, alone in zip(made[::2], made[1::2], strict=True):
        assert torch.equal(moved(whole, without, rows, rows), moved(alone, none, rows, rows))
