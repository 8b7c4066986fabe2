"""What users meet of presets: check says what was chosen, train trains it, and what would not fit the ring is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import veilgraph as vg
from tests.cli.commands import one_error, veilgraph
from tests.tables.writing import write
from veilgraph.graph.party import save_party
from veilgraph.protocol.job_file import read_job

NODES = 40
SHORT = ("--set", "train.epochs=2", "--set", "model.dim=4")


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables as a bank and a shop have them, in units of their own, and a job that says nothing of how to learn."""
    folder = tmp_path_factory.mktemp("raw")
    ids = [f"c{place}" for place in range(NODES)]
    income = [20_000.37 + 1_500 * place for place in range(NODES)]  # cents, which whole numbers would hide
    columns: dict[str, dict[str, list[Any]]] = {
        "bank": {"income": income, "age": list(range(20, 20 + NODES))},
        "shop": {"visits": [place % 7 for place in range(NODES)]},
    }
    for name, each in columns.items():
        (folder / name).mkdir()
        fraud = {"fraud": ["yes" if place % 4 == 0 else "no" for place in range(NODES)]} if name == "bank" else {}
        write(folder / name / "nodes.csv", {"id": ids, **each, **fraud})
        write(folder / name / "edges.csv", {"a": ids[:-1], "b": ids[1:]})
        nodes: dict[str, Any] = {"file": "nodes.csv", "id": "id", "features": [{"columns": list(each)}]}
        if fraud:
            split = {"train": 0.5, "val": 0.25, "test": 0.25}
            nodes |= {"label": {"column": "fraud", "classes": ["no", "yes"]}, "split": split}
        party = {"party": name, "nodes": nodes, "edges": [{"file": "edges.csv", "source": "a", "target": "b"}]}
        (folder / name / "party.yaml").write_text(yaml.safe_dump(party), encoding="utf-8")
    parties = {name: str(folder / name / "party.yaml") for name in columns}
    (folder / "job.yaml").write_text(yaml.safe_dump({"data": {"parties": parties}}), encoding="utf-8")
    return folder


def test_check_says_what_the_preset_chose_and_why(job: Path) -> None:
    said = veilgraph("check", job)
    assert said.exit_code == 0, said.output
    assert "preset auto chose data.feature_scaling: standard, for columns have units" in said.stdout
    assert "train.epochs" not in said.stdout  # the job says them
    chosen = veilgraph("check", job, "--set", "data.feature_scaling=row").stdout
    assert "data.feature_scaling" not in chosen
    assert "preset auto chose model.initial.learning_rate: 10.0" in chosen  # what is chosen follows --set
    paper = veilgraph("check", job, "--set", "preset=paper")
    assert "preset paper chose nothing" in paper.stdout
    assert "preset auto" not in paper.stdout


def test_raw_tables_train_as_they_are(raw: Path, tmp_path: Path) -> None:
    said = veilgraph("check", raw / "job.yaml")
    assert said.exit_code == 0, said.output
    assert "preset auto chose data.feature_scaling: standard" in said.stdout
    assert "is a valid job" in said.stdout
    trained = veilgraph("train", raw / "job.yaml", "--out", tmp_path / "run", *SHORT)
    assert trained.exit_code == 0, trained.output
    stored = yaml.safe_load((tmp_path / "run" / "job.yaml").read_text(encoding="utf-8"))
    assert (stored["preset"], stored["data"]["feature_scaling"]) == ("auto", "standard")
    assert stored["train"]["class_weights"] == "balanced"
    assert read_job(tmp_path / "run" / "job.yaml").model_dump(mode="json") == stored


def test_check_refuses_what_train_would(raw: Path, tmp_path: Path) -> None:
    unscaled = ("--set", "data.feature_scaling=none")
    refused = one_error(veilgraph("check", raw / "job.yaml", *unscaled))
    trained = veilgraph("train", raw / "job.yaml", "--out", tmp_path / "run", *unscaled, *SHORT)
    assert trained.exit_code == 1
    for said in (refused, trained.stderr):
        assert "bank's features are too large for the ring" in said
        assert f" of {NODES} nodes too large" in said
        assert "data.feature_scaling: standard" in said


def test_a_masked_sum_is_checked_too(job: Path, tmp_path: Path) -> None:
    summed = ("--set", "data.feature_scaling=none", "--set", "model.initial.method=secure-sum")
    assert veilgraph("check", job, *summed).exit_code == 0
    large = (*summed, "--set", "model.initial.init_std=1e6")
    refused = one_error(veilgraph("check", job, *large))
    trained = veilgraph("train", job, "--out", tmp_path / "run", *large)
    assert trained.exit_code == 1
    for said in (refused, trained.stderr):
        assert "'s features are too large for the ring: its part of h^0" in said


