"""Why a node has its score: sums that add up, of the holder's own data alone, and one number for all else."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.report.tables_run import IDS, made_run, model
from veilgraph.api.runs import Run
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import POOLED
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.report.explanation import Explanation, explain
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.predictions import load_predictions, save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

NODES = 400


def graphs() -> list[PartyGraph]:
    """A's columns, of which the last is the same everywhere, a ring of links, and others' data that A lacks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(NODES, 3, generator=generator), torch.ones(NODES, 1)], 1)
    ring = torch.stack([torch.arange(NODES).roll(1), torch.arange(NODES)])
    links = torch.cat([ring, ring.flip(0)], 1)
    place = torch.arange(NODES) % 4
    labels = (x[:, 0] > 0).long()
    own = PartyGraph("A", x, links, None, labels, place == 0, place == 1, place > 1, num_classes=2)
    return [own, PartyGraph("B", torch.randn(NODES, 1, generator=generator), links)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    job = parse_job({"data": {"dataset": "synthetic"}, "train": {"epochs": 1}, "model": {"dim": 2}})
    return RunDirectory.open(train(job, tmp_path_factory.mktemp("run") / "run", parties=graphs()).path)


@pytest.fixture
def run(whole: RunDirectory) -> Iterator[RunDirectory]:
    path = whole.party_path("A") / "predictions.safetensors"
    kept = path.read_bytes()
    yield whole
    path.write_bytes(kept)


def scored(run: RunDirectory, logits: Tensor, *, classes_alone: bool = False) -> None:
    """The run, as if it had these log-odds of class 1."""
    likely = torch.stack([-logits, logits], 1).double().div(2).softmax(1)
    save_predictions(run.party("A"), Predicted(likely, classes_alone=classes_alone))


def added_up(found: Explanation) -> float:
    return found.mean + sum(each.moves for each in found.reasons) + found.others + found.rest


def test_of_a_sum_of_own_columns_each_part_is_told(run: RunDirectory) -> None:
    x = graphs()[0].features
    scored(run, 2 * x[:, 0] - x[:, 1])
    (found,) = explain(run, [6])
    sign = 1 if found.label == "1" else -1
    told = {each.about: each.moves for each in found.reasons}
    for column, weight in ((0, 2.0), (1, -1.0)):
        expected = sign * weight * float(x[6, column] - x[:, column].mean())
        assert told[f"column {column}"] == pytest.approx(expected, abs=0.05)
    assert max(abs(moves) for name, moves in told.items() if name not in {"column 0", "column 1"}) < 0.05
    assert abs(found.rest) < 0.05
    assert found.explained > 0.99
    assert found.score == pytest.approx(float(abs(2 * x[6, 0] - x[6, 1])), abs=1e-6)
    moves = [abs(each.moves) for each in found.reasons]
    assert moves == sorted(moves, reverse=True)
    names = [each.about for each in explain(run, [6], shown=99)[0].reasons]
    assert "column 3" not in names, "it is the same everywhere, and so moves nothing"
    assert len(names) == len(set(names))


@pytest.mark.parametrize("shown", [1, 3, 99])
def test_parts_add_up_to_the_score_however_many_are_shown(run: RunDirectory, shown: int) -> None:
    a, b = graphs()
    scored(run, a.features[:, 0] + 2 * b.features[:, 0])
    for found in explain(run, [2, 3, 7], shown=shown):
        assert len(found.reasons) <= shown
        assert added_up(found) == pytest.approx(found.score, abs=1e-9)


def test_what_others_data_say_is_the_rest(run: RunDirectory) -> None:
    a, b = graphs()
    scored(run, a.features[:, 0] + 2 * b.features[:, 0])
    nodes = list(range(2, 400, 4))
    found = explain(run, nodes)
    rests = [one.rest * (1 if one.label == "1" else -1) for one in found]
    assert np.corrcoef(rests, 2 * b.features[nodes, 0].numpy())[0, 1] > 0.98
    assert 0.1 < found[0].explained < 0.3, "a fifth of the variance is of A's column"


def test_neighbours_and_numbers_of_links_are_told_of(run: RunDirectory) -> None:
    x = graphs()[0].features[:, 0]
    scored(run, 3 * (x.roll(1) + x.roll(-1)) / 2)
    (found,) = explain(run, [10])
    assert found.reasons[0].about == "column 0 of neighbours by links"
    assert found.explained > 0.99


def test_scores_of_training_nodes_teach_nothing_and_are_marked(run: RunDirectory) -> None:
    a = graphs()[0]
    assert a.train_mask is not None
    plain = a.features[:, 0].clone()
    learnt = torch.where(a.train_mask, 8 * a.features[:, 1].sign(), plain)
    scored(run, plain)
    (before,) = explain(run, [6])
    scored(run, learnt)
    after, trained = explain(run, [6, 8])
    assert after == before
    assert (after.trained, trained.trained) == (False, True)


def test_of_several_classes_the_one_that_a_node_is_taken_for_is_explained(run: RunDirectory) -> None:
    x = graphs()[0].features
    save_predictions(run.party("A"), Predicted((3 * x[:, :3]).double().softmax(1)))
    found = explain(run, list(range(60)))
    assert {one.label for one in found} == {"0", "1", "2"}
    for one in found[2::4]:
        own = next(each for each in one.reasons if each.about == f"column {one.label}")
        assert own.moves > 0 or own.value < 0


def test_what_cannot_be_explained_is_refused(run: RunDirectory) -> None:
    with refused(ConfigError, key="nodes"):
        explain(run)
    with refused(ConfigError, key="nodes"):
        explain(run, [], ids=[])
    with refused(ConfigError, key="party"):
        explain(run, [1], party="B")
    with refused(RunError, party="C"):
        explain(run, [1], party="C")
    scored(run, graphs()[0].features[:, 0], classes_alone=True)
    with refused(ConfigError, key="output"):
        explain(run, [1])
    few = torch.zeros(40, 2, dtype=torch.float64) + 0.5
    save_predictions(run.party("A"), Predicted(few, nodes=torch.arange(40)))
    with refused(DataError, party="A"):
        explain(run, [1])
    more = torch.zeros(NODES + 1, 2, dtype=torch.float64) + 0.5  # as of tables that have a node more by now
    save_predictions(run.party("A"), Predicted(more))
    with refused(DataError, party="A"):
        explain(run, [1])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize(("column", "values"), [("x", 7), ("y", 11)])
def test_columns_of_tables_have_their_names_and_scores_are_the_networks_own(
    column: str, values: int, made: Path, tmp_path: Path
) -> None:
    number = np.arange(len(IDS))
    of = {"x": number % 7, "y": number * 7 % 11}[column]
    chances = 1 / (1 + np.exp(-(of - values / 2)))
    run = model(made, tmp_path / "run", chances, calibration=Calibration(0.2, (0.0, 1.0)))
    (found,) = explain(RunDirectory.open(run), ids=[IDS[6]])
    assert found.reasons[0].about == column
    assert found.explained > 0.99
    assert abs(found.score) == pytest.approx(abs(of[6] - values / 2), abs=1e-6)


def test_scores_of_tables_that_have_changed_are_refused(made: Path, tmp_path: Path) -> None:
    run = model(made, tmp_path / "run", np.full(len(IDS), 0.5))
    store = RunDirectory.open(run).party("A")
    found = load_predictions(store)
    assert found.ids is not None
    likely = Predicted(found.uncalibrated)
    save_predictions(store, likely, [*found.ids[1:], found.ids[0]], ["no", "yes"])
    with refused(DataError, party="A"):
        explain(RunDirectory.open(run), ids=[IDS[6]])


def test_counterparties_elsewhere_are_counted_and_have_no_columns(tmp_path: Path) -> None:
    """Of a bank's customers half deal with the other bank's: how many, and not who, is its own to know."""
    generator, nodes = torch.Generator().manual_seed(5), 400
    x, bank = torch.randn(nodes, 2, generator=generator), torch.arange(nodes) % 2
    ends = torch.randint(nodes, (2, 1200), generator=generator)
    ends = torch.unique(ends[:, ends[0] != ends[1]], dim=1)
    place = torch.arange(nodes) // 2 % 4
    whole = Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=(x[:, 0] > 0).long())
    whole.train_mask, whole.val_mask, whole.test_mask = place == 0, place == 1, place > 1
    found = split_at_home(PartyGraph.from_data(POOLED, whole), "AB", bank)
    job = {"paradigm": "union", "data": {"dataset": "synthetic", "holders": 2}, "train": {"epochs": 1}}
    ids = {graph.party: ids for graph, ids in found}
    run = RunDirectory.open(train(parse_job(job), tmp_path / "run", parties=[g for g, _ in found], ids=ids).path)
    own = found[0][0]
    across = torch.bincount(own.edge_index[1][own.edge_index[0] >= own.common], minlength=own.common)[: own.common]
    chances = torch.sigmoid(2 * torch.log1p(across.double()) - 2)
    kept = load_predictions(run.party("A"))
    save_predictions(run.party("A"), Predicted(torch.stack([1 - chances, chances], 1)), kept.ids, kept.class_names)
    (reason,) = explain(run, [3], party="A", shown=1)[0].reasons
    assert reason.about == "how many links across"


def test_the_command_shows_and_emits_it(run: RunDirectory) -> None:
    scored(run, graphs()[0].features[:, 0])
    shown = veilgraph("explain", run.path, "--nodes", "6,8", "--top", "1").stdout
    assert shown.count("moves the score by") == 2
    assert "column 0" in shown
    assert "trained on this node" in shown
    assert [one.record() for one in Run(run.path).explain([6])] == [one.record() for one in explain(run, [6])]
    told = json.loads(veilgraph("explain", run.path, "--nodes", "6", "--json").stdout)
    (one,) = told["explanations"]
    assert one["reasons"][0]["about"] == "column 0"
    assert one["mean"] + sum(each["moves"] for each in one["reasons"]) + one["others"] + one["rest"] == pytest.approx(
        one["score"]
    )
