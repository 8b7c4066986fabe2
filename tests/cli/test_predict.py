import csv
import io
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.runtime.store.predictions import csv_of_holders, load_by_holder, load_predictions, save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory, save_tensors


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@nightly
def test_predictions_are_printed_as_csv(run: Path) -> None:
    result = veilgraph("predict", run, "--nodes", "5, 1,399")
    assert result.exit_code == 0
    found = rows(result.stdout)
    assert [row["node"] for row in found] == ["5", "1", "399"]
    for row in found:
        chances = [float(row[f"p{index}"]) for index in range(3)]
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        assert chances[int(row["class"])] == max(chances)


def test_nodes_may_come_from_a_file_and_predictions_go_to_one(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions.csv"
    result = veilgraph("predict", run, "--out", out)
    assert result.stdout == f"wrote 400 predictions to {out}\n"
    assert len(rows(out.read_text(encoding="utf-8"))) == 400
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("7\n8, 9\n", encoding="utf-8")
    result = veilgraph("predict", run, "--nodes-file", nodes)
    assert [row["node"] for row in rows(result.stdout)] == ["7", "8", "9"]


def test_what_is_asked_wrongly_is_one_line(run: Path, tmp_path: Path) -> None:
    """Ids of nobody would be an empty table, which looks like an answer."""
    (tmp_path / "ids.txt").write_text("\n\n", encoding="utf-8")
    for option in ("--ids=", "--ids=,", f"--ids-file={tmp_path / 'ids.txt'}"):
        assert "there is no id in it" in usage_error(veilgraph("predict", run, option))
    unknown = one_error(veilgraph("predict", run, "--nodes", "1,400"))
    assert "400 is not a node; give whole numbers from 0 to 399" in unknown
    too_long = one_error(veilgraph("predict", tmp_path / ("x" * 300)))
    assert too_long.endswith("File name too long; give another path, or mend what is there")
    assert len(too_long) < 400
    cut = Path(shutil.copytree(run, tmp_path / "cut"))
    (cut / "summary.json").unlink()
    assert f"finish it with: veilgraph resume {cut}" in one_error(veilgraph("predict", cut))


def test_classes_have_the_names_that_any_holder_knows(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"paradigm": "horizontal", "data": {"holders": ["A", "B"]}}))
    for party, names in (("A", None), ("B", ["no", "yes"])):
        store = run.party(party)
        save_tensors(store.model_path, {"w": torch.zeros(1)}, {})
        save_predictions(store, Predicted(torch.tensor([[0.25, 0.75]])), [f"{party}1"], names)
    assert csv_of_holders(load_by_holder(run)).splitlines() == [
        "holder,id,class,p_no,p_yes",
        "A,A1,yes,0.250000,0.750000",
        "B,B1,yes,0.250000,0.750000",
    ]


@pytest.mark.parametrize("columns", [{}, {"votes": torch.tensor([3, 1, 4, 1, 5])}])
@pytest.mark.parametrize("ids", [None, ["a", "b", "=c", "d", "e"]])
def test_a_table_made_in_parts_is_the_whole(
    ids: list[str] | None, columns: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also its last part, which is shorter, and in the file as from Python."""
    store = RunDirectory.create(tmp_path / "run", parse_job({"data": {"holders": ["A", "B"]}})).party("A")
    save_tensors(store.model_path, {"w": torch.zeros(1)}, {})
    chances = torch.tensor([[0.4, 0.6], [0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    save_predictions(store, Predicted(chances, columns=columns), ids)
    whole = load_predictions(store).csv()
    assert len(whole.splitlines()) == 6
    for row, line in enumerate(whole.splitlines()[1:]):
        name = str(row) if ids is None else ids[row].replace("=", "'=")
        told = [f"{values[row]:.6g}" for values in columns.values()]
        classes, likely = chances[row].tolist(), int(chances[row].argmax())
        assert line.split(",") == [name, *told, str(likely), *(f"{chance:.6f}" for chance in classes)]
    monkeypatch.setattr("veilgraph.runtime.store.predictions.ROWS_AT_ONCE", 2)
    save_predictions(store, Predicted(chances, columns=columns), ids)
    assert load_predictions(store).csv() == whole == (store.path / "predictions.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(("tied", "alone"), [(9, False), (10, False), (10, True)])
def test_many_nodes_of_one_score_are_mentioned(tmp_path: Path, tied: int, alone: bool) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"holders": ["A", "B"], "label_holder": "A"}}))
    store = run.party("A")
    save_tensors(store.model_path, {"w": torch.zeros(1)}, {})
    score = torch.cat([torch.full((tied,), 0.25), torch.linspace(0.3, 0.9, 95 - tied)])
    save_predictions(store, Predicted(torch.stack([1 - score, score], 1), classes_alone=alone))
    (run.path / "summary.json").write_text('{"nodes": 95}')
    assert ("of 95 have the same score" in veilgraph("predict", run.path).stderr) == (tied == 10 and not alone)


def test_a_class_is_of_the_highest_calibrated_probability(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({"data": {"holders": ["A", "B"], "label_holder": "A"}}))
    store = run.party("A")
    save_tensors(store.model_path, {"w": torch.zeros(1)}, {})
    chances = torch.tensor([[0.4, 0.6], [0.1, 0.9], [0.9, 0.1], [0.9, 0.1]])
    calibration = Calibration(1.0, (0.0, -1.0))
    save_predictions(store, Predicted(chances), [*"wxyz"], ["no", "yes"], calibration=calibration)
    (run.path / "summary.json").write_text('{"nodes": 4}')
    found = veilgraph("predict", run.path)
    assert [row["class"] for row in rows(found.stdout)] == ["no", "yes", "no", "no"]
    assert float(rows(found.stdout)[0]["p_yes"]) == pytest.approx(0.6 / (0.6 + 0.4 * math.e), abs=1e-6)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[1, 2]", b'[["a", 1]]', b"{", b""])
def test_a_damaged_summary(run: Path, tmp_path: Path, content: bytes) -> None:
    damaged = Path(shutil.copytree(run, tmp_path / "run"))
    (damaged / "summary.json").write_bytes(content)
    assert "summary.json: damaged (" in one_error(veilgraph("predict", damaged))


@pytest.mark.parametrize(
    ("party", "said"),
    [
        ("B", "has no part of A: scores and predictions are at the label holder alone; ask A for them"),
        ("A", "is not a complete run; an administrator finishes it with: veilgraph net submit --resume"),
    ],
)
def test_an_organisations_part_says_who_has_predictions(tmp_path: Path, party: str, said: str) -> None:
    job = parse_job({"data": {"holders": ["A", "B"], "label_holder": "A"}})
    RunDirectory.create(tmp_path / "run", job).party(party)
    assert said in one_error(veilgraph("predict", tmp_path / "run"))
