"""A job beside its alternatives: each is what it says, on the same test nodes, in however many sessions."""

import json
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch_geometric.data import Data

from tests import nightly
from tests.cli.commands import one_error, veilgraph
from tests.errors import refused
from veilgraph.comparison import plain
from veilgraph.comparison import study as studies
from veilgraph.comparison import ways as every_way
from veilgraph.comparison.figures import Scored, estimates, figures
from veilgraph.comparison.plain import PLAIN, boosting
from veilgraph.comparison.study import Numbers, Study, compare_job
from veilgraph.comparison.ways import nodes_of_test, ways
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.graph.pooling import POOLED, holder_alone, pool
from veilgraph.graph.rules import Relation
from veilgraph.paradigms.sealed.inputs import own_data
from veilgraph.paradigms.sealed.program import logits_of
from veilgraph.paradigms.sealed.settings import sealed
from veilgraph.paradigms.sealed.stacking import fit_stacking
from veilgraph.paradigms.sealed.twin import chosen_twin, train_plain, trained_twin
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job, read_job
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.report.comparison import row_words
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.results import compare
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors
from veilgraph.samples.shipped import with_overrides


def small(**changes: Any) -> JobSettings:
    said = {"name": "small", "data": {"dataset": "synthetic"}, "model": {"dim": 4}, "train": {"epochs": 3}}
    return parse_job({**said, **changes})


def small_sealed(**train_settings: Any) -> JobSettings:
    return small(
        paradigm="sealed",
        model={"network": "linear", "blocks": ["own", "pooled.1"]},
        train={"epochs": 3, **train_settings},
    )


def inputs_of(job: JobSettings) -> Inputs:
    return paradigm_of(job).data.load(job)


@pytest.fixture(scope="module", autouse=True)
def few_trees_and_epochs() -> Iterator[None]:
    """Train few trees and few epochs of the other paradigm. No test here depends on how well either learns."""
    beside_job = every_way.beside_job

    def short(job: JobSettings) -> JobSettings | None:
        beside = beside_job(job)
        return None if beside is None else with_overrides(beside, {"train.epochs": 2})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "TREES", 8)
        patch.setattr(every_way, "beside_job", short)
        yield


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("found") / "study"


@pytest.fixture(scope="module")
def found(where: Path) -> Study:
    return compare_job(small(), where, seeds=2)


def values(study: Study) -> dict[str, dict[str, float]]:
    return {line.name: known(line.figures) for line in study.ways}


def known(figures: Numbers | None) -> dict[str, float]:
    assert figures is not None
    return {name: one.value for name, one in figures.items() if one.value is not None}


# Ways


def test_the_other_paradigm_takes_links_as_they_are() -> None:
    """A sealed job says beforehand whether links have weights and directions; a vertical one need not."""
    inputs = inputs_of(small())
    first, *others = inputs.graphs
    weights = torch.rand(first.num_edges) + 0.5
    one_way = first.edge_index[0] < first.edge_index[1]
    weighted = replace(first, edge_index=first.edge_index[:, one_way], edge_weight=weights[one_way])
    for graph in (first, weighted):
        way = ways(Inputs(inputs.settings, [graph, *others]))["sealed"].way
        assert isinstance(way, partial)
        job = sealed(way.args[0])
        assert (job.model.edge_weights, job.model.directed) == (graph is weighted, graph is weighted)
        assert own_data(job, graph).edges.shape == graph.edge_index.shape


def test_a_comparison_releases_nothing_and_asks_for_no_ledger(caplog: pytest.LogCaptureFixture) -> None:
    job = small(label_privacy={"epsilon": 1.0}, data={"holders": ["A", "B"], "label_holder": "A"})
    with caplog.at_level("WARNING", "veilgraph"):
        ways(Inputs(job, inputs_of(small()).graphs))["vertical"].way(lambda _records: None)
    assert not [each.message for each in caplog.records if "ledger" in each.message]


def test_rows_are_told_as_soon_as_they_are_known(found: Study, where: Path) -> None:
    told: list[str] = []
    again = compare_job(small(), where, seeds=2, row=lambda name, figures: told.append(row_words(name, figures)))
    assert [line.partition(": AUC ")[0] for line in told] == [
        f"seed {seed}: {line.name}" for seed in again.seeds for line in again.ways
    ]
    assert re.match(r"seed 0: A alone: AUC 0\.\d{3}, ", told[0])


