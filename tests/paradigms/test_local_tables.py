"""Paradigm local on three organisations' own tables: one has the edges, the others their customers' features."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import about, nightly
from tests.errors import refused
from tests.paradigms.exported import edited
from tests.paradigms.local import disclosed, kept, sent
from tests.paradigms.local_tables import CLASSES, COMMON, OWN, party_file, tables
from tests.paradigms.private import entries, kinds_sent, paid, refused_by_all
from veilgraph.core.errors import BudgetSpent, ConfigError, DataError
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import align, predict, train
from veilgraph.samples.shipped import with_overrides

ONE = Counter(features=1)


def edit(settings: JobSettings, party: str, **keys: Any) -> None:
    path = party_file(settings, party)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys), encoding="utf-8")


def change_table(settings: JobSettings, party: str, value: float = 0.5) -> None:
    """One other value in one row."""
    with edited(party_file(settings, party).parent / "nodes.csv") as rows:
        rows[0][list(rows[0])[1]] = str(value)


@nightly
def test_aligned_trained_and_predicted_with_one_release(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    run = train(settings, tmp_path / "run")
    alignment = {"hello", "blinded_ids", "id_tokens"}
    assert kinds_sent(run.path, "A") == {*alignment, "row_order"}
    assert kinds_sent(run.path, "B") == kinds_sent(run.path, "C") == {*alignment, "perturbed_features"}
    assert kinds_sent(run.path, SERVER) == {"hello", "common_ids"}
    for party in ("A", "B", "C", SERVER):
        assert {record.kind for record in disclosed(run.path, party)} == kinds_sent(run.path, party)
    before = run.predictions
    assert before.ids is not None
    assert sorted(before.ids) == [f"n{node:02}" for node in range(COMMON)]
    assert before.csv().splitlines()[0] == "id,class,p_cat,p_dog,p_emu"
    assert all(line.split(",")[1] in CLASSES for line in before.csv().splitlines()[1:])
    again = predict(run.path, ids=["n07", "n03"])
    assert again.ids == ("n07", "n03")
    assert torch.equal(again.probabilities, before.of_ids(["n07", "n03"]).probabilities)
    for party in ("B", "C"):
        assert paid(run.path, party) == sent(run.path, party) == ONE
    assert kept(run.path)["features/C"].shape == (COMMON, 4)


def test_a_learner_of_edges_and_labels_alone_says_that_it_has_no_features(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    file = party_file(settings, "A")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["nodes"]["features"] = []
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    run = train(settings, tmp_path / "run")
    graph = load_party(run.path / "parties" / "A" / "graph.safetensors")
    assert graph.features.tolist() == [[0.0]] * (COMMON + OWN)
    assert run.summary["alone"]["A"]["alone"]["val_accuracy"] is not None
    assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)


def test_labels_of_another_organisation(tmp_path: Path) -> None:
    private = {"release": {"labels": {"holder": "C", "epsilon": 2.0}}}
    run = train(tables(tmp_path, private, labels_at="C"), tmp_path / "run")
    assert paid(run.path, "C") == Counter(features=1, labels=1)
    assert paid(run.path, "B") == ONE
    assert run.predictions.csv().splitlines()[0].startswith("id,class,p0,")
    assert kept(run.path)["labels"].shape == (COMMON, 2)


@nightly
def test_changed_tables_are_sent_as_they_were_and_another_snapshot_is_drawn_as_long_as_there_is_room(
    tmp_path: Path,
) -> None:
    settings = tables(tmp_path)
    run = train(settings, tmp_path / "run").path
    change_table(settings, "B")
    predict(run)
    for party in ("B", "C"):
        assert paid(run, party) == sent(run, party) == ONE, "the release of the snapshot, which is kept"
    second = train(with_overrides(settings, {"snapshot": "second"}), tmp_path / "second").path
    change_table(settings, "B", -0.5)
    predict(second)
    for party in ("B", "C"):
        assert paid(second, party) == sent(second, party) == ONE
    third = with_overrides(settings, {"snapshot": "third"})
    with refused(BudgetSpent, code="budget-spent", party="B, C"):
        train(third, tmp_path / "none")
    for party in ("B", "C"):
        assert entries(tmp_path / "none", party) == []
    for party in ("B", "C"):
        edit(settings, party, limits={**about.NODES, "max_epsilon": 12.0, "leakage": []})
    more = train(third, tmp_path / "more").path
    for party in ("B", "C"):
        assert paid(more, party) == sent(more, party) == ONE


@pytest.mark.parametrize(
    ("party", "limits", "says"),
    [
        (
            "B",
            {**about.NODES, "max_epsilon": 3.9},
            r"limits\.max_epsilon=3\.9 and the job can cost B a total ε of 4: lower it",
        ),
        ("C", {}, r"limits\.leakage=\[.*\]: .*perturbed-features \(release\.features\.epsilon=4\)"),
    ],
)
def test_what_a_party_does_not_accept(tmp_path: Path, party: str, limits: dict[str, Any], says: str) -> None:
    settings = tables(tmp_path)
    edit(settings, party, limits=limits)
    with pytest.raises(ConfigError, match=f"{party} refuses the job: {says}"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_mean_of_all_nodes_is_no_nodes_own_value(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    nodes = yaml.safe_load(party_file(settings, "B").read_text())["nodes"]
    nodes["features"][0]["missing"] = "mean"
    edit(settings, "B", nodes=nodes)
    with pytest.raises(
        ConfigError, match=r"B refuses.* own row alone: nodes\.features\.0 \(column 'x1' and 2 more\): m"
    ):
        train(settings, tmp_path / "run")
    nodes["features"][0]["missing"] = "0.5"
    edit(settings, "B", nodes=nodes)
    assert align(settings, tmp_path / "run")[""] == COMMON


def test_a_check_of_tables_names_the_column_outside_the_range(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    data = paradigm_of(settings).data
    data.check_tables(settings)
    path = party_file(settings, "B").parent / "nodes.csv"
    fits = path.read_text(encoding="utf-8")
    for value in (-10.5, 10.5):
        own, common = (re.sub(rf"(?m)^({name}),([^,]*),[^,]*,", rf"\1,\2,{value},", fits) for name in ("B1", "n07"))
        path.write_text(own, encoding="utf-8")
        data.check_tables(settings)  # nothing is released of a node that the others lack
        path.write_text(common, encoding="utf-8")
        with refused(DataError, party="B", key="x2", value=value):
            data.check_tables(settings)
    nodes = yaml.safe_load(party_file(settings, "B").read_text())["nodes"]
    nodes["features"][0]["scale"] = {"low": -3, "high": 3}
    edit(settings, "B", nodes=nodes)
    data.check_tables(settings)


@nightly
def test_a_value_outside_the_range_and_too_few_common_nodes(tmp_path: Path) -> None:
    settings = tables(tmp_path)
    edit(settings, "C", limits={"leakage": [], **about.NODES, "max_epsilon": 9, "min_common_nodes": COMMON + 1})
    refused_by_all(
        lambda: train(settings, tmp_path / "few"),
        rf"C refuses the job: limits\.min_common_nodes={COMMON + 1} and the holders have {COMMON} in common",
    )
    edit(settings, "C", limits={"leakage": [], **about.NODES, "max_epsilon": 9})
    lines = (party_file(settings, "B").parent / "nodes.csv").read_text().splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("n"))
    lines[row] = lines[row].split(",")[0] + ",10.5,0,0"
    (party_file(settings, "B").parent / "nodes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    refused_by_all(lambda: train(settings, tmp_path / "far"), "B refuses the job: it has a feature outside the range")
    assert entries(tmp_path / "far", "C") == []
    nodes = yaml.safe_load(party_file(settings, "B").read_text())["nodes"]
    nodes["features"][0]["scale"] = {"low": -3, "high": 3}
    edit(settings, "B", nodes=nodes)
    assert paid(train(settings, tmp_path / "cut").path, "B") == ONE, "a declared range holds every value"
