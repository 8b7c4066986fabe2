"""Splits by date."""

import pyarrow as pa
import pytest

from tests.errors import refused
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.tables.nodes import read_nodes

LABEL = {"column": "y", "classes": ["no", "yes"]}
SPLIT = {"by": "when", "train_before": "2024-05-01", "val_before": "2024-06-01"}
WHEN = ["2024-04-30T23:59:59", "2024-05-01", "2024-05-31", "2024-06-01", None, "2024-01-01"]
NODES = {"id": list("uvwxyz"), "x": [1, 2, 3, 4, 5, 6], "y": ["no", "yes", "no", "yes", "no", None], "when": WHEN}
WANTED = [0, 1, 1, 2, -1, -1]


def splits(folder, **changes):
    found = read_nodes(party(label=LABEL, split=SPLIT, **changes), folder).splits
    assert found is not None
    return found.tolist()


@pytest.mark.parametrize("name", ["n.csv", "n.parquet"])
def test_early_is_trained_and_late_tested_on(tmp_path, name):
    write(tmp_path / name, NODES)
    assert splits(tmp_path, nodes=name) == WANTED
    masks = build(party(label=LABEL, split=SPLIT, nodes=name), tmp_path).graph
    assert [mask.nonzero().flatten().tolist() for mask in (masks.train_mask, masks.val_mask, masks.test_mask)] == [
        [0],
        [1, 2],
        [3],
    ]


def test_dates_of_parquet_and_of_a_format(tmp_path):
    times = pa.array(WHEN).cast(pa.timestamp("us"))
    write(tmp_path / "n.parquet", NODES | {"when": times})
    assert splits(tmp_path, nodes="n.parquet") == WANTED
    days = [None if each is None else each[:10] for each in WHEN]
    written = [None if day is None else f"{day[8:]}.{day[5:7]}.{day[:4]}" for day in days]
    write(tmp_path / "nodes.csv", NODES | {"when": written})
    found = read_nodes(party(label=LABEL, split=SPLIT | {"format": "%d.%m.%Y"}), tmp_path).splits
    assert found is not None
    assert found.tolist() == WANTED


def test_the_date_may_be_beside_the_labels_or_in_a_further_table(tmp_path):
    write(tmp_path / "nodes.csv", {"id": list("zyxwvu"), "x": list(range(6))})
    write(tmp_path / "labels.csv", {name: NODES[name] for name in ("id", "y", "when")})
    found = read_nodes(party(label=LABEL | {"file": "labels.csv"}, split=SPLIT), tmp_path).splits
    assert found is not None
    assert found.tolist() == WANTED[::-1]
    assert splits(tmp_path, join=[{"file": "labels.csv"}]) == WANTED[::-1]


def test_the_date_is_no_feature(tmp_path):
    write(tmp_path / "nodes.csv", NODES)
    table = read_nodes(party(["*"], LABEL, SPLIT), tmp_path)
    assert [column.name for column in table.columns] == ["x"]
    with pytest.raises(ConfigError, match="'when' is a feature and also"):
        party([{"columns": "when", "date": {"parts": ["year"]}}], LABEL, SPLIT)


def test_what_is_no_date_is_refused(tmp_path):
    write(tmp_path / "nodes.csv", NODES | {"when": ["2024-04-30", "May", *WHEN[2:]]})
    with refused(DataError, key="when", value=2):
        splits(tmp_path)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"val_before": "2024-05-01"}, "train_before"),
        ({"val_before": "2024-04-01"}, "train_before"),
        ({"train_before": "soon"}, "train_before"),
        ({"column": "part"}, "by"),
        ({"seed": 3}, "seed"),
    ],
)
def test_settings_that_are_refused(changes, key):
    with pytest.raises(ConfigError) as caught:
        party(label=LABEL, split=SPLIT | changes)
    assert key in str(caught.value)
