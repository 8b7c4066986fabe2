"""How well a model predicts, on the page: figures with intervals beside guessing, thresholds by validation nodes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from tests.errors import refused
from tests.report.conftest import Copy, page_of, part_of
from tests.report.made import two_classes
from veilgraph.core.errors import RunError
from veilgraph.graph.party import load_party, save_party
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.report.evaluation import evaluation_section
from veilgraph.report.ranking import alarms, best_threshold, calibration_error, confusion, reliability
from veilgraph.report.run_data import LabelledPredictions, RunData, Split, read_predictions, read_run
from veilgraph.report.tables import environment, percent
from veilgraph.report.training import training
from veilgraph.runtime.store.predictions import load_predictions, save_predictions
from veilgraph.runtime.store.results import COMPARED
from veilgraph.runtime.store.run_directory import RunDirectory


def drawn(seed: int, count: int = 400, of: float = 0.1) -> Split:
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < of).astype(np.int64)
    one = 1 / (1 + np.exp(2 - generator.normal(2.0 * labels, 1)))
    likely = np.stack([1 - one, one], axis=1)
    return Split(np.arange(count), labels, likely, likely.argmax(axis=1), likely)


TOLD = LabelledPredictions("A", ("no", "fraud"), drawn(1), drawn(2), False, None)


@pytest.fixture
def found(runs: dict[str, Path]) -> RunData:
    return replace(read_run(RunDirectory.open(runs["plain"])), summary=None)


def selecting(found: RunData, by: str) -> RunData:
    train = found.settings.train.model_copy(update={"select_by": by})
    return replace(found, settings=found.settings.model_copy(update={"train": train}))


def html_of(found: RunData, told: dict[str, Any]) -> str:
    template = environment().get_template("judged.html.j2")
    return template.render(judged=told, training=training(found), confusion=confusion(TOLD))


def row(told: dict[str, Any], title: str) -> tuple[str, str, str]:
    (one,) = [each for each in told["rows"] if each.title == title]
    return one.value, one.interval, one.baseline


def test_figures_are_of_the_test_nodes_beside_knowing_nothing(found: RunData) -> None:
    told = evaluation_section(found, TOLD)
    labels, score = TOLD.test.labels, TOLD.test.likely[:, 1]
    value, interval, guess = row(told, "AUC")
    assert float(value) == pytest.approx(roc_auc_score(labels, score), abs=5e-4)
    low, high = map(float, interval.split(" to "))
    assert low < float(value) < high
    assert high - low < 0.2
    assert guess == "0.500 by guessing"
    value, _, guess = row(told, "PR-AUC")
    assert float(value) == pytest.approx(average_precision_score(labels, score), abs=5e-4)
    assert guess == f"{labels.mean():.3f} by guessing: the share of fraud"
    top = labels[np.argsort(-score)[:20]].sum() / labels.sum()
    assert row(told, "recall at 5 %")[::2] == (f"{top:.3f}", "0.050 by looking at random")
    value, _, guess = row(told, "accuracy")
    assert value == percent(float((TOLD.test.taken == labels).mean()))
    assert guess == f"{percent(1 - labels.mean())} by always saying no"
    never = f1_score(labels, np.zeros_like(labels), average="macro", zero_division=0)
    assert row(told, "macro F1")[2] == f"{never:.3f} by always saying no"
    assert [one.meaning for one in told["rows"] if "fraud" in one.meaning] == [
        "precision on average over all of fraud, the highest scores first",
        "of fraud, found in that share of the nodes",
    ]
    assert f"{labels.sum()} of them ({percent(labels.mean())}) are fraud" in told["caption"]


@pytest.mark.parametrize(("by", "title"), [("auc", "AUC"), ("f1", "macro F1"), ("accuracy", "accuracy")])
def test_the_headline_is_what_the_job_selects_by(by: str, title: str, found: RunData) -> None:
    told = evaluation_section(selecting(found, by), TOLD)
    assert told["headline"] is not None
    assert told["headline"].title == told["rows"][0].title == title
    assert [line.split()[0] for line in told["beside"]] == [name for name in ("AUC", "PR-AUC") if name != title]


def test_validation_nodes_alone_choose_the_threshold(found: RunData) -> None:
    told = evaluation_section(found, TOLD)
    ranking = told["ranking"]
    assert ranking is not None
    assert ranking["threshold"] is not None
    chosen = best_threshold(TOLD.val.labels == 1, TOLD.val.likely[:, 1])
    assert chosen is not None
    assert ranking["threshold"]["value"] == chosen
    at = alarms(TOLD.test.labels == 1, TOLD.test.likely[:, 1], chosen)
    assert ranking["threshold"]["test"] == at
    assert ranking["threshold"]["val"] == alarms(TOLD.val.labels == 1, TOLD.val.likely[:, 1], chosen)
    assert (ranking["negative"], ranking["positive"]) == ("no", "fraud")
    page = html_of(found, told)
    assert f'<th scope="row">test</th><td class="number">{at.precision}</td><td class="number">{at.recall}' in page
    for name, cells in (("fraud", (at.true_alarms, at.missed)), ("no", (at.false_alarms, at.passed))):
        shown = "".join(f'<td class="number">{each}</td>' for each in cells)
        assert f'<th scope="row">{name}</th>{shown}' in page
    other = evaluation_section(found, replace(TOLD, test=drawn(3)))["ranking"]
    assert other is not None
    assert other["threshold"] is not None
    assert other["threshold"]["value"] == ranking["threshold"]["value"]
    assert other["threshold"]["val"] == ranking["threshold"]["val"]
    assert other["threshold"]["test"] != ranking["threshold"]["test"]
    without = evaluation_section(found, replace(TOLD, val=drawn(1, of=0.0)))["ranking"]
    assert without is not None
    assert without["threshold"] is None


def test_of_classes_alone_nothing_is_ranked(found: RunData) -> None:
    sure = np.eye(2)[TOLD.test.taken]
    told = evaluation_section(selecting(found, "auc"), replace(TOLD, test=replace(TOLD.test, likely=sure, own=sure)))
    assert [each.title for each in told["rows"]] == ["accuracy", "macro F1"]
    assert (told["headline"], told["ranking"], told["beside"]) == (None, None, [])
    assert told["unranked"].startswith(
        "All nodes of a predicted class have the same probability, so nodes cannot be ranked"
    )
    sealed = replace(found, settings=parse_job({"paradigm": "sealed"}))
    of_sealed = evaluation_section(sealed, replace(TOLD, test=replace(TOLD.test, likely=sure, own=sure)))
    assert of_sealed["unranked"].startswith(
        "Classes alone were opened, so nodes cannot be ranked: there is no AUC, no prec"
    )
    three = np.eye(3)[TOLD.test.taken]
    many = evaluation_section(
        sealed, replace(TOLD, classes=("a", "b", "c"), test=replace(TOLD.test, likely=three, own=three))
    )
    assert "there is no AUC. A job" in many["unranked"]
    assert evaluation_section(sealed, TOLD)["unranked"] == ""


def test_predictions_are_paired_with_labels_node_by_node(copy: Copy) -> None:
    run = two_classes(copy("plain"))
    store = RunDirectory.open(run).party("A")
    graph, held = load_party(store.graph_path), load_predictions(store)
    nodes = np.arange(graph.common)

    def check() -> None:
        told = read_predictions(read_run(RunDirectory.open(run)))
        assert isinstance(told, LabelledPredictions)
        for split, mask in ((told.val, graph.val_mask), (told.test, graph.test_mask)):
            assert mask is not None
            assert graph.labels is not None
            assert np.array_equal(split.rows, nodes[mask.numpy()])
            assert np.array_equal(split.labels, graph.labels[mask].numpy())
            assert np.allclose(split.likely, held.probabilities[mask].numpy())

    check()
    ids = [f"n{node}" for node in nodes]
    store.save_ids(ids)
    mixed = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    save_predictions(
        store, Predicted(held.probabilities[mixed]), [ids[place] for place in mixed.tolist()], held.class_names
    )
    check()


def test_confusions_are_of_the_class_by_which_the_network_was_judged(copy: Copy) -> None:
    run = two_classes(copy("plain"))
    store = RunDirectory.open(run).party("A")
    held = load_predictions(store)
    save_predictions(store, Predicted(held.uncalibrated), calibration=Calibration(1.0, (9.0, -9.0)))
    told = read_predictions(read_run(RunDirectory.open(run)))
    assert isinstance(told, LabelledPredictions)
    assert np.array_equal(told.test.taken, told.test.own.argmax(axis=1))
    assert (told.test.taken != told.test.likely.argmax(axis=1)).any()


def test_guessing_is_by_the_most_frequent_class_of_the_judged_nodes(copy: Copy) -> None:
    run = two_classes(copy("plain"))
    path = run / "parties" / "A" / "graph.safetensors"
    graph = load_party(path)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.test_mask is not None
    tested = torch.nonzero(graph.test_mask).ravel()
    labels = torch.ones_like(graph.labels)  # the training nodes are all of class 1
    labels[tested[len(tested) // 5 :]] = 0  # and most of the test nodes of class 0
    save_party(replace(graph, labels=labels), path)
    found = read_run(RunDirectory.open(run))
    told = read_predictions(found)
    assert isinstance(told, LabelledPredictions)
    share = percent(1 - (len(tested) // 5) / len(tested))
    assert float(share.split()[0]) > 75
    assert row(evaluation_section(found, told), "accuracy")[2] == f"{share} by always saying honest <b>"
    name, right = confusion(told)["commonest"]
    assert (name, percent(right)) == ("honest <b>", share)


def test_a_test_auc_near_one_is_called_a_likely_leak(found: RunData) -> None:
    one = np.where(TOLD.test.labels == 1, 0.9, 0.1) + np.arange(len(TOLD.test.labels)) / 1e4
    ranked = np.stack([1 - one, one], 1)
    told = replace(TOLD, test=replace(TOLD.test, likely=ranked, own=ranked))
    assert [
        note.startswith("Likely leak: the test AUC is 1.000 of A") for note in evaluation_section(found, told)["notes"]
    ] == [True]
    assert evaluation_section(found, TOLD)["notes"] == []
    # Of more classes networks reach it without a leak.
    more = np.concatenate([ranked, np.zeros((len(one), 1))], 1)
    more[0] = 0, 0, 1
    labels = np.where(np.arange(len(one)) == 0, 2, TOLD.test.labels)
    three = replace(
        told, classes=("no", "fraud", "other"), test=replace(told.test, labels=labels, likely=more, own=more)
    )
    assert row(evaluation_section(found, three), "AUC")[0] == "1.000"
    assert evaluation_section(found, three)["notes"] == []


def test_another_organisations_part_has_no_figure_and_no_count_of_labels(copy: Copy, tmp_path: Path) -> None:
    copy_again = Path(shutil.copytree(copy("plain"), tmp_path / "again"))
    run = part_of(two_classes(tmp_path / "plain"), "B")
    page = page_of(run)
    assert "A's predictions are not in this directory." in page.text
    for words in ("fraud", "alarms per 1,000", "95 %", "lift"):
        assert words not in page.text
    assert page.within["dd"][0] == "not known here"
    own = page_of(part_of(two_classes(copy_again), "A"))
    assert "alarms per 1,000" in own.text
    assert "0.500 by guessing" in own.within["dd"][0]


def test_the_page_begins_with_alone_together_and_pooled(copy: Copy) -> None:
    run = copy("plain")
    page = page_of(run)
    assert f"veilgraph compare {run}" in page.text
    summaries = {
        "A alone": {"test_accuracy": 0.25, "test_f1": 0.2},
        "federated": {"test_accuracy": 0.5, "test_f1": float("nan")},
        "pooled": {"test_accuracy": 0.75, "test_auc": None},
    }
    (run / COMPARED).write_text(json.dumps(summaries))
    page = page_of(run)
    assert f"veilgraph compare {run}" not in page.text
    rows = [" ".join(row.split()) for row in page.within["tr"]]
    start = next(place for place, row in enumerate(rows) if row.startswith("trained by"))
    assert rows[start : start + 4] == [
        "trained byaccuracymacro F1",
        "A alone25.0 %0.200",
        "federated50.0 %–",
        "pooled75.0 %–",
    ]
    (run / COMPARED).write_text("[1]")
    with refused(RunError, key=run / COMPARED):
        page_of(run)


def test_the_head_has_what_others_reach_on_the_same_test_nodes(copy: Copy) -> None:
    run = copy("plain")
    ways = {"A alone": {"test_accuracy": 0.25}, "B alone": {"test_accuracy": 0.5}, "pooled": {"test_accuracy": 0.75}}
    (run / COMPARED).write_text(json.dumps(ways))
    top = page_of(run).within["dd"][0]
    assert ("25.0 % A alone" in top, "75.0 % pooled" in top, "B alone" in top) == (True, True, False)
    summary = json.loads((run / "summary.json").read_text())
    own = {key: value for key, value in summary.items() if key.startswith("test_")}
    (run / "summary.json").write_text(json.dumps({**summary, "alone": {"A": {"together": own, "alone": {}}}}))
    top = page_of(run).within["dd"][0]
    assert ("25.0 % A alone" in top, "pooled" in top) == (True, False)  # pooled is judged on all holders' nodes


def test_the_head_has_the_jobs_first_figure_of_others_or_nothing(found: RunData, copy: Copy) -> None:
    run = copy("plain")
    judged_by_f1 = replace(selecting(found, "f1"), path=run)
    for figures, lines in (
        ({"test_accuracy": 0.25, "test_f1": 0.375}, ["0.375 A alone"]),
        ({"test_accuracy": 0.25}, []),
    ):
        (run / COMPARED).write_text(json.dumps({"A alone": figures}))
        told = evaluation_section(judged_by_f1, TOLD)
        assert [line for line in told["beside"] if line.endswith(" alone")] == lines


def test_what_calibration_did_is_told_on_test_nodes(found: RunData) -> None:
    own = TOLD.test.likely
    one = own[:, 1] / 4
    told = evaluation_section(
        found, replace(TOLD, calibrated=True, test=replace(TOLD.test, likely=np.stack([1 - one, one], 1)))
    )
    words = html_of(found, told)
    assert f"a probability of {percent(float(one.mean()))}, and" in words
    error = calibration_error(reliability(TOLD.test.labels == 1, own[:, 1]))
    assert f"The network itself says {percent(float(own[:, 1].mean()))}, with an error of {error:.3f}:" in words
    assert "no validation node was there" in html_of(found, evaluation_section(found, TOLD))
    assert told["rows"] == evaluation_section(found, TOLD)["rows"], "figures are of the network's own"
