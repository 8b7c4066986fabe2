"""What users meet of presets: check says what was chosen, train trains it, and what would not fit the ring is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import veilgraph as vg
from tests import nightly
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


@nightly
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


def test_check_refuses_what_train_would(raw: Path, job: Path, tmp_path: Path) -> None:
    unscaled = ("--set", "data.feature_scaling=none")
    summed = (*unscaled, "--set", "model.initial.method=secure-sum")
    large = (*summed, "--set", "model.initial.init_std=1e6")
    assert veilgraph("check", job, *summed).exit_code == 0
    for name, file, options, parts in (
        ("first", raw / "job.yaml", unscaled, ("bank's features", f" of {NODES} nodes", "feature_scaling: standard")),
        ("second", job, large, ("'s features", "its part of h^0")),
    ):
        checked = one_error(veilgraph("check", file, *options))
        trained = veilgraph("train", file, "--out", tmp_path / name, *options, *SHORT)
        assert trained.exit_code == 1
        for said in (checked, trained.stderr):
            assert all(part in said for part in ("too large for the ring", *parts))


@nightly
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
        text = yaml.safe_dump({**party, "limits": {"leakage": ["predicted-classes", "sealed-scores"]}})
        Path(parties[name]).write_text(text, encoding="utf-8")
    content = {"paradigm": "sealed", "data": {"parties": parties}, "train": {"epochs": 4}}
    job.write_text(yaml.safe_dump(content), encoding="utf-8")
    said = veilgraph("check", job)
    assert said.exit_code == 0, said.output


@nightly
def test_sealed_columns_of_any_size_fit_and_a_rate_that_does_not_is_found(tmp_path: Path) -> None:
    job, graphs = tmp_path / "sealed.yaml", {}
    for graph in vg.simulate.vertically(vg.datasets.load("synthetic"), 2, label_holder="A"):
        graphs[graph.party] = str(tmp_path / f"{graph.party}.safetensors")
        save_party(replace(graph, features=graph.features.to_dense() * 1e6), Path(graphs[graph.party]))
    content = {"paradigm": "sealed", "data": {"graphs": graphs}, "train": {"epochs": 4}}
    job.write_text(yaml.safe_dump(content), encoding="utf-8")
    for scaling in ("none", "standard"):
        scaled = ("check", job, "--set", f"data.feature_scaling={scaling}")
        assert veilgraph(*scaled).exit_code == 0
    wild = ("--set", "train.learning_rate=65536", "--set", "train.weight_decay=0")
    assert "has left the range of the ring" in one_error(veilgraph(*scaled, *wild))


def test_check_of_tables_says_what_noise_leaves_of_votes(raw: Path) -> None:
    noise = {
        "paradigm": "sealed",
        "train.epochs": 4,
        "model.edge_slots": 128,
        "privacy": "{unit: edge, epsilon_total: 4}",
    }
    said = veilgraph("check", raw / "job.yaml", *(word for key in noise for word in ("--set", f"{key}={noise[key]}")))
    assert said.exit_code == 1  # the shop's limits do not say that it accepts votes
    assert "noise leaves at most 95% of what votes add without it (2.4 votes a node by model.edge_slots" in said.stdout