def test_there_is_every_way(found: Study) -> None:
    own = ["A alone", "A: logistic", "A: boosting"]
    pooled = ["pooled", "pooled: network", "pooled: logistic", "pooled: boosting"]
    without = ["pooled − all links", "pooled − B's columns", "pooled − B's links"]
    assert [line.name for line in found.ways] == [
        *own,
        "vertical",
        "sealed",
        *pooled,
        *without,
        "B alone, lent labels",
    ]
    assert found.ways[0].gain is None
    assert all(line.gain is not None for line in found.ways[1:])


def test_the_job_and_its_baselines_are_those_of_a_run(found: Study, tmp_path: Path) -> None:
    accuracy = dict[str, list[float]]()
    for seed in (0, 1):
        run = train(small(seed=seed), tmp_path / str(seed)).path
        for name, summary in compare(RunDirectory.open(run)).summaries().items():
            accuracy.setdefault(name, []).append(summary["test_auc"])
    told = values(found)
    names = {
        "A alone": "A alone",
        "B alone": "B alone, lent labels",
        "federated": "vertical",
        "pooled": "pooled: network",
    }
    for name, way in names.items():
        assert told[way]["auc"] == pytest.approx(np.mean(accuracy[name]), abs=1e-6), way


def validated(likely: np.ndarray, graph: PartyGraph) -> float:
    assert graph.labels is not None
    assert graph.val_mask is not None
    val = graph.val_mask.numpy()
    return figures(Scored(graph.labels.numpy()[val], likely[val]), 1.0)["auc"]


def test_pooled_is_the_best_that_one_place_can_do() -> None:
    """Whatever a union of links drowns: every holder's links are a relation, and validation nodes choose."""
    labelled, generator = signalled(), torch.Generator().manual_seed(1)
    noise = torch.randint(labelled.num_nodes, (2, 20 * labelled.num_nodes), generator=generator)
    graphs = [labelled, PartyGraph("B", torch.zeros(labelled.num_nodes, 1), noise[:, noise[0] != noise[1]])]
    job = with_overrides(small(), {"train.epochs": 1, "train.patience": None})
    assert labelled.labels is not None
    assert labelled.test_mask is not None
    test, labels = labelled.test_mask.numpy(), labelled.labels.numpy()

    def auc(likely: np.ndarray) -> float:
        return figures(Scored(labels[test], likely[test]), 1.0)["auc"]

    kinds = ways(Inputs(job, graphs))
    names = ("network", "logistic", "boosting")
    found = {name: kinds[f"pooled: {name}"].way(lambda _: None) for name in names}
    best = max(names, key=lambda name: validated(found[name], labelled))
    assert best != "network"
    assert np.array_equal(kinds["pooled"].way(lambda _: None), found[best])
    assert auc(found[best]) > 0.95
    assert auc(found["network"]) < 0.8
    assert auc(boosting(pool(graphs, "A"), 0, balanced=False)) < 0.8  # as it was, on the union


def test_without_a_part_it_is_as_if_that_were_not_there() -> None:
    job = small()
    inputs = inputs_of(job)
    kinds = ways(inputs)
    (a, b), names = inputs.graphs, ("network", "logistic", "boosting")
    whole = {name: kinds[f"pooled: {name}"].way for name in names}
    better = max(whole, key=lambda name: validated(whole[name](lambda _: None), inputs.graphs[0]))
    bare = PartyGraph("B", torch.zeros(b.num_nodes, 1), b.edge_index, b.edge_weight)
    unlinked = PartyGraph("B", b.features, torch.zeros(2, 0, dtype=torch.int64))
    lone = replace(a, edge_index=torch.zeros(2, 0, dtype=torch.int64), edge_weight=None)
    for name, left in (
        ("B's columns", [a, bare]),
        ("B's links", [a, unlinked]),
        ("all links", [lone, unlinked]),
    ):
        result = paradigm_of(job).baselines.pooled(Inputs(job, left), lambda records: None)
        network = result.output.softmax(dim=1).double().numpy()
        apart = pool(left, "A", relational=True)
        plain = {name: model(apart, job.seed, balanced=False) for name, model in PLAIN.items()}
        expected = {"network": network, **plain}[better]  # the same learner, with and without
        assert np.allclose(kinds[f"pooled − {name}"].way(lambda records: None), expected)


