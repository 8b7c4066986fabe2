"""The audit of runs of all kinds: right rows for every attack, nothing left out without a word, and one clear error."""

import shutil
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from tests import nightly
from tests.cli.commands import one_error, usage_error, veilgraph
from tests.errors import refused
from tests.paradigms.organisations import exported, job
from tests.roles.federation import Settings, merge
from veilgraph.audit.audit import AuditPlan, audit, evidence_for
from veilgraph.audit.finding import AuditResult
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.protocol.evidence import Evidence
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.store.run_directory import RunDirectory

BASE: Settings = {"seed": 1, "data": {"dataset": "synthetic"}, "train": {"epochs": 2, "patience": None}}
INDIVIDUAL: Settings = {"model": {"dim": 8, "initial": {"method": "individual"}, "local": {"hops": 1}}}
HORIZONTAL: Settings = {"paradigm": "horizontal", "data": {"partition": {"overlap": 0.2}}, "model": {"dim": 8}}
QUICK = ("uniformity", "membership-gradient")


@pytest.fixture
def parties(tmp_path: Path) -> dict[str, Path]:
    return exported(tmp_path)


def trained(folder: Path, *changes: Settings) -> Path:
    train(parse_job(merge(BASE, *changes)), folder / "run", record_views=True)
    return folder / "run"


def words(result: AuditResult) -> str:
    return "\n".join(f"{each.adversary}: {each.attack}: {each.why}" for each in result.skipped)


def not_attacked(result: AuditResult, adversary: str) -> set[str]:
    """What is revealed to it that the catalogue has no attack on."""
    found = (each.attack.partition("any attack on ") for each in result.skipped if each.adversary == adversary)
    return {names for before, _, names in found if names and not before}


def embeddings(run: Path, party: str) -> list[Evidence]:
    return [each for each in evidence_for(RunDirectory.open(run), party) if each.sort == "embedding"]


@pytest.fixture(scope="module")
def individual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("individual"), INDIVIDUAL)


def test_the_server_of_a_horizontal_job_is_audited_and_the_holders_are_not_forgotten(tmp_path: Path) -> None:
    run = trained(tmp_path, HORIZONTAL, {"model": {"aggregate": "mean", "edges": "deduplicate"}})
    result = audit(run, AuditPlan(attacks=QUICK))
    found = embeddings(run, SERVER)
    layers = {f"{holder}'s embedding of layer {layer}" for holder in "AB" for layer in (1, 2)}
    assert {each.words for each in found} == layers
    for each in found:
        (holder,) = each.about
        assert each.rows is not None
        assert len(each.rows) == load_party(RunDirectory.open(run).party(holder).graph_path).num_nodes
    last = [each.value.value for each in result.findings if "layer 2" in each.evidence]
    assert last == [1, 1]
    assert "A: any attack on global-embeddings" in words(result)
    assert not_attacked(result, SERVER) == {"node-lists", "edge-lists", "pooled-degrees, single-degrees"}


@nightly
def test_a_secure_maximum_of_three_says_nothing_but_what_it_opens(tmp_path: Path) -> None:
    run = trained(tmp_path, HORIZONTAL, {"data": {"holders": 3}, "model": {"combine": "secure-max"}})
    result = audit(run, AuditPlan(attacks=QUICK))
    assert not result.failed
    assert any("bits" in each.evidence for each in result.findings)
    silent = [each.words for each in evidence_for(RunDirectory.open(run), "A") if each.sort == "hidden"]
    assert "shares of where the receiver attains the maximum from B" in silent
    assert "masked gradients of the shared weights, and the loss from C" in silent
    assert "server: any attack on embedding-maxima" in words(result)


def test_private_labels_are_left_out_with_a_word(tmp_path: Path) -> None:
    local = {"features": {"epsilon": 4.0, "low": -50, "high": 50}, "labels": {"epsilon": 2.0, "holder": "B"}}
    by_node = {"split": [0.5, 0.25, 0.25], "stratify": False}
    run = trained(tmp_path, {"paradigm": "node-dp", "release": local, "data": by_node})
    result = audit(run, AuditPlan(attacks=("attribute-release", "membership-shadow"), shadows=2))
    assert {(each.adversary, each.target) for each in result.findings} == {("A", "B"), ("client", "B")}
    assert "A: any attack on perturbed-labels" in words(result)
    assert "server: attribute-release: it has nothing for that" in words(result)


