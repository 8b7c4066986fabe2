"""Noisy sums over a learner's edges against brute force: how far they truly move between neighbouring graphs.

Rows are made of what was released before, and of nothing of an edge: they are the same in both worlds.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from typing_extensions import override
from veilgraph_node_dp.settings import SumPrivacySettings
from veilgraph_node_dp.sums import NoisySums, Then, pair_matrix

from tests import nightly
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.errors import ConfigError, RangeOverflow
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.aggregation import bound_degrees, most_neighbours
from veilgraph.privacy.mechanism import Gaussian

NODES, WIDTH = 8, 3
PAIRS = list(itertools.combinations(range(NODES), 2))


@dataclass(frozen=True)
class Quiet(Gaussian):
    """No noise, on the grid of noise."""

    @override
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)


@dataclass(frozen=True)
class Sums:
    """Those of one graph; ``clip`` is B."""

    edges: Tensor
    hops: int
    clip: float | None
    nodes: int = NODES
    sigma: float = 0.3
    weight: Tensor | None = None

    def by(self, mechanism: Gaussian, x: Tensor, source: SecretSource, then: Then) -> Tensor:
        pairs = pair_matrix(self.edges, self.weight, self.nodes)
        return NoisySums(self.hops, mechanism, self.clip).release(pairs, x, source, then)

    def release(self, x: Tensor, source: SecretSource, then: Then) -> Tensor:
        return self.by(Gaussian(1.0, self.sigma), x, source, then)

    def clean(self, x: Tensor, released: Tensor, then: Then) -> Tensor:
        """What the noise is added to where so much was released: Tensor[N, K·d]."""
        quiet = Quiet(1.0, self.sigma)
        return self.by(quiet, x, system_secrets, lambda sums: then(released[:, : sums.shape[1]]))


def tensor(edges: Iterable[tuple[int, int]]) -> Tensor:
    return torch.tensor(sorted(edges), dtype=torch.int64).reshape(-1, 2).T


def both(pairs: Iterable[tuple[int, int]]) -> Tensor:
    return tensor(edge for a, b in pairs for edge in ((a, b), (b, a)))


def rows_of(seed: int, nodes: int = NODES, width: int = WIDTH) -> Tensor:
    return torch.randn(nodes, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def taken(sums: Tensor) -> Tensor:
    """Rows of the next hop: of all sums until then, as a network's opinion is."""
    return sums.reshape(len(sums), -1, WIDTH).sum(dim=1).tanh().softmax(dim=1)


def moved(one: Sums, other: Sums, x: Tensor, then: Then = taken) -> Tensor:
    """What the noise is added to, in two worlds whose outcomes are the same: the difference, [N, K·d]."""
    released = one.release(x, system_secrets, then)
    return one.clean(x, released, then) - other.clean(x, released, then)


def length(difference: Tensor) -> float:
    return float(difference.norm())


def changed(difference: Tensor) -> list[int]:
    """Rows that differ at all, of each hop."""
    return [int((each != 0).any(dim=1).sum()) for each in difference.split(WIDTH, dim=1)]


def degree(pairs: Iterable[tuple[int, int]]) -> int:
    return max((sum(node in pair for pair in pairs) for node in range(NODES)), default=0)


def limit(hops: int, **said: Any) -> float:
    """How far sums may move: of an edge, or with ``degree_bound`` of one node's edges."""
    unit = "node-edges" if "degree_bound" in said else "edge"
    return SumPrivacySettings.model_validate({"unit": unit, "epsilon_total": 1.0, "hops": hops, **said}).sensitivity


graphs = st.frozensets(st.sampled_from(PAIRS), max_size=16)
HOPS = st.integers(1, 3)
SEEDS = st.integers(0, 2**16)


