"""Predictions against what came of the nodes: month by month, and a champion against challengers."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from tests.cli.commands import veilgraph
from tests.errors import refused
from tests.report.tables_run import IDS, LABELS, NODES, SEEN, UNSEEN, made_run, model
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.party import load_party, save_party
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.judge import Predicted
from veilgraph.report.outcomes import ALL, OutcomeTable, watch
from veilgraph.report.tables import NOTHING
from veilgraph.runtime.store.predictions import save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("made"))


def scores(noise: float, seed: int = 0) -> np.ndarray:
    """Chances of "yes" that know it, but for noise; of every fifth node on average."""
    told = np.random.default_rng(seed).normal(0, noise, NODES) + np.array([each == "yes" for each in LABELS])
    return np.asarray(1 / (1 + np.exp(-2 * (told - 1))))


def outcomes(path: Path, rows: Sequence[tuple[str, str, str]]) -> OutcomeTable:
    path.write_text("\n".join(["who,what,when", *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return OutcomeTable(path, "who", "what", "when")


def predicting(made: Path, folder: Path, likely: torch.Tensor, classes: list[str]) -> tuple[Path, Sequence[str]]:
    """A copy of a run that predicts these chances of other classes, [N, C], and its nodes' ids."""
    run = Path(shutil.copytree(made, folder / "run"))
    store = RunDirectory.open(run).party("A")
    known = store.ids()
    assert known is not None
    save_predictions(store, Predicted(likely), known, classes)
    return run, known


def month(number: int) -> str:
    return f"2026-0{1 + number % 3}-0{1 + number % 9}"


EVERY = [(text, LABELS[number], month(number)) for number, text in enumerate(IDS)]


def test_figures_are_of_nodes_that_no_model_was_trained_or_chosen_on(made: Path, tmp_path: Path) -> None:
    chances = scores(1.0)
    run = model(made, tmp_path / "champion", chances)
    found = watch([run], outcomes(tmp_path / "o.csv", EVERY))
    assert found.seen_before == len(SEEN)
    assert [each.period for each in found.watched] == ["2026-01", "2026-02", "2026-03", ALL]
    truth = np.array([each == "yes" for each in LABELS])
    for place, each in enumerate(found.watched):
        rows = [number for number in UNSEEN if each.period == ALL or number % 3 == place]
        assert (each.nodes, each.found) == (len(rows), int(truth[rows].sum()))
        assert each.foreseen == pytest.approx(chances[rows].sum())
        assert each.deviation == pytest.approx(np.sqrt((chances[rows] * (1 - chances[rows])).sum()))
        assert each.figures["auc"].value == pytest.approx(roc_auc_score(truth[rows], chances[rows]))
        assert each.figures["pr_auc"].value == pytest.approx(average_precision_score(truth[rows], chances[rows]))


def test_without_dates_there_is_one_period_and_empty_labels_and_unknown_ids_are_left_out(
    made: Path, tmp_path: Path
) -> None:
    run = model(made, tmp_path / "champion", scores(1.0))
    rows = [*EVERY, ("nobody", "yes", ""), ("elsewhere", "no", "")]
    table = outcomes(tmp_path / "o.csv", [(who, "" if who == IDS[UNSEEN[0]] else what, "") for who, what, _ in rows])
    found = watch([run], OutcomeTable(table.file, "who", "what"))
    assert [each.period for each in found.watched] == [ALL]
    assert found.watched[0].nodes == len(UNSEEN) - 1
    assert found.unknown == 2
    assert [line.split()[0] for line in found.sentences()] == [str(len(SEEN)), "2"]


def test_a_challenger_is_better_only_by_more_than_chance_and_on_the_same_nodes(made: Path, tmp_path: Path) -> None:
    champion = model(made, tmp_path / "champion", scores(1.5))
    alike = model(made, tmp_path / "alike", scores(1.5, 1))
    good = model(made, tmp_path / "good", scores(0.3), rows=UNSEEN[:100])
    table = outcomes(tmp_path / "o.csv", EVERY)
    found = watch([champion, alike], table)
    assert found.better == []
    found = watch([champion, alike, good], table)
    assert found.better == [good]
    assert {each.nodes for each in found.watched if each.period == ALL} == {100}, "those that all models predict"
    assert found.unknown == NODES - 100
    aucs = {each.run: each.figures["auc"].value for each in found.watched if each.period == ALL}
    assert found.gains[good].value == pytest.approx(aucs[good] - aucs[champion])
    assert watch([good, champion], table).better == []


def test_numbers_that_were_not_foreseen_and_a_low_auc_raise_alarms(made: Path, tmp_path: Path) -> None:
    right = np.where([each == "yes" for each in LABELS], 0.5, 0.125)  # a fifth and four fifths: 0.2 on average
    run = model(made, tmp_path / "right", right)
    table = outcomes(tmp_path / "o.csv", EVERY)
    assert watch([run], table).alarms(0.9) == []
    over = watch([model(made, tmp_path / "over", np.minimum(right * 3, 0.95))], table)
    assert len(over.alarms()) == 1
    assert over.watched[2].is_off, "of the newest month"
    low = watch([model(made, tmp_path / "low", scores(50.0) * 0.4)], table)
    assert any("below 0.95" in line for line in low.alarms(0.95))
    assert low.alarms(0.3) == low.alarms()


def test_alarms_are_of_the_newest_month_alone(made: Path, tmp_path: Path) -> None:
    """In January all were foreseen twice, later as they came."""
    right = np.where([each == "yes" for each in LABELS], 0.5, 0.125)
    january = np.array([month(number).startswith("2026-01") for number in range(NODES)])
    run = model(made, tmp_path / "run", np.where(january, 0.6, right))
    found = watch([run], outcomes(tmp_path / "o.csv", EVERY))
    assert [each.is_off for each in found.watched][:3] == [True, False, False]
    assert found.alarms() == []