def test_a_sealed_way_trains_the_network_of_its_own_job() -> None:
    """Which trials there are hangs on how columns are scaled, which they are before a comparison begins."""
    train_settings = {"epochs": 8, "evaluate_every": 4}
    data = {"dataset": "synthetic", "feature_scaling": "standard"}
    job = small(paradigm="sealed", data=data, model={}, train=train_settings, output="margins")
    inputs = inputs_of(job)
    twin = chosen_twin(sealed(job), inputs.graphs).predict()
    assert twin is not None
    own = inputs.graphs[0].common_part()
    logits = logits_of(twin).double()
    stacked = fit_stacking(logits, own, Objective(own, job.train, torch.float64).weights).logits(logits, own)
    found = ways(inputs)["sealed"].way(lambda records: None)
    np.testing.assert_allclose(found, stacked.softmax(1).numpy(), atol=1e-3)


def test_a_sealed_job_is_compared_with_its_twin_on_one_graph() -> None:
    job = sealed(small_sealed(select_by="last"))
    inputs = inputs_of(job)
    everything = pool(inputs.graphs, "A")
    result = paradigm_of(job).baselines.pooled(inputs, lambda records: None)
    like = job.model_copy(
        update={
            "output": "margins",
            "data": job.data.model_copy(update={"holders": ("pooled",), "label_holder": None}),
        }
    )
    likely = trained_twin(like, [everything]).predict()
    assert likely is not None
    logits = logits_of(likely)
    assert torch.equal(result.output, fit_stacking(logits, everything).logits(logits, everything))
    assert result.summary["best_epoch"] == 3
    alone = paradigm_of(job).baselines.alone(inputs, "B", lambda records: None)
    assert alone is not None
    assert torch.equal(
        alone.output, train_plain(job, holder_alone(inputs.graphs, "B", "A"), lambda records: None).output
    )


