from pathlib import Path
from typing import Any

import pytest

from research import paper_tables
from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph import __version__
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job_file import read_job
from veilgraph.samples.demo import demo_settings

COMMANDS = (
    "train", "predict", "check", "align", "report", "demo", "reproduce", "provision", "join", "machine", "submit",
    "status", "logs", "stop", "serve", "export",
    "demo-network", "cert",
)  # fmt: skip
CERTIFICATES = tuple(
    f"cert {name}" for name in ("request", "sign", "install", "revoke", "install-list", "protect", "unprotect")
)
JOBS = Path(__file__).parents[2] / "jobs"


def test_the_version_is_printed() -> None:
    assert veilgraph("--version").stdout == f"veilgraph {__version__}\n"


def test_help_lists_every_command() -> None:
    text = veilgraph("--help").stdout
    assert all(f" {command} " in text for command in COMMANDS)


@pytest.mark.parametrize("command", [*(name for name in COMMANDS if name != "cert"), *CERTIFICATES])
def test_every_command_shows_an_example(command: str) -> None:
    assert f"Example: veilgraph {command}" in veilgraph(*command.split(), "--help").stdout


def test_an_unknown_command_is_a_usage_error() -> None:
    assert "trian" in usage_error(veilgraph("trian"))


def test_check_shows_what_each_holder_brings_and_writes_nothing(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = veilgraph("check", job, "--set", "data.holders=3")
    assert result.exit_code == 0
    for part in ("nodes", "edges", "features", "degrees", "isolated nodes", "train labels", " C "):
        assert part in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_check_names_what_is_wrong_with_the_data(job: Path) -> None:
    error = one_error(veilgraph("check", job, "--set", "data={dataset: digits, holders: 9}"))
    assert "data.holders=9" in error


def test_the_demo_compares_four_trainings(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    result = veilgraph("demo", "--epochs", "2", "--out", out)
    assert result.exit_code == 0, result.output
    for part in ("A alone", "B alone", "federated", "pooled", "seconds/step", "MB", str(out)):
        assert part in result.stdout
    for part in ("A alone", "B alone", "federated", "pooled", "epoch 2/2"):
        assert part in result.stderr
    assert (out / "curves.png").is_file()


def test_the_demo_refuses_a_directory_in_use(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    assert "choose another --out or remove it" in one_error(veilgraph("demo", "--out", tmp_path))


def test_the_demo_takes_epochs_above_zero_only() -> None:
    assert "--epochs" in usage_error(veilgraph("demo", "--epochs", "0"))


def test_the_demo_is_the_job_in_the_jobs_folder() -> None:
    assert demo_settings() == read_job(JOBS / "digits.yaml")
    assert demo_settings(3).train.epochs == 3


def test_the_demo_shows_what_it_is_meant_to() -> None:
    model = vertical(demo_settings()).model
    assert model.initial.method == "collaborative"
    assert model.combine.strategy == "mean"
    assert model.combine.is_masked


def test_reproduce_names_the_tables_there_are(tmp_path: Path) -> None:
    error = one_error(veilgraph("reproduce", "table9", "--out", tmp_path))
    assert "'table9' does not exist; choose from table2" in error


def test_reproduce_hands_its_arguments_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def reproduce(table: str, **arguments: Any) -> str:
        arguments.pop("progress")("cora", 1, 2)
        asked.update(arguments, table=table)
        return "| a table |"

    monkeypatch.setattr(paper_tables, "reproduce", reproduce)
    result = veilgraph(
        "reproduce", "table2", "--seeds", "2", "--datasets", "cora, pubmed", "--rows", "VFGNN", "--out", tmp_path
    )
    assert result.stdout == "| a table |\n"
    assert asked == {
        "table": "table2",
        "seeds": 2,
        "datasets": ["cora", "pubmed"],
        "rows": "VFGNN",
        "out": tmp_path,
        "engine": "federated",
    }
