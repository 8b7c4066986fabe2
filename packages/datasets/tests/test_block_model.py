"""Block models and random splits."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from scipy.stats import norm, poisson
from veilgraph_datasets.block_model import block_model_data, weight_cutoff
from veilgraph_datasets.settings import BlockModelSettings

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.dataset import load_for_learner, load_parties, load_parts, split_randomly
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.settings import DataSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train
from veilgraph.tables.settings import SplitFractions

SMALL = {"nodes": 300, "classes": 3, "features": 12, "mean_degree": 8, "signal": 3.0}


def made(seed=0, **changes):
    return block_model_data(BlockModelSettings(**changes), seed)


def degrees(data):
    return np.bincount(data.edge_index[0].numpy(), minlength=len(data.y))


@given_settings(max_examples=25)
@given(
    nodes=st.integers(8, 400),
    classes=st.integers(2, 6),
    density=st.floats(0, 0.25),
    homophily=st.sampled_from([0.0, 0.2, 0.75, 1.0]),
    exponent=st.sampled_from([None, 2.1, 3.0, 50.0]),
    seed=st.integers(0, 2**63 - 1),
)
def test_counts_are_exact_and_edges_simple(nodes, classes, density, homophily, exponent, seed):
    classes = min(classes, nodes // 4)
    shape = {"nodes": nodes, "classes": classes, "homophily": homophily, "degree_exponent": exponent}
    densest = 0.25 / BlockModelSettings(mean_degree=1e-6, **shape).density * 1e-6
    degree = max(4 * density * densest * (1 - 1e-9), 1e-6)
    data = made(seed, features=2, mean_degree=degree, **shape)
    source, target = data.edge_index
    there, back = (set(map(tuple, edges.T.tolist())) for edges in (data.edge_index, data.edge_index.flip(0)))
    assert there == back
    assert len(there) == data.num_edges == 2 * round(nodes * degree / 2), "as many as asked, none twice"
    assert not bool((source == target).any())
    assert int((data.y[source] == data.y[target]).sum()) == 2 * round(data.num_edges / 2 * homophily)
    sizes = torch.bincount(data.y)
    assert len(sizes) == classes
    assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(data.train_mask.int() + data.val_mask + data.test_mask, torch.ones(nodes, dtype=torch.int32))
    assert (data.x.dtype, data.x.shape) == (torch.float32, (nodes, 2))


def test_the_seed_fixes_the_graph_and_the_features_do_not_change_it():
    one, again, wider, other = made(1, **SMALL), made(1, **SMALL), made(1, **SMALL | {"features": 20}), made(2, **SMALL)
    assert all(torch.equal(one[key], again[key]) for key in one.keys())  # noqa: SIM118 - not a mapping
    assert torch.equal(one.edge_index, wider.edge_index)
    assert torch.equal(one.y, wider.y)
    assert not any(torch.equal(one[key], other[key]) for key in one.keys())  # noqa: SIM118


def quantile_weights(count, exponent, cutoff):
    """Quantiles of a power law on [1, cutoff], at the middle of ``count`` even shares."""
    share = (np.arange(count) + 0.5) / count
    return (1 - share * (1 - cutoff ** (1 - exponent))) ** (1 / (1 - exponent))


@pytest.mark.parametrize("exponent", [2.1, 2.5, 4.0])
def test_degrees_follow_the_power_law(exponent):
    settings = BlockModelSettings(nodes=40_000, classes=4, features=1, mean_degree=20, degree_exponent=exponent)
    cutoff = weight_cutoff(settings)
    weights = quantile_weights(10_000, exponent, cutoff)  # of a block
    assert cutoff / weights.mean() == pytest.approx(settings.density**-0.5, rel=0.01), (
        "no two expect more than one edge"
    )
    expected = 20 * weights / weights.mean()
    found = degrees(block_model_data(settings, 0))
    for degree in (5, 10, 20, 40, 80, 160):
        share = poisson.sf(degree - 1, expected).mean()
        assert (found >= degree).mean() == pytest.approx(share, abs=4 * (share / 40_000) ** 0.5 + 0.02 * share)
    assert 0.8 < found.max() / expected[-1] < 1.3
    assert found.var() == pytest.approx(expected.var() + 20, rel=0.1)


def test_edges_are_even_over_nodes_and_blocks_where_nothing_else_is_said():
    data = made(nodes=20_000, classes=5, features=1, mean_degree=20, homophily=0.6, degree_exponent=None)
    found = degrees(data)
    assert found.var() == pytest.approx(20, rel=0.05)
    assert found.max() < 20 + 7 * 20**0.5
    counts = torch.zeros(5, 5).index_put_(tuple(data.y[data.edge_index]), torch.ones(()), accumulate=True)
    inside = torch.eye(5, dtype=torch.bool)
    for cells, share in ((counts[inside], 0.6 / 5), (counts[~inside], 0.4 / 20)):
        assert cells / data.num_edges == pytest.approx(share, rel=5 / (share * data.num_edges / 2) ** 0.5)


def accuracy_by_features(signal):
    data = made(nodes=30_000, classes=4, features=128, mean_degree=1, signal=signal)
    means = torch.stack([data.x[data.train_mask & (data.y == label)].mean(0) for label in range(4)])
    guess = torch.cdist(data.x[data.test_mask], means).argmin(1)
    return float((guess == data.y[data.test_mask]).float().mean())


@pytest.mark.parametrize("signal", [0.0, 1.0, 2.0, 4.0])
def test_the_nearest_mean_is_right_as_often_as_the_signal_says(signal):
    noise = np.linspace(-8, 8, 4001)  # the true class wins against three others of independent noise
    expected = np.trapezoid(norm.pdf(noise) * norm.cdf(noise + signal) ** 3, noise)
    assert accuracy_by_features(signal) == pytest.approx(expected, abs=0.03)


# Jobs


def test_every_paradigm_divides_the_graph():
    settings = DataSettings(dataset="block-model", block_model=BlockModelSettings(**SMALL), holders=3)
    whole = made(4, **SMALL)
    vertical = load_parties(settings, 4)
    assert [party.num_features for party in vertical] == [4, 4, 4]
    assert sum(party.num_edges for party in vertical) == whole.num_edges
    assert sum(part.graph.num_edges for part in load_parts(settings, 4)) == whole.num_edges
    assert torch.equal(load_for_learner(settings, "A", 4)[0].edge_index, whole.edge_index)


def test_a_federated_job_learns_it(tmp_path):
    job = {
        "data": {"dataset": "block-model", "block_model": SMALL},
        "model": {"dim": 8},
        "train": {"epochs": 15, "learning_rate": 0.05},
    }
    assert train(parse_job(job), tmp_path / "run").summary["test_accuracy"] > 0.7


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"block_model": {}, "dataset": "digits"}, {"key": "data"}),
        ({"block_model": SMALL, "dataset": "cora"}, {"key": "data"}),
        ({"block_model": {}, "dataset": "block-model", "holders": ["a", "b"]}, {"key": "data"}),
        ({"block_model": {"size": 3}}, {"key": "data.block_model.size", "value": 3}),
        ({"block_model": {"homophily": 1.2}}, {"key": "data.block_model.homophily", "value": 1.2}),
        ({"block_model": {"degree_exponent": 2}}, {"key": "data.block_model.degree_exponent", "value": 2}),
        ({"block_model": {"signal": float("nan")}}, {"key": "data.block_model.signal"}),
        ({"block_model": {"nodes": 31}}, {"key": "classes", "value": 8}),
        ({"block_model": {"nodes": 100, "mean_degree": 20}}, {"key": "mean_degree", "value": 20}),
    ],
)
def test_what_is_refused(data, problem):
    with refused(ConfigError, **problem) as refusal:
        parse_job({"data": {"dataset": "block-model"} | data})
    assert "\n" not in str(refusal.value)


HALF = SplitFractions(train=0.5, val=0.25, test=0.25, seed=0)
GRAPH = PartyGraph.from_data("a", synthetic_data(seed=1))


def test_a_split_needs_labels_and_nodes_for_every_mask():
    bare = replace(GRAPH, labels=None, train_mask=None, val_mask=None, test_mask=None, num_classes=None)
    with refused(DataError, key="labels", party="a"):
        split_randomly(bare, HALF)
    other = split_randomly(replace(GRAPH, party="b"), HALF)
    assert not torch.equal(torch.as_tensor(other.val_mask), torch.as_tensor(split_randomly(GRAPH, HALF).val_mask))
    with refused(DataError, key="val_mask", party="a"):
        split_randomly(GRAPH, SplitFractions(train=0.6, val=1e-6, test=0.25))
