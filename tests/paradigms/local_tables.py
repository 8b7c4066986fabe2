"""Jobs of node-level privacy from tables."""

import csv
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests import about
from tests.roles.federation import Settings
from tests.roles.local_parties import local_job
from veilgraph.graph.builtin import synthetic_data
from veilgraph.protocol.job import JobSettings

COMMON, OWN, CLASSES = 60, 5, ("cat", "dog", "emu")


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def write_party(folder: Path, party: str, *, labelled: bool, limits: Mapping[str, Any]) -> Path:
    """Tables of 60 common nodes and five of its own, in an order of its own; A alone has edges."""
    folder.mkdir()
    data = synthetic_data(COMMON + OWN, 8, len(CLASSES), seed=1)
    own = [f"{party}{node}" for node in range(OWN)]
    ids = [f"n{node:02}" for node in range(COMMON)] + own
    columns = {"A": [0], "B": [1, 2, 3], "C": [4, 5, 6, 7]}[party]
    header, rows = ["id", *(f"x{column}" for column in columns)], []
    for node, name in enumerate(ids):
        row: list[Any] = [name, *(float(data.x[node, column]) for column in columns)]
        if labelled:
            row += [CLASSES[int(data.y[node])], "train" if node % 3 else "val"]
        rows.append(row)
    random.Random(party).shuffle(rows)
    write(folder / "nodes.csv", header + (["kind", "split"] if labelled else []), rows)
    nodes: dict[str, Any] = {"file": "nodes.csv", "id": "id", "features": [{"columns": header[1:]}]}
    if labelled:
        nodes |= {"label": {"column": "kind", "classes": list(CLASSES)}, "split": {"column": "split"}}
    content: dict[str, Any] = {"party": party, "nodes": nodes, "limits": dict(limits)}
    if party == "A":
        pairs = [[ids[source], ids[target]] for source, target in data.edge_index.t().tolist() if source < target]
        write(folder / "edges.csv", ["from", "to"], pairs)
        content["edges"] = [{"file": "edges.csv", "source": "from", "target": "to"}]
    path = folder / "party.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def tables(
    folder: Path, *changes: Settings, labels_at: str = "A", learner: Mapping[str, Any] = about.EDGES, **limits: Any
) -> JobSettings:
    """The job on them; B and C accept nothing without a bound."""
    paths = {}
    for party in "ABC":
        protects = learner if party == "A" else about.NODES
        own = {"leakage": [], **protects, "max_epsilon": 9.0, **limits}
        paths[party] = str(write_party(folder / party, party, labelled=party == labels_at, limits=own))
    return local_job(3, {"data": {"dataset": None, "parties": paths}}, *changes)


def party_file(settings: JobSettings, party: str) -> Path:
    path = (settings.data.parties or {})[party]
    assert path is not None
    return path