@settings(max_examples=60)
@given(graphs, HOPS, SEEDS, st.lists(st.floats(0, 3), min_size=4, max_size=4))
def test_one_pair_moves_the_sums_no_further_than_derived(pairs, hops, seed, weights):
    """{0, 1} with any weights, either way and recorded twice, against any others, none among them."""
    rest = both(pairs - {(0, 1)})
    worlds = []
    for forth, back in (weights[:2], weights[2:]):
        own = torch.tensor([[0, 1], [1, 0]]).repeat(1, 2)
        weight = torch.cat([torch.ones(rest.shape[1]), torch.tensor([forth, back]).repeat(2)])
        worlds.append(Sums(torch.cat([rest, own], dim=1), hops, None, weight=weight))
    difference = moved(worlds[0], worlds[1], rows_of(seed))
    assert length(difference) <= limit(hops)
    assert max(changed(difference)) <= 2


@settings(max_examples=60)
@given(graphs, HOPS, SEEDS, st.floats(0.3, 1))
def test_one_node_with_its_edges_absent(pairs, hops, seed, share):
    bound = max(1, degree(pairs))
    clip = share * bound
    fewer = frozenset(pair for pair in pairs if 0 not in pair)
    here, there = (Sums(both(each), hops, clip) for each in (pairs, fewer))
    for one, other in ((here, there), (there, here)):
        difference = moved(one, other, rows_of(seed))
        assert length(difference) <= limit(hops, degree_bound=bound, sum_clip=clip)
        assert max(changed(difference)) <= 1 + bound


@settings(max_examples=60)
@given(graphs, graphs, HOPS, SEEDS, st.floats(0.3, 1))
def test_one_node_with_its_edges_replaced(pairs, others, hops, seed, share):
    """Node 0 has the edges of another graph."""
    replaced = frozenset(p for p in pairs if 0 not in p) | frozenset(p for p in others if 0 in p)
    bound = max(1, degree(pairs), degree(replaced))
    clip = share * bound
    one, other = (Sums(both(each), hops, clip) for each in (pairs, replaced))
    most = limit(hops, degree_bound=bound, sum_clip=clip, neighbours="replacement")
    assert length(moved(one, other, rows_of(seed))) <= most


def test_rounding_is_within_the_bound_however_coarse_the_grid_is():
    """Much noise has a coarse grid, on which sums are shortened and rounded: rows are so much shorter beforehand."""
    hub, clip, width = frozenset((0, node) for node in range(1, NODES)), 2.0, 16
    most = limit(1, degree_bound=NODES - 1, sum_clip=clip)
    others = frozenset((a, b) for a, b in PAIRS if a and b)
    for sigma in (300.0, 3000.0, 20000.0):
        for seed in range(40):
            x = rows_of(seed, width=width).abs() + 1
            one, other = (Sums(both(pairs), 1, clip, sigma=sigma) for pairs in (hub | others, others))
            difference = moved(one, other, x)
            assert length(difference) <= most
            assert float(difference[1:].norm(dim=1).max()) <= 1.0


@nightly
def test_every_edge_and_node_of_every_graph_of_four_nodes_with_public_rows():
    pairs, x, clip = list(itertools.combinations(range(4), 2)), rows_of(1, 4), 1.4
    graphs_of_four = [frozenset(itertools.compress(pairs, chosen)) for chosen in itertools.product((0, 1), repeat=6)]
    edge = {graph: Sums(both(graph), 2, None, 4) for graph in graphs_of_four}
    longest = max(length(moved(edge[g], edge[g ^ {pair}], x)) for g in edge for pair in pairs)
    assert 0.999 * limit(2) < longest <= limit(2)
    node = {graph: Sums(both(graph), 2, clip, 4) for graph in graphs_of_four}
    for graph, node_of in itertools.product(graphs_of_four, range(4)):
        degrees = max(2, most_neighbours(both(graph), 4) if graph else 0)
        gone = frozenset(pair for pair in graph if node_of not in pair)
        assert length(moved(node[graph], node[gone], x)) <= limit(2, degree_bound=degrees, sum_clip=clip)
        others = frozenset(pair for pair in pairs if node_of in pair) - graph
        most = limit(2, degree_bound=3, sum_clip=clip, neighbours="replacement")
        assert length(moved(node[graph], node[gone | others], x)) <= most


