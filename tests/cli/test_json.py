"""``--json``: a document on standard output and nothing else, of every command that shows tables."""

import json
import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner, Result

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph.cli import app
from veilgraph.cli.app import FAILED
from veilgraph.cli.output import emit, json_output, plain
from veilgraph.runtime.store.predictions import Predictions

JOB = """
name: small
data: {dataset: synthetic}
model: {dim: 4, initial: {method: individual}}
train: {epochs: 2, patience: null, select_by: last, checkpoint_every: 1}
"""
PRIVATE = (
    JOB.replace("synthetic}", "synthetic, split: [0.5, 0.25, 0.25], stratify: false}") + "label_privacy: {epsilon: 3}\n"
)
LOCAL = """
name: local
paradigm: node-dp
data: {dataset: synthetic}
release: {features: {epsilon: 2, low: -10, high: 10}}
"""
EDGES = LOCAL + "privacy: {unit: edge, epsilon_total: 3}\n"
EMBED = "data: {dataset: synthetic}\nhide: {column: 0, cut: [0]}\nmethod: {name: apge, epochs: 2}\n"


def document(*words: str | Path, code: int = 0) -> Any:
    """What a command prints with ``--json``: all of its standard output is the document."""
    result = veilgraph(*words, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, found = tmp_path_factory.mktemp("jobs"), {}
    for name, text in {"job": JOB, "private": PRIVATE, "local": LOCAL, "edges": EDGES, "embed": EMBED}.items():
        found[name] = folder / f"{name}.yaml"
        found[name].write_text(text, encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def trained(jobs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    run = tmp_path_factory.mktemp("trained") / "run"
    return run, document("train", jobs["private"], "--out", run, "--record-views")


@nightly
def test_a_training_tells_its_summary(trained: tuple[Path, Any]) -> None:
    run, told = trained
    assert told["run"] == str(run)
    assert told["summary"] == json.loads((run / "summary.json").read_text())
    again = document("resume", run)
    assert again["summary"]["test_accuracy"] == told["summary"]["test_accuracy"]


def test_what_is_known_before_a_run(jobs: dict[str, Path]) -> None:
    checked = document("check", jobs["job"])
    assert [holder["party"] for holder in checked["holders"]] == ["A", "B"]
    assert checked["holders"][0]["labels"]["train"] > 0
    assert checked["holders"][1]["labels"]["train"] is None
    budget = document("budget", jobs["edges"], "--total", "4")
    assert 0 < budget["holders"]["A (label holder)"]["epsilon_total"] <= 3
    assert {each["epsilon_total"] for each in budget["noise"]} == {4}
    assert document("budget", jobs["job"])["holders"] is None
    local = document("budget", jobs["local"])["holders"]
    assert {each["epsilon"] for holder in local.values() for each in holder} == {2}


def test_what_a_run_sent_and_what_it_cost(trained: tuple[Path, Any]) -> None:
    run, _ = trained
    told = document("report", run)
    assert Path(told["page"]).is_file()
    assert {record["party"] for record in told["sent"]} == {"A", "B", "server"}
    assert told["spent"]["A"]["epsilon_total"] == 3
    verified = document("report", run, "--verify")
    assert {record["party"] for record in verified["records"]} == {"A", "B", "server"}


def test_predictions_are_those_of_the_csv(trained: tuple[Path, Any], tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    told = document("predict", trained[0], "--nodes", "7,1", "--out", out)
    assert (told["run"], told["file"]) == (str(trained[0]), str(out))
    assert told["model_version"]
    assert datetime.fromisoformat(told["made_at"]).tzinfo is not None
    assert [each["node"] for each in told["predictions"]] == [7, 1]
    header, *lines = out.read_text(encoding="utf-8").splitlines()
    written = [
        f"{each['node']},{each['class']},{','.join(f'{chance:.6f}' for chance in each['probabilities'].values())}"
        for each in told["predictions"]
    ]
    assert written == lines
    names = [f"p{name}" for name in told["predictions"][0]["probabilities"]]
    assert header == ",".join(("node", "class", *names))


def test_predictions_have_the_names_that_the_run_has() -> None:
    chances = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    named = Predictions(torch.tensor([3]), torch.tensor([1]), chances, ("C1",), ("good", "fraud"))
    assert named.records() == [{"id": "C1", "class": "fraud", "probabilities": {"good": 0.25, "fraud": 0.75}}]
    of_pairs = replace(
        named,
        probabilities=torch.zeros(1, 0),
        class_names=None,
        ids=("a\tb",),
        keys=("source", "target"),
        columns={"score": torch.tensor([0.5])},
    )
    assert of_pairs.records() == [{"source": "a", "target": "b", "score": 0.5}]


def test_a_comparison_of_a_run(trained: tuple[Path, Any]) -> None:
    told = document("compare", trained[0])
    assert set(told["trainings"]) == {"A alone", "B alone", "federated", "pooled"}


@nightly
def test_a_failed_audit_tells_what_it_found(trained: tuple[Path, Any]) -> None:
    """And exits with the same code as without."""
    limited = ("--attack", "link-similarity", "--limit", "link-similarity=0.5", "--adversary", "server")
    found = veilgraph("audit", trained[0], *limited, "--json")
    told = json.loads(found.stdout)
    assert found.exit_code == (FAILED if told["failed"] else 0)
    assert told["findings"]
    assert {each["attack"] for each in told["findings"]} >= {"link-similarity"}


def test_tables_are_described_and_aligned(tmp_path: Path) -> None:
    out = tmp_path / "organisations"
    assert veilgraph("data", "export", "synthetic", "--out", out, "--overlap", "0.8").exit_code == 0
    described = document("data", "check", out / "A" / "party.yaml")
    assert described["party"] == "A"
    assert sum(described["classes"].values()) + described["unlabelled"] == described["nodes"]
    both = document("check", out / "job.yaml")
    assert [each["party"] for each in both["holders"]] == ["A", "B"]
    assert both["holders"][0]["nodes"] == described["nodes"]
    aligned = document("data", "align", out / "job.yaml", "--out", tmp_path / "aligned", "--set", "model.dim=4")
    assert aligned["common"] == 320
    assert set(aligned["nodes"]) == {"A", "B"}


@nightly
def test_what_takes_longer(jobs: dict[str, Path], tmp_path: Path) -> None:
    compared = document("compare", jobs["job"], "--out", tmp_path / "compared")
    assert compared["ways"]
    assert "best at home" in compared["verdict"]
    tuned = document("tune", jobs["job"], "--trials", "2", "--out", tmp_path / "tuned")
    assert len(tuned["trials"]) == 2
    demo = document("demo", "--epochs", "2", "--out", tmp_path / "demo")
    assert "federated" in demo["trainings"]


@nightly
def test_embeddings(jobs: dict[str, Path], tmp_path: Path) -> None:
    told = document("embed", jobs["embed"], "--out", tmp_path / "embedded")
    assert Path(told["publish"]).is_dir()
    assert told["report"]["after"]


def test_an_error_prints_no_document(tmp_path: Path) -> None:
    assert "cannot be read" in one_error(veilgraph("check", tmp_path / "none.yaml", "--json"))
    assert "--json" in usage_error(veilgraph("net", "logs", "--kit", tmp_path, "--json"))


def test_the_commands_that_show_tables_have_the_option() -> None:
    root: Any = typer.main.get_command(app)
    found = set()
    for name, each in root.commands.items():
        for word, one in getattr(each, "commands", {"": each}).items():
            if any("--json" in parameter.opts for parameter in one.params):
                found.add(f"{name} {word}".strip())
    alone = {"audit", "budget", "check", "compare", "demo", "embed", "explain", "predict", "report", "resume"}
    alone |= {"train", "tune", "watch"}
    assert found == alone | {"data align", "data check", "net consent", "net dispute", "net status"}


def test_what_was_told_is_printed_with_a_code_and_not_with_an_error() -> None:
    def told_by(ends: Exception) -> Result:
        program = typer.Typer()

        @program.command()
        def _() -> None:
            with json_output(True):
                emit([1])
                raise ends

        return CliRunner().invoke(program, [])

    ended = told_by(typer.Exit(3))
    assert (ended.exit_code, json.loads(ended.stdout)) == (3, [1])
    assert told_by(RuntimeError()).stdout == ""


@dataclass(frozen=True)
class Point:
    x: float
    where: Path


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (math.inf, None),
        (math.nan, None),
        ({1: (True, None)}, {"1": [True, None]}),
        (Point(-math.inf, Path("a")), {"x": None, "where": "a"}),
        (np.float64("nan"), None),
        (np.arange(2), [0, 1]),
        (torch.tensor([[1.5]]), [[1.5]]),
        (np.int64(3), 3),
        (frozenset({"b", "a"}), ["a", "b"]),
        (datetime(2026, 1, 31, tzinfo=UTC), "2026-01-31T00:00:00+00:00"),
    ],
)
def test_a_value_as_json_has_it(value: object, found: object) -> None:
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == found
