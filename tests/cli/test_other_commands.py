import re
from pathlib import Path
from typing import Any

import pytest
from typer import main

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph import __version__
from veilgraph.cli import app
from veilgraph.protocol.job_file import read_job
from veilgraph.samples.shipped import demo_settings, shipped_job, with_overrides

GROUPS = {
    "": (
        "schema", "train", "resume", "compare", "demo", "predict", "explain", "watch", "audit", "report", "check",
        "budget", "init", "embed", "tune", "data",
        "net", "cert",
    ),
    "data": ("check", "align", "export", "accounts", "init", "export-trajectories"),
    "net": (
        "init", "provision", "join", "submit", "status", "logs", "stop", "serve", "consent", "dispute",
        "machine",
    ),
    "cert": ("request", "sign", "install", "revoke", "passphrase"),
}  # fmt: skip
COMMANDS = [f"{group} {name}".strip() for group, names in GROUPS.items() for name in names if name not in GROUPS]
JOBS = Path(__file__).parents[2] / "jobs"


def test_the_version_is_printed() -> None:
    assert veilgraph("--version").stdout == f"veilgraph {__version__}\n"


@pytest.mark.parametrize("group", GROUPS)
def test_help_lists_every_command(group: str) -> None:
    text = veilgraph(*group.split(), "--help").stdout
    assert re.findall(r"^│ ([a-z][a-z-]*)  ", text, re.MULTILINE) == list(GROUPS[group])


@nightly
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str) -> None:
    assert f"Example: veilgraph {command} " in veilgraph(*command.split(), "--help").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_parameter_has_words_of_its_own(command: str) -> None:
    found: Any = main.get_command(app)
    for name in command.split():
        found = found.commands[name]
    told = [getattr(each, "help", None) for each in found.params if each.name != "help"]
    assert all(told)
    assert len({*told}) == len(told)
    assert "Options:" not in (found.help or "")


def test_an_option_is_called_as_its_words_say() -> None:
    text = veilgraph("audit", "--help").stdout
    called = re.findall(r"--(?:adversary|attack|limit) +([A-Z\[\]=:]+)", text)
    assert called == ["NAME", "NAME", "ATTACK[:FIGURE]=MOST"]
    assert "{RUN}" in text


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


@nightly
def test_the_second_demo_ranks_as_its_job_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = with_overrides(shipped_job("payments"), {"data.payments": {"customers": 2000, "transfers": 20_000}})
    monkeypatch.setattr("veilgraph.samples.shipped.shipped_job", {"payments": small}.__getitem__)
    result = veilgraph("demo", "payments", "--epochs", "2", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"Together the holders reach a test AUC of 0\.\d+, beside 0\.\d+ A alone,", " ".join(result.stdout.split())
    )
    for part in ("C alone", "federated", "pooled", "test AUC"):
        assert part in result.stdout
    assert "accuracy" not in result.stdout
    assert "'maths' is not one of" in usage_error(veilgraph("demo", "maths"))


def test_the_demo_of_banks_says_what_each_of_them_gains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = with_overrides(shipped_job("banks"), {"data.payments": {"customers": 2000, "transfers": 20_000}})
    monkeypatch.setattr("veilgraph.samples.shipped.shipped_job", {"banks": small}.__getitem__)
    result = veilgraph("demo", "banks", "--epochs", "2", "--out", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    own = r"on its own nodes of A 0\.\d+, B 0\.\d+, C 0\.\d+, beside 0\.\d+ A alone, 0\.\d+ B alone,"
    assert re.search(own, " ".join(result.stdout.split()))
    assert "Together the holders" not in result.stdout


def test_the_demo_is_the_job_in_the_jobs_folder() -> None:
    assert demo_settings() == read_job(JOBS / "digits.yaml")
    assert demo_settings(epochs=3).train.epochs == 3
    for name in ("payments", "banks"):
        assert demo_settings(name) == read_job(JOBS / f"{name}.yaml")