def test_the_bounds_of_public_rows_are_reached():
    """A pair of two rows; a star, whose leaves lose a row each, and its centre a sum as long as sums may be."""
    leaves, clip, hops = 5, 3.0, 2
    ones = torch.ones(2 * leaves + 1, 1, dtype=torch.float64)
    signs = ones.clone()
    signs[leaves + 1 :] = -1
    star, none = both((0, leaf) for leaf in range(1, leaves + 1)), torch.empty(2, 0, dtype=torch.int64)
    other = both((0, leaf) for leaf in range(leaves + 1, 2 * leaves + 1))

    def apart(one: Tensor, two: Tensor, rows: Tensor, longest: float | None) -> float:
        here, there = (Sums(each, hops, longest, len(ones), sigma=1e-4) for each in (one, two))
        return length(moved(here, there, rows, lambda _: rows))

    assert apart(both([(0, 1)]), none, ones, None) == pytest.approx(limit(hops), rel=1e-4)
    said = {"degree_bound": leaves, "sum_clip": clip}
    assert apart(star, none, ones, clip) == pytest.approx(limit(hops, **said), rel=1e-4)
    replaced = limit(hops, **said, neighbours="replacement")
    assert apart(star, other, signs, clip) == pytest.approx(replaced, rel=1e-4)


def test_all_hops_together_cost_what_the_accountant_says():
    """Adaptive composition, played: the mean of the log likelihood ratio of two worlds is μ²/2."""
    hops, sigma, games = 3, 2.0, 200
    x, pairs = rows_of(3), frozenset({(0, 1), (1, 2), (3, 4)})
    one, other = (Sums(both(each), hops, None, sigma=sigma) for each in (pairs, pairs | {(0, 3)}))
    ratios, source = [], fixed_secrets("ratios")
    for _ in range(games):
        released = one.release(x, source, taken)
        near, far = released - one.clean(x, released, taken), released - other.clean(x, released, taken)
        ratios.append(float(far.square().sum() - near.square().sum()) / (2 * sigma**2))
    mu = limit(hops) / sigma
    found = torch.tensor(ratios)
    assert float(found.mean()) == pytest.approx(mu**2 / 2, abs=6 * mu / math.sqrt(games))
    assert float(found.std()) == pytest.approx(mu, rel=0.3)


def test_later_rows_are_made_of_earlier_sums_and_of_nothing_else():
    x, edges = rows_of(5), both([(0, 1), (1, 2), (3, 4)])
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense[edges[1], edges[0]] = 1
    rows, found = torch.nn.functional.normalize(x), []
    for _ in range(3):
        found.append(dense @ rows)
        rows = torch.nn.functional.normalize(taken(torch.cat(found, dim=1)))
    made = Sums(edges, 3, None, sigma=1e-6)
    assert torch.allclose(made.clean(x, torch.cat(found, dim=1), taken), torch.cat(found, dim=1), atol=1e-10)
    released = made.release(x, fixed_secrets("a"), taken)
    source = fixed_secrets("a")
    drawn = [Gaussian(1.0, 1e-6).draw((NODES, WIDTH), source) for _ in range(3)]
    assert torch.equal(released - made.clean(x, released, taken), torch.cat(drawn, dim=1)), "each hop has noise"


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

    def kept(of: list[tuple[int, int]]) -> Sums:
        edges = both(of)
        return Sums(edges[:, bound_degrees(edges, nodes, bound)], 1, math.sqrt(bound), nodes, sigma)

    x, sigma = rows_of(4, nodes), 4.0
    one, other = kept(pairs), kept(pairs[around:])
    difference = moved(one, other, x)
    claimed = limit(1, degree_bound=bound)
    assert changed(difference)[0] > 5 * (1 + bound)
    assert length(difference) > 2 * claimed
    assert gaussian_epsilon(length(difference) / sigma, 1e-5) > 2 * gaussian_epsilon(claimed / sigma, 1e-5)
    wins, source = 0, fixed_secrets("games")
    for _ in range(200):
        scores = [float((world.release(x, source, taken) * difference).sum()) for world in (one, other)]
        wins += scores[0] > scores[1]
    honest = 0.5 * (1 + math.erf(claimed / sigma / 2))
    assert wins / 200 > honest + 0.1, "an attack tells node 0's presence more often than the claim allows"


