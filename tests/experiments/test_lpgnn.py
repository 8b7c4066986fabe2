from dataclasses import replace

import pytest
import torch
from veilgraph_node_dp.settings import node_dp

from research import lpgnn_mae
from research.lpgnn_mae import DATASETS, mean_absolute_error
from research.lpgnn_table import EPSILONS, LPGNN_TABLES
from research.paper_tables import TABLES, reproduce
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.local_features import feature_mechanism
from veilgraph.privacy.settings import FeatureReleaseSettings
from veilgraph.samples.shipped import shipped_job, with_overrides

TINY = {
    "data.dataset": "synthetic",
    "release.features.low": -10.0,
    "release.features.high": 10.0,
    "model.dim": 8,
    "train.epochs": 3,
}
ENTRIES = LPGNN_TABLES["lpgnn-table"].entries


def quiet(what, done, total):
    pass


def rows(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[word.strip() for word in line.strip("|").split("|")] for line in lines]


# The table


def test_the_table_has_the_slides_figures_beside_ours(tmp_path, monkeypatch):
    plan = TABLES["lpgnn-table"]
    entries = tuple(
        replace(entry, dataset="synthetic", overrides={**entry.overrides, **TINY})
        for entry in plan.entries
        if entry.dataset == "github"
    )
    monkeypatch.setitem(TABLES, "lpgnn-table", replace(plan, entries=entries))
    text = reproduce("lpgnn-table", seeds=1, datasets=None, out=tmp_path, progress=quiet, engine="plaintext")
    head, row = rows(text)
    columns = ["GCN+RAW", *(f"LPGNN ε = {epsilon}" for epsilon in EPSILONS), "GCN+RND", "GCN+OHD"]
    assert head == ["data set", "engine", *(word for column in columns for word in (column, "paper"))]
    assert row[:2] == ["github", "federated, plaintext"]  # LPGNN is always trained by the parties
    assert row[3::2] == ["0.871", "0.841", "0.857", "0.861", "0.862", "0.743", "0.837"]
    assert "- 7 trainings, " in text


@pytest.mark.parametrize(
    ("dataset", "column", "paper"),
    [
        ("citeseer", "GCN+RND", 0.296),
        ("facebook", "GCN+RAW", 0.949),
        ("lastfm", "LPGNN ε = 2.0", 0.848),
    ],
)
def test_figures_of_the_slides_stand_in_their_places(dataset, column, paper):
    (entry,) = [entry for entry in ENTRIES if (entry.row, entry.column) == (dataset, column)]
    assert entry.paper == paper


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


@pytest.fixture
def measured(monkeypatch):
    """Every data set is the synthetic one; the list gets the mechanism of what is measured."""
    original, ran = lpgnn_mae.mean_absolute_error, []

    def counted(mechanism, graph):
        ran.append(type(mechanism).__name__)
        return original(mechanism, graph)

    monkeypatch.setattr(lpgnn_mae, "shipped_job", lambda name: with_overrides(shipped_job("cora-local"), TINY))
    monkeypatch.setattr(lpgnn_mae, "mean_absolute_error", counted)
    return ran


def errors(out, **changes):
    return reproduce("lpgnn-mae", **{"seeds": 1, "datasets": ["cora"], "out": out, "progress": quiet, **changes})


def test_errors_have_a_table_and_a_picture(tmp_path, measured):
    text = errors(tmp_path, seeds=2, datasets=["pubmed", "cora"])
    head, *lines = rows(text)
    assert head == ["data set, mechanism", "ε = 0.1", "ε = 0.5", "ε = 1.0", "ε = 2.0"]
    names = [f"{dataset}, {mechanism}" for dataset in ("cora", "pubmed") for mechanism in lpgnn_mae._MECHANISMS]
    assert [line[0] for line in lines] == names
    means = {line[0]: [float(word.split(" ± ")[0].replace(",", "")) for word in line[1:]] for line in lines}
    for dataset in ("cora", "pubmed"):
        assert means[f"{dataset}, multi-bit"][0] < means[f"{dataset}, gaussian"][0]
        for mechanism in lpgnn_mae._MECHANISMS:
            falling = means[f"{dataset}, {mechanism}"]
            assert falling == sorted(falling, reverse=True)
    assert "±" in lines[0][1]
    assert "over 2 releases" in text
    assert "`python -m research lpgnn-mae --seeds 2 --datasets pubmed,cora`" in text
    assert len(measured) == 2 * 2 * 3 * 4
    assert (tmp_path / "lpgnn-mae.md").read_text() == text
    assert (tmp_path / "lpgnn-mae.png").read_bytes().startswith(b"\x89PNG")