def test_a_month_of_one_class_has_no_figures_and_the_table_says_none(made: Path, tmp_path: Path) -> None:
    run = model(made, tmp_path / "champion", scores(1.0))
    rows = [each for each in EVERY if each[1] == "no" or not each[2].startswith("2026-01")]
    table = watch([run], outcomes(tmp_path / "o.csv", rows)).table()
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    assert [column[0] for column in cells[-3:]] == [NOTHING] * 3
    assert not any("nan" in cell for column in cells for cell in column)
    assert all(column[1] != NOTHING for column in cells[-3:])


def test_what_any_model_was_trained_on_is_left_out_of_all(made: Path, tmp_path: Path) -> None:
    one, other = (model(made, tmp_path / name, scores(1.0)) for name in ("one", "other"))
    path = RunDirectory.open(other).party("A").graph_path
    graph = load_party(path)
    assert graph.test_mask is not None
    first, second = graph.test_mask.clone(), graph.test_mask.clone()
    first[: NODES // 2], second[NODES // 2 :] = False, False
    save_party(replace(graph, train_mask=first, val_mask=second, test_mask=graph.train_mask), path)
    with pytest.raises(DataError, match="0 are of nodes"):
        watch([one, other], outcomes(tmp_path / "o.csv", EVERY))


def test_calibrated_probabilities_foresee(made: Path, tmp_path: Path) -> None:
    chances = scores(1.0)
    run = model(made, tmp_path / "run", chances, calibration=Calibration(1.0, (0.0, 3.0)))
    (found,) = watch([run], OutcomeTable(outcomes(tmp_path / "o.csv", EVERY).file, "who", "what")).watched
    shifted = 1 / (1 + np.exp(-(np.log(chances / (1 - chances)) + 3)))
    assert found.foreseen == pytest.approx(shifted[UNSEEN].sum())


def test_outcomes_of_whole_numbers_may_have_a_point(made: Path, tmp_path: Path) -> None:
    run, known = predicting(made, tmp_path, torch.tensor([[0.2, 0.8]]).repeat(NODES, 1), ["0", "1"])
    table = outcomes(tmp_path / "o.csv", [(text, f"{place % 4 > 0:d}.0", "") for place, text in enumerate(known)])
    (found,) = watch([run], OutcomeTable(table.file, "who", "what")).watched
    assert found.found == pytest.approx(0.75 * found.nodes, rel=0.1)


def test_of_more_classes_those_are_counted_that_were_taken_rightly(made: Path, tmp_path: Path) -> None:
    likely = torch.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]], dtype=torch.float64).repeat(
        NODES // 3, 1
    )
    run, known = predicting(made, tmp_path, likely, ["a", "b", "c"])
    table = outcomes(tmp_path / "o.csv", [(text, "cab"[place % 3], "") for place, text in enumerate(known)])
    (found,) = watch([run], OutcomeTable(table.file, "who", "what")).watched
    assert found.found == found.nodes
    assert found.foreseen == pytest.approx(found.nodes * (0.5 + 0.6 + 0.8) / 3, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "key"),
    [
        ([*EVERY, EVERY[2]], "who"),
        ([(who, "maybe", when) for who, _, when in EVERY], None),
        ([(who, what, "soon") for who, what, _ in EVERY], None),
        ([(who, what, "") for who, what, _ in EVERY], None),
        ([EVERY[number] for number in SEEN], None),
        ([], None),
    ],
    ids=["twice", "no class", "no date", "a date is missing", "all were trained on", "empty"],
)
def test_outcomes_that_break_a_rule_are_refused(
    rows: list[tuple[str, str, str]], key: str | None, made: Path, tmp_path: Path
) -> None:
    run = model(made, tmp_path / "run", scores(1.0))
    table = outcomes(tmp_path / "o.csv", rows)
    with pytest.raises(DataError) as error:
        watch([run], table)
    assert key in (None, error.value.key)
    assert str(table.file) in str(error.value)


def test_runs_that_cannot_be_watched_are_refused(made: Path, tmp_path: Path) -> None:
    table = outcomes(tmp_path / "o.csv", EVERY)
    run = model(made, tmp_path / "run", scores(1.0))
    alone = model(made, tmp_path / "alone", scores(1.0), classes_alone=True)
    with refused(ConfigError, key="runs"):
        watch([alone], table)
    store = RunDirectory.open(alone).party("A")
    save_predictions(store, Predicted(torch.full((NODES, 2), 0.5, dtype=torch.float64)), store.ids(), ["bad", "good"])
    with refused(ConfigError, key="runs"):
        watch([run, alone], table)


def test_the_command_exits_with_three_where_there_is_something_to_do(made: Path, tmp_path: Path) -> None:
    bad, good = model(made, tmp_path / "bad", scores(1.5)), model(made, tmp_path / "good", scores(0.3))
    table = outcomes(tmp_path / "o.csv", EVERY)
    columns: list[str | Path] = ["--outcomes", table.file, "--id", "who", "--label", "what"]
    result = veilgraph("watch", bad, good, *columns, "--date", "when")
    assert result.exit_code == 3
    assert "promote it" in result.stderr
    assert result.stdout.count("2026-02") == 2
    result = veilgraph("watch", good, bad, *columns, "--json")
    told = json.loads(result.stdout)
    assert told["better"] == []
    assert result.exit_code == (3 if told["alarms"] else 0)
    assert [each["nodes"] for each in told["watched"]] == [len(UNSEEN)] * 2
