import pytest
import torch
from veilgraph_testing.combine import CombineConformance
from veilgraph_testing.graphs import check_part

from tests.errors import refused
from tests.nn.graphs import dense, random_adjacency
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.nn.combine import COMBINES, CombineSettings, build_combine, combine_settings
from veilgraph.nn.local.build import build_local, local_settings
from veilgraph.nn.propagate import Adjacency

HOLDERS = 3


class TestMean(CombineConformance):
    name = "mean"


class TestConcat(CombineConformance):
    name = "concat"


class TestRegression(CombineConformance):
    name = "regression"


class TestDegreeWeighted(CombineConformance):
    name = "degree-weighted"


def test_every_strategy_is_held_to_the_suite():
    assert {each.name for each in CombineConformance.__subclasses__()} == set(COMBINES.own)


def test_a_strategy_that_takes_what_is_no_setting_does_not_pass():
    def read(said):
        return combine_settings({key: value for key, value in said.items() if key != "no_such_setting"})

    with pytest.raises(AssertionError):
        check_part(COMBINES, "mean", read, {"strategy": "mean"})


@pytest.fixture
def parts():
    """Each holder's embedding and adjacency."""
    return [
        (
            torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)),
            random_adjacency(seed=seed),
        )
        for seed in range(HOLDERS)
    ]


def contributions(combine, parts):
    return [combine.holder_part(4, HOLDERS, adjacency)(t) for t, adjacency in parts]


def weight_sum(combine, adjacencies, holders):
    return torch.stack([combine.holder_weight(holders, adjacency) for adjacency in adjacencies]).sum(0)


def weight_total(combine, parts):
    return weight_sum(combine, [adjacency for _, adjacency in parts], HOLDERS) if combine.needs_weight else None


def expected(strategy, parts):
    embeddings = torch.stack([t for t, _ in parts])
    if strategy in ("mean", "regression"):  # regression starts at 1/P
        return embeddings.mean(0)
    if strategy == "concat":
        return torch.cat(list(embeddings), dim=1)
    weights = torch.stack([dense(adjacency).sum(1, keepdim=True) + 1 / HOLDERS for _, adjacency in parts])
    return (weights * embeddings).sum(0) / weights.sum(0)


@pytest.mark.parametrize("strategy", sorted(COMBINES.own))
def test_formulas(strategy, parts):
    combine = build_combine(CombineSettings(strategy=strategy))
    pieces, weights = contributions(combine, parts), weight_total(combine, parts)
    merged = combine.merge(pieces, weights)
    torch.testing.assert_close(merged, expected(strategy, parts))


def test_only_regression_learns(parts):
    for strategy in COMBINES:
        part = build_combine(CombineSettings(strategy=strategy)).holder_part(4, HOLDERS, parts[0][1])
        shapes = [tuple(parameter.shape) for parameter in part.parameters()]
        assert shapes == ([(4,)] if strategy == "regression" else [])


def test_regression_with_other_weights(parts):
    combine = build_combine(CombineSettings(strategy="regression"))
    part = combine.holder_part(4, HOLDERS, parts[0][1])
    omega = torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64)
    part.omega.data = omega
    torch.testing.assert_close(part(parts[0][0]), omega * parts[0][0])


def test_degree_weights_are_needed(parts):
    with refused(ConfigError, key="combine.strategy", value="degree-weighted"):
        build_combine(CombineSettings(strategy="degree-weighted")).merge([parts[0][0]])


@pytest.mark.parametrize("holders", [2, 4])
def test_degree_weighted_appnp_over_a_split_graph_is_the_pooled_one(holders):
    """With one hop a round, splitting the edges loses nothing (docs/explanation/protocol.md)."""
    edges = random_adjacency(30, 120).edge_index
    owner = torch.randint(0, holders, (120,), generator=torch.Generator().manual_seed(7))
    split = [Adjacency.of_edges(edges[:, owner == i], None, 30, torch.float64) for i in range(holders)]
    whole = Adjacency.of_edges(edges, None, 30, torch.float64)
    combine = build_combine(CombineSettings(strategy="degree-weighted"))

    def model(parties, hops):
        return build_local(
            local_settings({"model": "appnp", "hops": hops}),
            4,
            parties,
            last_round=False,
            streams=LearningStreams(0, "A"),
            round=0,
            dtype=torch.float64,
        )

    h0 = torch.randn(30, 4, dtype=torch.float64)
    h = h0
    total = weight_sum(combine, split, holders)
    for _ in range(5):
        pieces = [
            combine.holder_part(4, holders, adjacency)(model(holders, 1)(h, h0, adjacency, None)) for adjacency in split
        ]
        h = combine.merge(pieces, total)
    torch.testing.assert_close(h, model(1, 5)(h0, h0, whole, None), rtol=1e-12, atol=1e-12)
