"""How many nodes of each class a split has, at the holder with labels: one class alone trains nothing."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import veilgraph
from tests.tables.writing import write

SPLIT = {"column": "part"}
LABEL = {"column": "y", "classes": ["no", "yes"]}


def check(folder: Path, trained: list[str]) -> tuple[str, dict[str, dict[str, int]]]:
    """What ``data check`` says in words and as JSON of 3 + 2 + 2 labelled nodes, of which three train."""
    labels = [*trained, "no", "yes", "no", "no"]
    parts = [*["train"] * 3, *["val"] * 2, *["test"] * 2]
    columns = {"id": list("abcdefgh"), "x": [1.5, 2, 4, 3, 5, 6, 8, 7], "y": [*labels, None], "part": [*parts, None]}
    write(folder / "nodes.csv", columns)
    nodes = {"file": "nodes.csv", "id": "id", "features": [{"columns": "x"}], "label": LABEL, "split": SPLIT}
    (folder / "party.yaml").write_text(yaml.safe_dump({"party": "bank", "nodes": nodes}))
    said = veilgraph("data", "check", folder / "party.yaml")
    assert said.exit_code == 0, said.output
    found = json.loads(veilgraph("data", "check", folder / "party.yaml", "--json").stdout)
    return said.output, found["split_classes"]


def test_every_split_is_counted_by_class(tmp_path: Path) -> None:
    words, found = check(tmp_path, ["no", "yes", "no"])
    assert found == {"train": {"no": 2, "yes": 1}, "val": {"no": 1, "yes": 1}, "test": {"no": 2, "yes": 0}}
    lines = {
        line.split()[0]: " ".join(line.split()[1:]) for line in words.replace("│", " ").splitlines() if " no " in line
    }
    assert (lines["train"], lines["test"]) == ("3: no 2, yes 1", "2: no 2, yes 0")
    assert "all training nodes are of class" not in words


@pytest.mark.parametrize("only", ["no", "yes"])
def test_training_nodes_of_one_class_are_told_before_training(tmp_path: Path, only: str) -> None:
    words, found = check(tmp_path, [only] * 3)
    assert found["train"][only] == 3
    assert f"all training nodes are of class {only!r}" in words


def test_a_data_set_is_counted_by_class_too() -> None:
    job = "jobs/digits.yaml"
    holder = json.loads(veilgraph("check", job, "--json").stdout)["holders"][0]
    assert [sum(holder["labels_by_class"][split]) for split in ("train", "val", "test")] == list(
        holder["labels"].values()
    )
    assert len(holder["labels_by_class"]["train"]) == holder["classes"]
    first, *_ = holder["labels_by_class"]["train"]
    assert f"{holder['labels']['train']:,} ({first:,}, " in veilgraph("check", job).stdout