def test_neighbours_are_counted_once_and_in_either_direction():
    assert most_neighbours(tensor([(0, 1), (1, 0), (2, 0), (0, 0), (3, 3)]), 5) == 2
    assert most_neighbours(torch.tensor([[0, 0, 0], [1, 1, 2]]), 3) == 2, "copies are one"
    assert most_neighbours(torch.empty(2, 0, dtype=torch.int64), 3) == 0
    assert most_neighbours(torch.tensor([[1], [1]]), 3) == 0


# What is released


def test_sums_are_exact_in_any_order():
    generator = torch.Generator().manual_seed(0)
    edges = torch.unique(torch.randint(0, 200, (2, 3000), generator=generator), dim=1)
    weight = (2 * torch.rand(edges.shape[1], generator=generator)).double()
    order = torch.randperm(edges.shape[1], generator=generator)
    x = rows_of(7, 200, WIDTH)
    results = [
        Sums(edges[:, each], 2, None, 200, weight=weight[each]).release(x, fixed_secrets("c"), taken)
        for each in (torch.arange(len(order)), order)
    ]
    assert torch.equal(*results)


def test_a_weight_gives_between_nothing_and_the_row():
    """To the last bit: in whatever the noise's grid leaves of it, and as much whatever else the sum has."""
    x, weight, nothing = rows_of(10), torch.tensor([0.37, 0.37]), torch.zeros(NODES, WIDTH)
    whole = torch.ones(2)
    own, rest = torch.tensor([[1, 2], [0, 0]]), torch.tensor([[3, 4], [0, 0]])
    for sigma in (0.3, 50.0):
        cell = Gaussian(1.0, sigma).cell
        few, others, together, row_of_1, row_of_2 = (
            Sums(edges, 1, None, sigma=sigma, weight=given).clean(x, nothing, taken)[0]
            for edges, given in (
                (own, weight),
                (rest, whole),
                (torch.cat([own, rest], 1), torch.cat([weight, whole])),
                (own[:, :1], whole[:1]),
                (own[:, 1:], whole[1:]),
            )
        )
        assert torch.equal(few + others, together)
        term = few - torch.trunc(weight[0].double() * row_of_2 / cell) * cell
        assert bool((term.abs() <= row_of_1.abs()).all())
        assert bool((term * row_of_1 >= 0).all())


def test_what_a_pair_weighs_is_decided_by_no_other_edge():
    # In another order copies add up to another last bit: 0.1 + 0.2 + 0.7 is 1.0 or 0.9999999999999999. Where the order
    # hangs on what else is in the row, one edge at a hub moves the terms of half of its neighbours by a cell each.
    nodes, width = 200, 64
    source = torch.arange(1, nodes).repeat_interleave(3)
    weight = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).repeat(nodes - 1)
    mixed = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    edges, weight = torch.stack([source, torch.zeros_like(source)])[:, mixed], weight[mixed]
    rows, nothing = rows_of(0, nodes, width), torch.empty(0, dtype=torch.int64)
    made = [
        Sums(edges[:, kept], 1, None, nodes, 3.0, weight[kept])
        for gone in (1, 100, 199)
        for kept in (edges[0] != gone, edges[0] == gone)
    ]
    whole, none = Sums(edges, 1, None, nodes, 3.0, weight), Sums(edges[:, nothing], 1, None, nodes, 3.0)
    for without, alone in zip(made[::2], made[1::2], strict=True):
        assert torch.equal(moved(whole, without, rows), moved(alone, none, rows))


def test_too_little_noise_for_exact_sums_and_rows_that_are_not_finite_are_refused():
    with refused(ConfigError, key="privacy.epsilon_total"):
        Sums(both(PAIRS), 1, None, sigma=1e-9).release(rows_of(9), system_secrets, taken)
    x = rows_of(9)
    for value in (math.nan, math.inf):
        x[2, 1] = value
        with pytest.raises(RangeOverflow):
            Sums(both(PAIRS), 1, None).release(x, system_secrets, taken)
