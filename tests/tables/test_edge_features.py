"""Features of edges: columns of numbers beside the weight, from tables to a horizontal job."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.errors import refused
from tests.paradigms.exported import export, over
from tests.paradigms.horizontal import job
from tests.tables.reading import read
from tests.tables.writing import build, party, write
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.party_settings import read_party_settings
from veilgraph.runtime.launch.jobs import train
from veilgraph.samples.organisations import Export, export_party

ENDS = {"a": ["u", "v", "u"], "b": ["v", "007", "007"]}
FULL: dict[str, Any] = {"model": {"message": "full"}, "train": {"epochs": 2}}
COLUMNS = ENDS | {"fee": ["1", "-2", "0.5"], "amount": ["0", "9", "99"]}
FEATURES = ["fee", {"column": "amount", "scale": "log"}]


def test_columns_are_read_and_go_both_ways(tmp_path: Path) -> None:
    found = read(tmp_path, COLUMNS, features=FEATURES).features
    wanted = np.array([[1, 0], [-2, math.log(10)], [0.5, math.log(100)]])
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "007"], "x": [1, 2, 3]})
    graph = build(party(edges=[{"features": FEATURES}]), tmp_path).graph
    assert graph.edge_features is not None
    np.testing.assert_allclose(graph.edge_features.numpy(), np.concatenate([wanted, wanted]), rtol=1e-6)


def test_a_dropped_edge_takes_its_features_along(tmp_path: Path) -> None:
    found = read(tmp_path, COLUMNS | {"b": ["v", "nobody", "007"]}, features=["fee"], unknown="drop")
    assert found.features.tolist() == [[1], [0.5]]
    write(tmp_path / "nodes.csv", {"id": ["u", "v", "007"], "x": [1, 2, 3]})
    write(tmp_path / "edges.csv", COLUMNS)
    weighted = build(party(edges=[{"features": ["fee"], "weight": "amount", "directed": True}]), tmp_path).graph
    assert weighted.edge_features is not None
    assert weighted.edge_features.tolist() == [[-2], [0.5]]


@pytest.mark.parametrize(("fee", "scale"), [("", "none"), ("-1", "log")])
def test_a_missing_number_and_a_negative_one_under_a_logarithm_are_refused(
    tmp_path: Path, fee: str, scale: str
) -> None:
    with refused(DataError, key="fee", value=2):
        read(tmp_path, COLUMNS | {"fee": ["1", fee, "2"]}, features=[{"column": "fee", "scale": scale}])


def test_tables_of_one_party_have_the_same(tmp_path: Path) -> None:
    with refused(ConfigError, key="edges"):
        party(edges=[{"features": ["fee"]}, {"features": ["fee", "amount"], "name": "other"}])


def described(tmp_path: Path) -> dict[str, Path]:
    """Exported tables with a column of fees."""
    parties = export(tmp_path, job())
    for path in parties.values():
        content = yaml.safe_load(path.read_text())
        table = path.parent / content["edges"][0]["file"]
        lines = table.read_text().splitlines()
        table.write_text("\n".join([f'{lines[0]},"fee"', *(f"{line},{len(line) % 5}" for line in lines[1:])]))
        content["edges"][0]["features"] = ["fee"]
        path.write_text(yaml.safe_dump(content))
    return parties


def test_a_job_computes_with_them_or_is_refused(tmp_path: Path) -> None:
    parties = described(tmp_path)
    with refused(ConfigError, code="refused"):
        train(over(parties, job()), tmp_path / "linear")
    found = train(over(parties, job(2, FULL)), tmp_path / "full")
    for path in parties.values():
        content = yaml.safe_load(path.read_text())
        content["edges"][0]["features"] = [{"column": "fee", "scale": "log"}]
        path.write_text(yaml.safe_dump(content))
    other = train(over(parties, job(2, FULL)), tmp_path / "log")
    assert not torch.equal(found.predictions.probabilities, other.predictions.probabilities)
    content["edges"][0]["features"] = ["fee"]
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(DataError, match=r"no feature column of .*'fee of edges'"):
        train(over(parties, job(2, FULL)), tmp_path / "other columns")


def test_written_tables_have_them(tmp_path: Path) -> None:
    features = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    graph = PartyGraph(
        "bank", torch.ones(3, 1), torch.tensor([[0, 1], [1, 0]]), torch.tensor([2.0, 4.0]), edge_features=features
    )
    export_party(Export(graph, ["u", "v", "w"], np.arange(3)), tmp_path / "party.yaml", "csv", {})
    settings = read_party_settings(tmp_path / "party.yaml")
    found = build(settings, tmp_path).graph
    assert found.edge_features is not None
    assert torch.equal(found.edge_features, features)
    assert torch.equal(found.edge_index, graph.edge_index)


def test_holders_of_graphs_have_as_many_columns_of_edges(tmp_path: Path) -> None:
    parts = [part.graph for part in load_parts(job().data, 5)]
    given = {
        graph.party: replace(graph, edge_features=torch.ones(graph.num_edges, columns))
        for columns, graph in enumerate(parts, start=1)
    }
    ids = {name: list(range(graph.num_nodes)) for name, graph in given.items()}
    content = job(2, FULL).model_dump(mode="json") | {"data": {"holders": ["A", "B"]}}
    with pytest.raises(DataError, match="columns of edges differ"):
        train(parse_job(content), tmp_path / "run", parties=given, ids=ids)
