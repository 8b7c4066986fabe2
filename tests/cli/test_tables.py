"""From exported tables to predictions and the record, by commands alone."""

import csv
import io
import json
import shutil
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.commands import one_error, usage_error, veilgraph
from veilgraph.cli.data import show_party
from veilgraph.graph.party import load_party
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.messages import all_revelations
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory
from veilgraph.tables.describe import describe_party

SHORT = ["--set", "train.epochs=3", "--set", "model.dim=4"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "organisations"
    result = veilgraph("data", "export", "synthetic", "--out", out, "--holders", "2", "--overlap", "0.8")
    assert result.exit_code == 0, result.output
    assert "veilgraph data check" in result.stdout
    return out


@pytest.fixture(scope="module")
def trained(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "run"
    aligned = veilgraph("data", "align", tables / "job.yaml", "--out", out, *SHORT)
    assert aligned.exit_code == 0, aligned.output
    assert "of which 320 are common to all holders" in aligned.stdout
    result = veilgraph("resume", out)
    assert result.exit_code == 0, result.output
    return out


def test_check_shows_a_party_file(tables: Path) -> None:
    result = veilgraph("data", "check", tables / "A" / "party.yaml")
    assert result.exit_code == 0, result.output
    assert "Party A" in result.stdout
    assert "is a valid party file" in result.stdout
    both = veilgraph("check", tables / "job.yaml")
    assert "Party A" in both.stdout
    assert "Party B" in both.stdout
    assert "is a valid job" in both.stdout
    assert "is refused" not in both.stdout
    of_parties = yaml.safe_load((tables / "job.yaml").read_text(encoding="utf-8"))["data"]
    private = {
        "paradigm": "node-dp",
        "data": {key: of_parties[key] for key in ("parties", "label_holder")},
        "release": {"features": {"epsilon": 1, "low": -50, "high": 50}},
        "privacy": {"unit": "edge", "epsilon_total": 4, "delta": 0.1},
    }
    (tables / "private.yaml").write_text(yaml.safe_dump(private), encoding="utf-8")
    refused = veilgraph("check", tables / "private.yaml")
    assert refused.exit_code == 1
    assert "privacy.delta=0.1 with 320 common nodes" in refused.stderr


def test_a_training_refused_before_data_are_sent_leaves_nothing(
    tables: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copied = Path(shutil.copytree(tables, tmp_path / "tables"))
    options = ("--set", f"data.parties.A={copied}/A/party.yaml", "--set", f"data.parties.B={copied}/B/party.yaml")
    nodes = copied / "B" / "nodes.csv"
    first, second, rest = nodes.read_text(encoding="utf-8").split("\n", maxsplit=2)
    nodes.write_text("\n".join((first, second.replace(",", ",abc", 1), rest)), encoding="utf-8")
    for command in (("train",), ("data", "align"), ("train", "--record-views", "--processes")):
        said = veilgraph(*command, copied / "job.yaml", "--out", tmp_path / "run", *SHORT, *options)
        assert said.exit_code == 1
        assert "nodes.csv" in said.stderr
        assert not (tmp_path / "run").exists()
        assert not caplog.messages
    shutil.copy(tables / "B" / "nodes.csv", nodes)
    party = copied / "B" / "party.yaml"
    limits = yaml.safe_dump({"limits": {"leakage": [*all_revelations()], "min_common_nodes": 9999}})
    party.write_text(party.read_text(encoding="utf-8") + limits, encoding="utf-8")
    said = veilgraph("train", copied / "job.yaml", "--out", tmp_path / "run", *SHORT, *options)
    assert "limits.min_common_nodes" in said.stderr
    assert any(f"{tmp_path / 'run'} records what parties had sent" in each for each in caplog.messages)
    assert (tmp_path / "run" / "parties" / "B" / "disclosures.jsonl").is_file(), "ids were compared by then"


@pytest.mark.parametrize("file", ["sending.json", "ledger.jsonl", "checkpoints/epoch-00001.safetensors"])
def test_what_was_paid_trained_or_is_being_sent_is_never_discarded(file: str, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", parse_job({}))
    kept = run.party_path("A") / file
    kept.parent.mkdir(parents=True)
    kept.write_text("begun\npaid\n")
    run.discard_unsent()
    assert kept.is_file()
    kept.unlink()
    run.discard_unsent()
    assert not run.path.exists()


def test_check_counts_common_nodes_and_refuses_what_training_would(tables: Path, tmp_path: Path) -> None:
    assert "with the 320 nodes that are common, A will send about" in veilgraph("check", tables / "job.yaml").stdout
    copied = Path(shutil.copytree(tables, tmp_path / "tables"))
    job = {
        "paradigm": "sealed",
        "data": {"parties": {name: str(copied / name / "party.yaml") for name in "AB"}, "label_holder": "A"},
        "model": {"network": "linear", "edge_slots": 4096, "max_degree": 511},
        "train": {"epochs": 1, "patience": None, "select_by": "last"},
        "privacy": {"unit": "edge", "epsilon_total": 4},
    }
    (copied / "job.yaml").write_text(yaml.safe_dump(job))
    party, known = copied / "A" / "party.yaml", [*all_revelations()]
    content = yaml.safe_load(party.read_text(encoding="utf-8"))
    other = copied / "B" / "party.yaml"
    other.write_text(yaml.safe_dump(yaml.safe_load(other.read_text("utf-8")) | {"limits": {"leakage": known}}))
    pairs = describe_party(read_party_settings(party), party.parent).pairs
    most = 1 << (pairs - 1).bit_length()
    cases = {"max_delta": 1 / most, "min_common_nodes": 321}, {"max_delta": 0.9 / most}, {"max_delta": 1 / most}
    for place, own in enumerate(cases):
        limits = {
            "leakage": known,
            "max_epsilon": 9,
            "epsilon_unit": "edge",
            "epsilon_neighbours": "replacement",
            "most_neighbours": 200,
            **own,
        }
        party.write_text(yaml.safe_dump(content | {"limits": limits}))
        checked = veilgraph("check", copied / "job.yaml")
        trained = veilgraph("train", copied / "job.yaml", "--out", tmp_path / f"run{place}")
        assert (checked.exit_code, trained.exit_code) == ((0, 0) if place == 1 else (1, 1)), checked.output
        named = {0: "limits.min_common_nodes=321", 2: f"limits.max_delta={1 / most:g}"}.get(place, "")
        assert named in checked.stderr
        assert named in trained.stderr
    graph = load_party(tmp_path / "run1" / "parties" / "A" / "graph.safetensors")
    assert pairs == len({tuple(sorted(pair)) for pair in graph.edge_index.T.tolist()})


def test_check_and_budget_make_no_connection(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: socket.socket, *_: object) -> None:
        raise AssertionError("something was to leave this machine")

    for way in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, way, refused)
    with socket.socket() as other, pytest.raises(AssertionError, match="was to leave"):
        other.connect(("127.0.0.1", 9))
    for command, file in ((("data", "check"), "A/party.yaml"), (("check",), "job.yaml"), (("budget",), "job.yaml")):
        assert veilgraph(*command, tables / file).exit_code == 0


def test_check_names_what_is_wrong_with_a_party_file(tables: Path, tmp_path: Path) -> None:
    broken = tmp_path / "party.yaml"
    broken.write_text((tables / "A" / "party.yaml").read_text(encoding="utf-8").replace("id: id", "id: name"), "utf-8")
    assert "nodes.csv" in one_error(veilgraph("data", "check", broken))
    for options in ((), ("--set", "name=other")):
        said = one_error(veilgraph("check", broken, *options))
        assert "party='A'" in said
        assert "veilgraph data check" in said
    broken.write_text("party: A\n", encoding="utf-8")
    assert "source_holder and target_holder" in one_error(veilgraph("data", "check", broken))


def test_predict_by_id(trained: Path, tmp_path: Path) -> None:
    everything = veilgraph("predict", trained)
    assert everything.exit_code == 0, everything.output
    header, *lines = everything.stdout.splitlines()
    assert header.startswith("id,class,p_0,p_1")
    assert len(lines) == 320
    ids = [line.split(",")[0] for line in lines[:3]]
    file = tmp_path / "ids"
    file.write_text("\n".join(ids) + "\n", encoding="utf-8")
    for arguments in (["--ids", ",".join(ids)], ["--ids-file", file]):
        some = veilgraph("predict", trained, *arguments)
        assert [line.split(",")[0] for line in some.stdout.splitlines()[1:]] == ids
    assert "is not among the 320 nodes" in one_error(veilgraph("predict", trained, "--ids", "nobody"))
    file.write_text("'=nobody\n", encoding="utf-8")  # as a table has it, of which a spreadsheet runs no cell
    assert one_error(veilgraph("predict", trained, "--ids-file", file)).startswith("ids: '=nobody' (1 of 1)")
    assert "nodes or ids" in usage_error(veilgraph("predict", trained, "--ids", "a", "--nodes", "1"))
    assert "--ids or --ids-file" in usage_error(veilgraph("predict", trained, "--ids", "a", "--ids-file", file))


def test_report_says_what_was_sent_and_why_it_may_leave(trained: Path, tmp_path: Path) -> None:
    result = veilgraph("report", trained)
    assert result.exit_code == 0, result.output
    assert "Disclosures" in result.stdout
    assert "Why it may leave" in result.stdout
    assert "blinding" in result.stdout
    assert "is not a run directory" in one_error(veilgraph("report", tmp_path))


def test_export_refuses_what_it_cannot_do(tables: Path, tmp_path: Path) -> None:
    assert "exists" in one_error(veilgraph("data", "export", "synthetic", "--out", tables))
    assert "overlap=1.5" in one_error(
        veilgraph("data", "export", "synthetic", "--out", tmp_path / "a", "--overlap", "1.5")
    )
    assert "data.dataset='karate'" in one_error(veilgraph("data", "export", "karate", "--out", tmp_path / "b"))
    assert not (tmp_path / "a").exists()


def test_export_of_payments(tmp_path: Path) -> None:
    sizes = {"customers": 600, "transfers": 6_000, "laundering": 0.15, "overlap": 0.3}
    changes = [part for key, value in sizes.items() for part in ("--set", f"data.payments.{key}={value}")]
    result = veilgraph("data", "export", "payments", "--out", tmp_path / "world", "--format", "parquet", *changes)
    assert result.exit_code == 0, result.output
    assert f"veilgraph train {tmp_path / 'world' / 'sealed.yaml'}" in result.stdout
    checked = veilgraph("data", "check", tmp_path / "world" / "shop" / "party.yaml")
    assert "is a valid party file" in checked.stdout
    export = ("data", "export", "payments", "--out", tmp_path / "other")
    for given in (("--holders", "2"), ("--overlap", "0.8"), ("--paradigm", "vertical")):
        assert f"Invalid value for {given[0]}" in usage_error(veilgraph(*export, *given))
    assert "Invalid value for --set" in usage_error(veilgraph(*export, "--set", "train.epochs=3"))
    assert "payments.banks=999" in one_error(veilgraph(*export, "--set", "data.payments.banks=999"))


def test_a_party_file_is_drafted_checked_and_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "customers.csv").write_text("id;x\nu;1.5\nv;2.5\n", encoding="utf-8")
    (tmp_path / "calls.csv").write_text("caller,callee\nu,v\n", encoding="utf-8")
    out = tmp_path / "party.yaml"
    tables = (tmp_path / "customers.csv", tmp_path / "calls.csv")
    result = veilgraph("data", "init", *tables, "--out", out, "--party", "shop")
    assert result.exit_code == 0, result.output
    assert "to decide: nodes.id" in result.stdout
    checked = veilgraph("data", "check", out)
    assert "is a valid party file" in checked.stdout, checked.output
    assert "delimiter ';'" in " ".join(checked.stdout.split())
    before = out.read_bytes()
    assert "exists" in one_error(veilgraph("data", "init", *tables, "--out", out))
    assert out.read_bytes() == before
    assert "party='server'" in one_error(
        veilgraph("data", "init", *tables, "--out", tmp_path / "p", "--party", "server")
    )
    assert not (tmp_path / "p").exists()


_SYMBOLS = {"paradigm": "averaging", "averaging": {"symbols": {}}, "label_privacy": {"epsilon": 2}}
_OF_NODES = {"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}}


@pytest.mark.parametrize(
    ("job", "scales", "ranges"),
    [
        (None, True, True),
        ({"data": {"holders": 2, "feature_scaling": "none"}}, True, True),
        ({"data": {"holders": 2, "feature_scaling": "standard"}}, False, False),
        (_SYMBOLS, False, False),
        (_OF_NODES, False, True),
    ],
    ids=["any job", "as they are", "standard", "symbols", "of nodes"],
)
def test_columns_far_out_of_range_are_named_with_what_the_job_takes(
    job: dict[str, Any] | None, scales: bool, ranges: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that standardises at home, or refuses standard, must not be told to set it."""
    (tmp_path / "nodes.csv").write_text("id,x\nu,1e7\nv,-2e7\n", encoding="utf-8")
    party = {"party": "A", "nodes": {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x"]}]}}
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(party), encoding="utf-8")
    show_party(tmp_path / "party.yaml", None if job is None else parse_job(job))
    said = capsys.readouterr().out
    assert ("have it scale" in said) == scales
    assert ("declare their range" in said) == ranges


# The same of a horizontal job


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "parts"
    divided = ["--paradigm", "horizontal", "--holders", "2", "--overlap", "0.2"]
    result = veilgraph("data", "export", "synthetic", "--out", out, *divided)
    assert result.exit_code == 0, result.output
    return out


def test_from_tables_of_own_nodes_to_predictions(parts: Path, tmp_path: Path) -> None:
    checked = veilgraph("check", parts / "job.yaml")
    assert "Party B" in checked.stdout
    assert "is a valid job" in checked.stdout
    run = tmp_path / "run"
    read = veilgraph("data", "align", parts / "job.yaml", "--out", run, *SHORT)
    assert read.exit_code == 0, read.output
    assert "nodes\n" in read.stdout
    assert "common" not in read.stdout
    trained = veilgraph("resume", run)
    assert trained.exit_code == 0, trained.output
    shown = veilgraph("predict", run).stdout
    of_ids = Counter(row["id"] for row in csv.DictReader(io.StringIO(shown)))
    ids = {max(of_ids, key=of_ids.__getitem__), min(of_ids, key=of_ids.__getitem__)}
    predicted = veilgraph("predict", run, "--ids", ",".join(ids)).stdout.splitlines()
    assert len(predicted) == 4, "one of both holders, one of one"
    assert set(predicted[1:]) == {line for line in shown.splitlines() if line.split(",")[1] in ids}
    everybody = list(csv.DictReader(io.StringIO(shown)))
    tables = {each.parent.name: each.read_text(encoding="utf-8") for each in parts.glob("*/nodes.csv")}
    written = {(holder, row["id"]) for holder, text in tables.items() for row in csv.DictReader(io.StringIO(text))}
    assert {(row["holder"], row["id"]) for row in everybody} == written
    assert [*dict.fromkeys(row["holder"] for row in everybody)] == ["A", "B"], "the label holder's are first"
    assert len(everybody) == len(written) > len({row["id"] for row in everybody}), "a node of two holders stands twice"
    of_b = load_predictions(RunDirectory.open(run).party("B")).csv().splitlines()[1:]
    assert [f"B,{line}" for line in of_b] == [line for line in shown.splitlines() if line.startswith("B,")]
    told = json.loads(veilgraph("predict", run, "--json").stdout)["predictions"]
    assert [(each["holder"], each["id"]) for each in told] == [(row["holder"], row["id"]) for row in everybody]
    assert "'x' (1 of 1) is not among the" in one_error(veilgraph("predict", run, "--ids", "x"))
    report = veilgraph("report", run)
    assert report.exit_code == 0, report.output
    assert "hashes of feature" in report.stdout


def test_what_jobs_of_own_nodes_cannot_be(parts: Path) -> None:
    assert "no differential privacy" in one_error(veilgraph("budget", parts / "job.yaml"))
    names = veilgraph("train", parts / "network-job.yaml")
    assert "names alone are for jobs across organisations" in one_error(names)
    assert "Invalid value" in usage_error(veilgraph("data", "export", "synthetic", "--paradigm", "other"))


def test_columns_that_differ_are_found_before_anything_is_sent(parts: Path) -> None:
    party_file = parts / "B" / "party.yaml"
    whole = party_file.read_text(encoding="utf-8")
    try:
        party_file.write_text(whole.replace("x*", "x000*"), encoding="utf-8")
        said = one_error(veilgraph("check", parts / "job.yaml"))
        assert "B has 9 feature columns and A 24; all holders of this job have the same" in said
    finally:
        party_file.write_text(whole, encoding="utf-8")