def test_what_several_rounds_open_is_attacked_or_named(tmp_path: Path) -> None:
    run = trained(
        tmp_path, INDIVIDUAL, {"model": {"rounds": 2, "combine": {"strategy": "degree-weighted", "masked": False}}}
    )
    found = audit(run, AuditPlan(adversaries=(SERVER, "B"), attacks=QUICK))
    evidence = [each.evidence for each in found.findings]
    assert any("combined embedding of round 1" in each for each in evidence)
    assert any("its own embedding of round 1" in each for each in evidence)
    assert not_attacked(found, SERVER) == {"pooled-degrees, single-degrees"}
    (both,) = [each for each in embeddings(run, SERVER) if each.words == "all embeddings side by side of round 2"]
    alone = [each.rows for each in embeddings(run, SERVER) if each.words.endswith("'s embedding of round 2")]
    assert both.rows is not None
    np.testing.assert_array_equal(both.rows, np.concatenate(cast(Any, alone), axis=1))


def test_of_a_view_that_was_cut_off_only_whole_sums_are_opened(individual: Path, tmp_path: Path) -> None:
    run = shutil.copytree(individual, tmp_path / "run")
    (file,) = RunDirectory.open(run).party(SERVER).views()
    whole = file.read_bytes()
    for length in np.linspace(0.4 * len(whole), len(whole), 40).astype(int):
        file.write_bytes(whole[:length])
        (found,) = embeddings(run, SERVER)
        assert found.rows is not None
        assert np.abs(found.rows).max() < 1


@nightly
def test_predictions_from_changed_tables_do_not_shift_rows(parties: dict[str, Path], tmp_path: Path) -> None:
    train(job(parties), tmp_path / "run", record_views=True)
    before = evidence_for(RunDirectory.open(tmp_path / "run"), SERVER), embeddings(tmp_path / "run", "A")
    asked = evidence_for(RunDirectory.open(tmp_path / "run"), "client")
    nodes = parties["B"].parent / "nodes.csv"
    head, *lines = nodes.read_text(encoding="utf-8").splitlines()
    nodes.write_text("\n".join([head, *reversed(lines)]) + "\n", encoding="utf-8")
    predict(tmp_path / "run", [])
    after = evidence_for(RunDirectory.open(tmp_path / "run"), SERVER), embeddings(tmp_path / "run", "A")
    for ours, theirs in zip(before, after, strict=True):
        rows = [(each.words, each.rows.tobytes()) for each in ours if each.rows is not None]
        assert rows
        assert rows == [(each.words, each.rows.tobytes()) for each in theirs if each.rows is not None]
    (again,) = evidence_for(RunDirectory.open(tmp_path / "run"), "client")
    assert again.rows is not None
    np.testing.assert_allclose(again.rows, cast(Any, asked[0].rows), atol=1e-5)


def test_rubbish_in_a_view_is_an_error(individual: Path, tmp_path: Path) -> None:
    run = shutil.copytree(individual, tmp_path / "run")
    (file,) = RunDirectory.open(run).party(SERVER).views()
    for rubbish, said in ((b"\xff" * 5000, "no readable view"), (b"", "has no message")):
        file.write_bytes(rubbish)
        result = veilgraph("audit", run, "--adversary", "server")
        assert result.exit_code == 3
        assert said in result.stderr


def test_what_is_no_whole_run_is_an_error_and_stays_as_it_is(individual: Path, tmp_path: Path) -> None:
    run = shutil.copytree(individual, tmp_path / "run")
    shutil.rmtree(run / "parties" / "B")
    assert "no data of B" in one_error(veilgraph("audit", run))
    assert not (run / "parties" / "B").exists()
    (run / "summary.json").unlink()
    assert "not a complete run" in one_error(veilgraph("audit", run))
    assert "not a run directory" in one_error(veilgraph("audit", tmp_path))


def test_names_and_limits_that_an_audit_cannot_have(individual: Path, tmp_path: Path) -> None:
    run = shutil.copytree(individual, tmp_path / "run")
    assert "link-similarity" in usage_error(veilgraph("audit", run, "--limit", "epsilon=0.9"))
    with refused(ConfigError, key="audit_limits", value="epsilon"):
        parse_job({"audit_limits": {"epsilon": 0.9}})
    text = (run / "job.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    content["data"] |= {"dataset": None, "graphs": None, "holders": ["A", "client"]}
    (run / "job.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert "'client'" in one_error(veilgraph("audit", run))