def signalled(nodes: int = 400) -> PartyGraph:
    """Of column 0 nothing is known but by neighbours: a node's class is the sign of its neighbour's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 3, generator=generator)
    partner = torch.arange(nodes) ^ 1
    labels = (x[partner, 0] > 0).long()
    place = torch.arange(nodes) // 2 % 4
    edges = torch.stack([partner, torch.arange(nodes)])
    return PartyGraph("A", x, edges, None, labels, place < 2, place == 2, place == 3, num_classes=2)


def auc_of_test(graph: PartyGraph, likely: np.ndarray) -> float:
    assert graph.test_mask is not None
    assert graph.labels is not None
    test = graph.test_mask.numpy()
    return figures(Scored(graph.labels.numpy()[test], likely[test]), 0.05)["auc"]


@pytest.mark.parametrize("model", PLAIN)
def test_plain_models_see_neighbours(model: str) -> None:
    graph = signalled()
    assert auc_of_test(graph, PLAIN[model](graph, 0, balanced=False)) > 0.95
    alone = graph.with_edges(torch.empty(0, dtype=torch.int64))
    assert auc_of_test(graph, PLAIN[model](alone, 0, balanced=False)) < 0.65


def test_a_regression_leaves_neighbours_out_that_do_not_help() -> None:
    """Eight hundred columns of noise around forty training nodes."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(400, 400, generator=generator)
    labels = (x[:, 0] + x[:, 1] > 0).long()
    x[:, :2] *= 3
    split = torch.arange(400) % 10
    edges = torch.randint(400, (2, 4000), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    graph = PartyGraph("A", x, edges, None, labels, split == 0, split < 5, split > 4, num_classes=2)
    graph = replace(graph, val_mask=(split > 0) & (split < 5))
    alone = graph.with_edges(torch.empty(0, dtype=torch.int64))
    found, without = (PLAIN["logistic"](each, 0, balanced=False) for each in (graph, alone))
    assert np.array_equal(found, without)


def test_a_regression_sees_two_and_four_hops_and_each_relation() -> None:
    """On a ring of 400 the class hangs on a node two or four away against its direction, among edges of noise."""
    nodes, generator = 400, torch.Generator().manual_seed(3)
    x = torch.randn(nodes, 2, generator=generator)
    ring = torch.stack([torch.arange(nodes).roll(1), torch.arange(nodes)])
    noise = torch.randint(nodes, (2, 8000), generator=generator)
    noise = noise[:, noise[0] != noise[1]]
    place = torch.arange(nodes) // 8 % 4
    for hops in (2, 4):
        labels = (x.roll(-hops, 0)[:, 0] > 0).long()  # out of a node, which is told apart from into it
        graph = PartyGraph("A", x, ring, None, labels, place < 2, place == 2, place == 3, num_classes=2)
        apart = replace(
            graph,
            edge_index=torch.cat([ring, noise], 1),
            edge_relation=torch.cat([torch.zeros(nodes), torch.ones(noise.shape[1])]).to(torch.int16),
            relations=(Relation("ring"), Relation("noise")),
        )
        for each in (graph, apart):
            assert auc_of_test(each, PLAIN["logistic"](each, 0, balanced=False)) > 0.9


def test_a_regression_sees_hops_that_change_between_relations() -> None:
    """On a ring of links of two kinds by turns, two hops of either kind are never there."""
    nodes, generator = 400, torch.Generator().manual_seed(6)
    x = torch.randn(nodes, 2, generator=generator)
    ring = torch.stack([torch.arange(nodes).roll(1), torch.arange(nodes)])
    place = torch.arange(nodes) // 8 % 4
    labels = (x.roll(2, 0)[:, 0] > 0).long()
    graph = PartyGraph("A", x, ring, None, labels, place < 2, place == 2, place == 3, num_classes=2)
    kinds = (torch.arange(nodes) % 2).to(torch.int16)
    graph = replace(graph, edge_relation=kinds, relations=(Relation("even"), Relation("odd")))
    assert auc_of_test(graph, PLAIN["logistic"](graph, 0, balanced=False)) > 0.9


def test_columns_of_words_are_scaled_together_whatever_they_are_counted_in() -> None:
    generator = torch.Generator().manual_seed(7)
    words = (torch.rand(300, 40, generator=generator) < 0.1).float()
    labels, place = (words[:, :5].sum(1) > 0).long(), torch.arange(300) % 4
    links = torch.randint(300, (2, 900), generator=generator)
    links = links[:, links[0] != links[1]]
    found = []
    for many in (1.0, 1000.0):
        graph = PartyGraph("A", (many * words).to_sparse_csr(), links, None, labels, place < 2, place == 2, place == 3)
        found.append(PLAIN["logistic"](replace(graph, num_classes=2), 0, balanced=False))
    assert np.allclose(found[0], found[1], atol=1e-3)


def test_a_penalty_is_chosen_as_classes_weigh_in_training() -> None:
    """Of a rare class the loss on validation nodes chooses another penalty where all nodes count alike."""
    generator = torch.Generator().manual_seed(1)
    x, place = torch.randn(400, 30, generator=generator), torch.arange(400) % 4
    labels = (x[:, 0] + 1.5 * torch.randn(400, generator=generator) > 2.6).long()
    nobody = torch.empty((2, 0), dtype=torch.int64)
    graph = PartyGraph("A", x, nobody, None, labels, place < 2, place == 2, place == 3, num_classes=2)
    train, val = (place < 2).numpy(), (place == 2).numpy()
    y, rows = labels.numpy(), x.double().numpy()
    tried = []
    for strength in (0.003, 0.03, 0.3):
        model = LogisticRegression(C=strength, max_iter=1000, class_weight="balanced")
        tried.append(make_pipeline(StandardScaler(), model).fit(rows[train], y[train]).predict_proba(rows))
    rare = np.where(y[val] == 1, (y[val] == 0).sum() / (y[val] == 1).sum(), 1.0)
    alike, weighted = (
        min(range(3), key=lambda at: log_loss(y[val], tried[at][val], sample_weight=each)) for each in (None, rare)
    )
    assert alike != weighted, "or this says nothing"
    assert np.allclose(PLAIN["logistic"](graph, 0, balanced=True), tried[weighted], atol=1e-4)


def test_of_a_bank_alone_links_across_are_told_apart(tmp_path: Path) -> None:
    """Every account has two links, and the class is whether one is with the other bank."""
    nodes, draw = 400, torch.Generator().manual_seed(8)
    bank, number = torch.arange(nodes) % 2, torch.arange(nodes)
    crosses = (number // 2 % 100 < 50)[:, None].expand(-1, 1).ravel()
    own = torch.stack([(number + 2) % nodes, number])
    other = torch.where(crosses, number ^ 1, (number + 4) % nodes)
    edges = torch.cat([own, torch.stack([other, number])], 1)
    place = number // 2 % 4
    whole = Data(x=torch.randn(nodes, 2, generator=draw), edge_index=edges, y=crosses.long())
    whole.train_mask, whole.val_mask, whole.test_mask = place < 2, place == 2, place == 3
    found = split_at_home(PartyGraph.from_data(POOLED, whole), "AB", bank)
    job = parse_job({"paradigm": "union", "data": {"dataset": "synthetic", "holders": 2}, "train": {"epochs": 1}})
    graphs, ids = [graph for graph, _ in found], {graph.party: ids for graph, ids in found}
    inputs = paradigm_of(job).data.accept(job, graphs, ids)
    kinds, (labels, rows) = ways(inputs), nodes_of_test(inputs)
    likely = kinds["each holder: logistic"].way(lambda _: None)[rows]
    assert figures(Scored(labels.numpy(), likely), 1.0)["auc"] > 0.95


def test_banks_are_judged_beside_plain_models_of_all_their_edges(tmp_path: Path) -> None:
    """Of a bank's own a counterparty's columns are unknown, and how many there are is not."""
    nodes, generator = 400, torch.Generator().manual_seed(4)
    x = torch.randn(nodes, 2, generator=generator)
    partner = torch.arange(nodes) ^ 1
    place, bank = torch.arange(nodes) // 2 % 4, torch.arange(nodes) % 2  # every partner is at the other bank
    whole = Data(x=x, edge_index=torch.stack([partner, torch.arange(nodes)]), y=(x[partner, 0] > 0).long())
    whole.train_mask, whole.val_mask, whole.test_mask = place < 2, place == 2, place == 3
    found = split_at_home(PartyGraph.from_data(POOLED, whole), "AB", bank)
    job = parse_job({"paradigm": "union", "data": {"dataset": "synthetic", "holders": 2}, "train": {"epochs": 1}})
    graphs, ids = [graph for graph, _ in found], {graph.party: ids for graph, ids in found}
    inputs = paradigm_of(job).data.accept(job, graphs, ids)
    kinds, (labels, rows) = ways(inputs), nodes_of_test(inputs)

    def auc(name: str) -> float:
        likely = kinds[name].way(lambda _: None)[rows]
        return figures(Scored(labels.numpy(), likely), 1.0)["auc"]

    for name in PLAIN:
        assert auc(f"pooled: {name}") > 0.95
        assert auc(f"each holder: {name}") < 0.7
    assert auc("pooled") > 0.95
    assert auc("pooled − edges across") < 0.7


# Settings for the label holder alone


def test_alone_with_settings_of_its_own_is_beside_alone_with_the_jobs(tmp_path: Path) -> None:
    said = small(train={"epochs": 4, "patience": None}, model={"dim": 4, "server": {"layers": 0}})
    own = with_overrides(said, {"model.dim": 8, "seed": 77})
    study = compare_job(said, tmp_path / "study", alone=own)
    assert list(values(study)).index("A alone, own settings") < list(values(study)).index("vertical")
    inputs = inputs_of(with_overrides(own, {"seed": said.seed}))
    mine = paradigm_of(own).baselines.alone(inputs, "A", lambda records: None)
    assert mine is not None
    mask = inputs.graphs[0].common_part().test_mask
    assert mask is not None
    kept, _ = load_tensors(tmp_path / "study" / f"seed-{said.seed}.safetensors")
    assert torch.allclose(kept["A alone, own settings"], mine.output.double().softmax(dim=1)[mask])
    assert not torch.allclose(kept["A alone"], kept["A alone, own settings"])
    with refused(RunError, key="out"):
        compare_job(said, tmp_path / "study", alone=with_overrides(own, {"model.dim": 16}))
    with refused(ConfigError, key="alone", value="small"):
        compare_job(said, tmp_path / "other", alone=with_overrides(own, {"data.holders": 3}))
    assert not (tmp_path / "other").exists()


# Figures


def test_intervals_hold_what_they_say_and_differences_are_paired() -> None:
    """Of 40 worlds about 38 intervals hold the truth; a way is no better than itself, its copy with noise hardly."""
    generator, held = np.random.default_rng(1), 0
    for _ in range(40):
        labels = (generator.random(150) < 0.3).astype(np.int64)
        score = generator.normal(labels * 1.0, 1)
        likely = 1 / (1 + np.exp(-score))
        auc = estimates([Scored(labels, np.stack([1 - likely, likely], axis=1))], 0.1)["auc"]
        held += auc.low <= 0.7602 <= auc.high  # Φ(1/√2)
    assert 32 <= held <= 40
    slightly = 1 / (1 + np.exp(-(score + generator.normal(0, 0.01, len(score)))))
    other = estimates([Scored(labels, np.stack([1 - slightly, slightly], axis=1))], 0.1)["auc"]
    assert other.above(other).high == 0
    gain = other.above(auc)
    assert gain.high - gain.low < (auc.high - auc.low) / 5


@pytest.mark.parametrize("classes", [2, 4])
def test_figures_are_scikit_learns(classes: int) -> None:
    generator = np.random.default_rng(2)
    labels, likely = generator.integers(0, classes, 200), generator.random((200, classes)).round(1) + 0.05
    likely /= likely.sum(axis=1, keepdims=True)  # many have the same
    told, predicted = figures(Scored(labels, likely), 0.1), likely.argmax(axis=1)
    assert told["f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    if classes == 2:
        assert told["auc"] == pytest.approx(roc_auc_score(labels, likely[:, 1]))
        assert told["pr_auc"] == pytest.approx(average_precision_score(labels, likely[:, 1]))
    else:
        assert told["auc"] == pytest.approx(roc_auc_score(labels, likely, multi_class="ovr"))
        assert told["accuracy"] == pytest.approx((predicted == labels).mean())


def test_differences_are_to_the_job_and_to_the_label_holder_alone(found: Study) -> None:
    judged, alone = found.way("vertical"), found.ways[0]
    assert judged is not None
    assert (judged.to_job, alone.gain) == (None, None)
    for line in found.ways:
        for other, differences in ((judged, line.to_job), (alone, line.gain)):
            if line is not other:
                less = known(other.figures)
                wanted = {name: value - less[name] for name, value in known(line.figures).items()}
                assert known(differences) == pytest.approx(wanted, abs=3e-6)


# Sessions


def test_what_was_trained_is_not_trained_again(found: Study, where: Path) -> None:
    before = (where / studies.FOUND).read_bytes()

    asked = list[str]()

    def never(name: str, epochs: int) -> Any:
        asked.append(name)
        raise KeyboardInterrupt

    assert values(compare_job(small(), where, seeds=2, stage=never)) == values(found)
    assert (where / studies.FOUND).read_bytes() == before
    with pytest.raises(KeyboardInterrupt):
        compare_job(small(), where, seeds=3, stage=never)
    assert asked == ["seed 2: A alone (1 of 13)"]
    told = json.loads(before)
    assert told["seeds"] == [0, 1]
    assert told["ways"][3]["figures"]["auc"]["value"] == pytest.approx(values(found)["vertical"]["auc"], abs=1e-6)


@pytest.mark.usefixtures("found")
def test_another_job_or_other_files_are_refused(where: Path, tmp_path: Path) -> None:
    with refused(RunError, key="out"):
        compare_job(small(seed=5), where)
    (tmp_path / "mine.txt").touch()
    with refused(RunError, key="out"):
        compare_job(small(), tmp_path)
    of_before = tmp_path / "before"  # whose "pooled" was another
    of_before.mkdir()
    told = json.loads((where / studies.ABOUT).read_text())
    (of_before / studies.ABOUT).write_text(json.dumps({"job": told["job"], "party": told["party"]}, sort_keys=True))
    with refused(RunError, key="out"):
        compare_job(small(), of_before, seeds=2)


def compare_first_way(job: JobSettings, out: Path, party: Path | None = None) -> list[str]:
    """Train the first way alone, as if the comparison were then cut off, and tell what was shown."""
    shown = list[str]()

    def only_first(name: str, epochs: int) -> Any:
        shown.append(name)
        if "(1 of" not in name:
            raise KeyboardInterrupt
        return nullcontext(lambda records: None)

    with pytest.raises(KeyboardInterrupt):
        compare_job(job, out, party=party, stage=only_first)
    return shown


def test_saved_graphs_that_have_changed_are_refused_though_the_test_labels_have_not(tmp_path: Path) -> None:
    a, b = inputs_of(small()).graphs
    paths = {graph.party: tmp_path / f"{graph.party}.safetensors" for graph in (a, b)}
    job, out = small(data={"graphs": {name: str(path) for name, path in paths.items()}}), tmp_path / "study"
    for graph in (a, b):
        save_party(graph, paths[graph.party])
    assert len(compare_first_way(job, out)) == 2
    assert len(compare_first_way(job, out)) == 1  # the same data: the first way is kept
    assert a.train_mask is not None
    no_column = torch.zeros(b.num_nodes, 1)
    for changed in (
        replace(b, features=b.features + 1),
        replace(b, features=torch.cat([b.features, no_column], dim=1)),
        replace(b, edge_index=b.edge_index[:, 2:]),
        replace(b, edge_weight=torch.full((b.num_edges,), 0.5, dtype=torch.bfloat16)),
        replace(b, edge_weight=torch.full((b.num_edges,), 2.0)),
        replace(a, train_mask=a.train_mask & (torch.arange(a.num_nodes) != int(a.train_mask.nonzero()[0]))),
    ):
        save_party(changed, paths[changed.party])
        with refused(RunError, key="out", value=str(out), code="data-changed"):
            compare_job(job, out)
        save_party({"A": a, "B": b}[changed.party], paths[changed.party])
    assert len(compare_first_way(job, out)) == 1


@pytest.mark.parametrize(
    ("arguments", "key"), [({"seeds": 0}, "seeds"), ({"alarms": 0.0}, "alarms"), ({"alarms": 1.5}, "alarms")]
)
def test_bad_arguments(arguments: dict[str, Any], key: str, tmp_path: Path) -> None:
    with refused(ConfigError, key=key):
        compare_job(small(), tmp_path / "study", **arguments)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("paradigm", [pytest.param("horizontal", marks=nightly), "averaging"])
def test_own_nodes_are_judged_in_every_way_on_all_holders_test_nodes(paradigm: str, tmp_path: Path) -> None:
    data = {"dataset": "synthetic", "holders": 3, "partition": {"by": "nodes"}}
    job = small(paradigm=paradigm, data=data, train={"epochs": 2})
    study = compare_job(job, tmp_path / "study")
    inputs = inputs_of(job)
    assert study.test_nodes == (
        sum(int(graph.test_mask.sum()) for graph in inputs.graphs if graph.test_mask is not None),
    )
    found = {name: figures["accuracy"] for name, figures in values(study).items()}
    own = ["each holder alone", "each holder: logistic", "each holder: boosting"]
    beside = paradigm == "horizontal"  # what else these holders could train is tried too
    own[1:1] = ["each holder alone: averaging's network"] if beside else []
    assert list(found) == [*own, paradigm, *(["averaging"] if beside else []), "pooled"]
    assert study.at_home in own
    right = 0.0
    for graph in inputs.graphs:
        alone = paradigm_of(job).baselines.alone(inputs, graph.party, lambda _: None)
        assert alone is not None
        assert graph.test_mask is not None
        right += alone.summary["test_accuracy"] * int(graph.test_mask.sum())
    assert found["each holder alone"] == pytest.approx(right / study.test_nodes[0], abs=1e-6)
    run = train(job, tmp_path / "run")
    assert found[paradigm] == pytest.approx(run.summary["test_accuracy"], abs=1e-6)
    pooled = paradigm_of(job).baselines.pooled(inputs, lambda _: None)
    assert found["pooled"] == pytest.approx(pooled.summary["test_accuracy"], abs=1e-6)
    auc = study.ways[0].figures["auc"].known
    assert auc is not None
    assert auc[1] < auc[0] < auc[2]


@pytest.mark.parametrize(
    ("job", "arguments", "key"),
    [
        ({"averaging": {"task": {"name": "links"}}}, {}, "paradigm"),
        ({}, {"alone": small(paradigm="averaging")}, "alone"),
    ],
)
def test_what_cannot_be_compared_of_own_nodes(
    job: dict[str, Any], arguments: dict[str, Any], key: str, tmp_path: Path
) -> None:
    with refused(ConfigError, key=key):
        compare_job(small(paradigm="averaging", **job), tmp_path / "study", **arguments)


def test_a_comparison_keeps_its_holders_in_the_jobs_order(tmp_path: Path) -> None:
    """The first is the label holder unless the job names another."""
    a, b = inputs_of(small()).graphs
    graphs = [replace(a, party="Z"), b]
    for graph in graphs:
        save_party(graph, tmp_path / f"{graph.party}.safetensors")
    job = small(data={"graphs": {each.party: str(tmp_path / f"{each.party}.safetensors") for each in graphs}})
    compare_first_way(job, tmp_path / "study")
    kept = parse_job(json.loads((tmp_path / "study" / studies.ABOUT).read_text())["job"])
    assert (kept.data.names, kept.data.label_party) == (job.data.names, "Z")
    assert kept.hash() == job.hash()


# Tables


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "organisations"
    assert veilgraph("data", "export", "synthetic", "--out", folder, "--overlap", "0.9").exit_code == 0
    return folder


def test_tables_are_aligned_once_and_at_home_nothing_of_others_is_read(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = str(exported / "job.yaml")
    changes = [part for key in ("train.epochs=2", "model.dim=4") for part in ("--set", key)]
    whole = veilgraph("compare", job, *changes, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    for part in ("Is it worth it?", "vertical", "sealed", "above the best at home"):
        assert part in whole.stdout
    assert "pooled: boosting" in (tmp_path / "whole" / "comparison.html").read_text(encoding="utf-8")
    (exported / "B").rename(exported / "elsewhere")
    try:
        party = exported / "A" / "party.yaml"
        apart = [*changes, "--set", "data={holders: [A, B], label_holder: A}"]
        with monkeypatch.context() as alone:
            alone.setattr(socket, "socket", None)
            alone.setattr(subprocess, "Popen", None)
            home = veilgraph("compare", job, *apart, "--party", party, "--out", tmp_path / "home")
        assert home.exit_code == 0, home.output
        assert "the best at home is" in home.stdout
        assert "vertical" not in home.stdout
        assert "--party" in one_error(veilgraph("compare", job, *apart, "--out", tmp_path / "none"))
    finally:
        (exported / "elsewhere").rename(exported / "B")


@pytest.mark.parametrize("at_home", [True, False])
def test_tables_that_have_changed_are_refused_and_the_same_are_not(
    exported: Path, tmp_path: Path, at_home: bool
) -> None:
    job = with_overrides(read_job(exported / "job.yaml"), {"model.dim": 4, "train.epochs": 2})
    party, edges = exported / "A" / "party.yaml" if at_home else None, exported / "A" / "edges.csv"
    out, content = tmp_path / "study", edges.read_text()
    assert len(compare_first_way(job, out, party)) == 2
    assert len(compare_first_way(job, out, party)) == 1
    try:
        edges.write_text("\n".join(content.splitlines()[:-20]))
        with refused(RunError, key="out", value=str(out), code="data-changed"):
            compare_job(job, out, party=party)
    finally:
        edges.write_text(content)


def test_a_party_file_that_is_none_is_refused_before_there_is_a_directory(tmp_path: Path) -> None:
    with refused(ConfigError, key=PurePath("none.yaml")):
        compare_job(small(), tmp_path / "study", party=tmp_path / "none.yaml")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (["--out", "x"], "--out"),
        (["--seeds", "2"], "--seeds"),
        (["--recall-at", "0.1"], "--recall-at"),
        (["--party", "party.yaml"], "--party"),
        (["--alone", "job.yaml"], "--alone"),
        (["--set", "seed=1"], "--set"),
    ],
)
def test_what_is_of_a_job_is_refused_of_a_run(given: list[str], option: str, tmp_path: Path) -> None:
    told = veilgraph("compare", tmp_path, *given)
    assert told.exit_code == 2
    assert option in told.stderr
