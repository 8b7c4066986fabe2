"""A horizontal job over exported tables, by commands alone."""

from pathlib import Path

import pytest

from tests.cli.commands import one_error, usage_error, veilgraph


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "parts"
    divided = ["--paradigm", "horizontal", "--holders", "2", "--overlap", "0.2"]
    result = veilgraph("data", "export", "synthetic", "--out", out, *divided)
    assert result.exit_code == 0, result.output
    return out


def test_from_tables_to_predictions(tables: Path, tmp_path: Path) -> None:
    checked = veilgraph("check", tables / "job.yaml")
    assert "Party B" in checked.stdout
    assert "is a valid job" in checked.stdout
    run = tmp_path / "run"
    short = ["--set", "train.epochs=3", "--set", "model.dim=4"]
    read = veilgraph("data", "align", tables / "job.yaml", "--out", run, *short)
    assert read.exit_code == 0, read.output
    assert "nodes\n" in read.stdout
    assert "common" not in read.stdout
    trained = veilgraph("resume", run)
    assert trained.exit_code == 0, trained.output
    own = (tables / "B" / "nodes.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0].strip('"')
    predicted = veilgraph("predict", run, "--ids", own)
    assert predicted.stdout.splitlines()[1].startswith(f"{own},")
    assert "'x' (1 of 1) is not among the" in one_error(veilgraph("predict", run, "--ids", "x"))
    report = veilgraph("report", run)
    assert report.exit_code == 0, report.output
    assert "hashes of feature" in report.stdout


def test_what_a_check_finds(tables: Path) -> None:
    assert "no differential privacy" in one_error(veilgraph("budget", tables / "job.yaml"))
    names = veilgraph("train", tables / "network-job.yaml")
    assert "names alone are for jobs across organisations" in one_error(names)
    assert "Invalid value" in usage_error(veilgraph("data", "export", "synthetic", "--paradigm", "other"))


def test_columns_that_differ_are_found_before_anything_is_sent(tables: Path) -> None:
    party_file = tables / "B" / "party.yaml"
    whole = party_file.read_text(encoding="utf-8")
    try:
        party_file.write_text(whole.replace("x*", "x000*"), encoding="utf-8")
        said = one_error(veilgraph("check", tables / "job.yaml"))
        assert "B has 9 feature columns and A 24; all holders of this job have the same" in said
    finally:
        party_file.write_text(whole, encoding="utf-8")