def test_what_others_data_decide_is_said_and_not_checked(raw: Path, tmp_path: Path) -> None:
    apart = ("--set", "data={holders: [bank, shop], label_holder: bank}")
    for method, known in (("collaborative", False), ("individual", True)):
        said = veilgraph("check", raw / "job.yaml", *apart, "--set", f"model.initial.method={method}")
        assert said.exit_code == 0, said.output
        assert ("each holder finds out of its own when the job begins" in said.stdout) is not known
    job, parties = tmp_path / "sealed.yaml", {}
    for name in ("bank", "shop"):
        party = yaml.safe_load((raw / name / "party.yaml").read_text(encoding="utf-8"))
        parties[name] = str(raw / name / "sealed.yaml")
        text = yaml.safe_dump({**party, "limits": {"leakage": ["predicted-classes"]}})
        Path(parties[name]).write_text(text, encoding="utf-8")
    for unit_rows in (True, False):
        content = {"paradigm": "sealed", "data": {"parties": parties}, "model": {"unit_rows": unit_rows}}
        job.write_text(yaml.safe_dump(content), encoding="utf-8")
        said = veilgraph("check", job)
        assert said.exit_code == 0, said.output
        assert ("follows from all holders' nodes and edges together" in said.stdout) is not unit_rows


def test_sealed_columns_are_checked_on_graphs(tmp_path: Path) -> None:
    job = tmp_path / "sealed.yaml"
    content = {"paradigm": "sealed", "data": {"dataset": "synthetic"}, "train": {"epochs": 2}}
    job.write_text(yaml.safe_dump({**content, "model": {"unit_rows": False}}), encoding="utf-8")
    assert veilgraph("check", job).exit_code == 0
    graphs = {}
    for graph in vg.simulate.vertically(vg.datasets.load("synthetic"), 2, label_holder="A"):
        graphs[graph.party] = str(tmp_path / f"{graph.party}.safetensors")
        save_party(replace(graph, features=graph.features.to_dense() * 1e6), Path(graphs[graph.party]))
    job.write_text(yaml.safe_dump({**content, "data": {"graphs": graphs}, "model": {"unit_rows": False}}))
    assert "the ring holds 8,192: set model.unit_rows to true" in one_error(
        veilgraph("check", job, "--set", "data.feature_scaling=none")
    )


def test_one_large_number_is_found(raw: Path) -> None:
    """What decides is the longest row, and whose it is."""
    shop = raw / "shop" / "nodes.csv"
    before = shop.read_text(encoding="utf-8")
    declared = {"columns": ["income", "age"], "scale": {"low": 0, "high": 100_000}}
    bank = raw / "bank" / "party.yaml"
    party = yaml.safe_load(bank.read_text(encoding="utf-8"))
    kept = yaml.safe_dump(party)
    party["nodes"]["features"] = [declared]
    bank.write_text(yaml.safe_dump(party), encoding="utf-8")
    try:
        assert veilgraph("check", raw / "job.yaml", "--set", "data.feature_scaling=none").exit_code == 0
        assert "far out of range" not in veilgraph("data", "check", bank).stdout
        write(shop, {"id": [f"c{place}" for place in range(NODES)], "visits": [0.37, 30_000.37, *[1.5] * (NODES - 2)]})
        refused = one_error(veilgraph("check", raw / "job.yaml", "--set", "data.feature_scaling=none"))
        assert "shop's features" in refused
        assert f"at 1 of {NODES} nodes" in refused
        own = ("--set", "model.initial.method=individual", "--set", "data.feature_scaling=none")
        assert veilgraph("check", raw / "job.yaml", *own).exit_code == 0  # nothing of it goes through the ring
    finally:
        shop.write_text(before, encoding="utf-8")
        bank.write_text(kept, encoding="utf-8")


def test_a_party_file_names_columns_far_out_of_range(raw: Path) -> None:
    said = veilgraph("data", "check", raw / "bank" / "party.yaml").stdout
    assert "far out of range: income; " in said
    assert "far out of range" not in veilgraph("data", "check", raw / "shop" / "party.yaml").stdout


def test_graphs_of_a_data_set_are_looked_at_too(job: Path) -> None:
    fine = ("--set", "data.feature_scaling=none", "--set", "model.initial.gradient_bits=28")
    assert veilgraph("check", job, *fine).exit_code == 0
    error = one_error(veilgraph("check", job, *fine[:2], "--set", "model.initial.init_std=500"))
    assert "A's features are too large for the ring" in error


def test_a_file_that_breaks_a_rule_is_mended_by_what_replaces_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"data": {"dataset": "synthetic"}, "train": {"epochs": 0}}))
    assert "train.epochs" in one_error(veilgraph("check", path))
    assert veilgraph("check", path, "--set", "train.epochs=2").exit_code == 0
    assert "train.epochs" in one_error(veilgraph("check", path, "--set", "train.epochs=-1"))
    assert "model.nothing" in one_error(veilgraph("check", path, "--set", "model.nothing=1", "--set", "train.epochs=2"))
