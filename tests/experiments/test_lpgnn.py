from dataclasses import replace

import pytest
import torch
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.mechanisms import feature_mechanism
from veilgraph_node_dp.settings import node_dp

from research import lpgnn_mae
from research.lpgnn_mae import DATASETS, mean_absolute_error
from research.lpgnn_table import LPGNN_TABLES
from veilgraph.graph.party import PartyGraph

ENTRIES = LPGNN_TABLES["lpgnn-table"].entries


# The table


def test_every_place_is_a_job_of_its_data_set_divided_at_random():
    assert len(ENTRIES) == 6 * 7
    assert LPGNN_TABLES["lpgnn-table"].on_request == {"lastfm"}
    for entry in ENTRIES:
        job = entry.settings
        assert (job.paradigm, job.data.dataset, job.data.split) == ("node-dp", entry.dataset, (0.5, 0.25, 0.25))
        assert job.duties.releasing == ("B",)
        released = node_dp(job).release
        assert released.features is not None
        assert released.labels is None
        if entry.kind == "federated":
            assert entry.column == f"LPGNN ε = {released.features.epsilon}"
            assert released.features.mechanism == "multi-bit"
        else:
            assert node_dp(job).model.hops == 0
    for dataset in DATASETS:
        private = [entry.settings for entry in ENTRIES if entry.dataset == dataset and entry.kind == "federated"]
        assert len({(node_dp(job).model, job.train) for job in private}) == 1  # the same settings for every ε


# The errors


@pytest.fixture
def graph():
    """Nine nodes, 0 and 1 joined twice, a loop at 2, node 8 with a loop only; features in [0, 1], one sparse."""
    pairs = [(0, 1), (0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 0), (2, 2), (8, 8)]
    edges = torch.tensor(pairs + [(v, u) for u, v in pairs if u != v]).t().contiguous()
    x = torch.rand(9, 40, generator=torch.Generator().manual_seed(0))
    return PartyGraph("A", x * (x > 0.5), edges)


@pytest.mark.parametrize("mechanism", ["multi-bit", "one-bit", "gaussian"])
@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("block", [7, 256])
def test_the_error_is_that_of_a_dense_computation(graph, monkeypatch, mechanism, is_sparse, block):
    monkeypatch.setattr(lpgnn_mae, "COLUMNS", block)
    delta = {"delta": 1e-5} if mechanism == "gaussian" else {}
    built = feature_mechanism(
        FeatureReleaseSettings.model_validate({"mechanism": mechanism, "epsilon": 4.5, **delta}), 40
    )
    x = graph.features
    estimate = built.rectify(built.release(x, bytes)).double()
    adjacency = torch.zeros(9, 9, dtype=torch.float64)
    for source, target in graph.edge_index.t().tolist():
        adjacency[target, source] += source != target
    reached = adjacency.sum(1) > 0
    assert reached.tolist() == [True] * 8 + [False]
    mean = adjacency[reached] / adjacency[reached].sum(1, keepdim=True)
    expected = (mean @ estimate - mean @ x.double()).abs().mean()
    if is_sparse:
        graph = replace(graph, features=x.to_sparse_csr())
    assert mean_absolute_error(built, graph, bytes) == pytest.approx(float(expected), rel=1e-4)
