"""Columns of numbers to predict, and of the graph that a node is of."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.errors import refused
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.settings import settled
from veilgraph.report.tables import party_tables
from veilgraph.tables.columns import column_hashes, predicted
from veilgraph.tables.describe import describe_party
from veilgraph.tables.nodes import NodeTable, read_nodes
from veilgraph.tables.settings import NodeSettings, TableSettings

FRACTIONS = {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 3}


def settings(**nodes: Any) -> TableSettings:
    said = {"file": "nodes.csv", "id": "id", "features": [{"columns": "x"}], **nodes}
    return TableSettings.model_validate({"party": "bank", "nodes": said})


def read(folder: Path, text: str, **nodes: Any) -> NodeTable:
    (folder / "nodes.csv").write_text(text, encoding="utf-8")
    return read_nodes(settings(**nodes), folder)


def test_a_target_is_a_number_or_unknown_and_then_in_no_split(tmp_path: Path) -> None:
    rows = "".join(f"n{row},1,{row * 1.5 if row % 5 else ''}\n" for row in range(40))
    table = read(tmp_path, "id,x,price\n" + rows, target="price", split=FRACTIONS)
    assert table.targets is not None
    assert table.splits is not None
    known = ~np.isnan(table.targets)
    assert table.targets[known].tolist() == [row * 1.5 for row in range(40) if row % 5]
    assert Counter(table.splits[known].tolist()) == {0: 16, 1: 8, 2: 8}
    assert (table.splits[~known] == -1).all()
    back = table.take(np.arange(40)[::-1])
    assert back.targets is not None
    assert np.array_equal(back.targets, table.targets[::-1], equal_nan=True)
    shown = describe_party(settings(target="price", split=FRACTIONS), tmp_path)
    assert shown.target is not None
    assert (shown.target.minimum, shown.target.missing) == (1.5, 8)
    assert party_tables(shown)[-1].title == "Target"


def test_a_split_by_a_column_is_of_nodes_with_a_target(tmp_path: Path) -> None:
    split = {"column": "part"}
    with refused(DataError, key="part"):
        read(tmp_path, "id,x,price,part\na,1,,train\nb,1,2,val\n", target="price", split=split)
    table = read(tmp_path, "id,x,price,part\na,1,,\nb,1,2,val\n", target="price", split=split)
    assert table.splits is not None
    assert table.splits.tolist() == [-1, 1]


@pytest.mark.parametrize("by", [{"label": {"column": "kind", "classes": ["a", "b"]}}, {"target": "price"}])
def test_graphs_are_divided_whole(by: dict[str, Any], tmp_path: Path) -> None:
    rows = "".join(f"n{row},1,{row % 7},{'ab'[row % 7 % 2]},{row % 7}\n" for row in range(70))
    table = read(tmp_path, "id,x,mol,kind,price\n" + rows, graph="mol", split=FRACTIONS, **by)
    assert table.graphs is not None
    assert table.splits is not None
    pairs = set(zip(table.graphs.tolist(), table.splits.tolist(), strict=True))
    assert len(pairs) == len({graph for graph, _ in pairs}) == 7
    assert {split for _, split in pairs} >= {0, 1}
    assert describe_party(settings(graph="mol", split=FRACTIONS, **by), tmp_path).graphs == 7


@pytest.mark.parametrize("value", ["-1", "1.5", "left", ""])
def test_a_graph_is_a_whole_number(value: str, tmp_path: Path) -> None:
    with refused(DataError, key="mol"):
        read(tmp_path, f"id,x,mol\na,1,0\nb,1,{value}\n", graph="mol")


@pytest.mark.parametrize(
    "said",
    [
        {"target": "price"},
        {"target": "price", "label": {"column": "kind", "classes": ["a", "b"]}, "split": FRACTIONS},
        {"target": "x", "split": FRACTIONS},
        {"graph": "x"},
    ],
    ids=["no split", "both", "a feature", "a feature too"],
)
def test_what_a_table_cannot_say(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError), settled("party"):
        settings(**said)


def test_column_hashes_differ_between_targets() -> None:
    plain = settings().nodes
    priced, other = (settings(target=name, split=FRACTIONS).nodes for name in ("price", "worth"))
    assert isinstance(priced, NodeSettings)
    hashes = [column_hashes([], predicted(nodes), None)[0] for nodes in (plain, priced, other)]
    assert len(set(hashes)) == 3
