"""Runs and comparisons that nobody trained, for the tests of pages."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml

from tests.roles.federation import merge
from veilgraph.comparison.figures import Scored
from veilgraph.comparison.study import ABOUT, FOUND, Study
from veilgraph.comparison.ways import AS_JOB, EVERYTHING, NOBODY
from veilgraph.graph.party import load_party, save_party
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.runtime.store.predictions import save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

JOB = parse_job({"name": "worth", "data": {"dataset": "synthetic"}})
WAYS = {"A alone": (0.5, NOBODY), "A: <i>": (0.7, NOBODY), "vertical": (2.0, AS_JOB), "pooled": (2.1, EVERYTHING)}
"""How far class 1 stands out, and what is shared."""
PLAIN = [name for name in WAYS if name.startswith("A")]


def study(path: Path, names: list[str] | None = None, long: str = "") -> Study:
    """A comparison's directory, of predictions that nobody trained; ``long``: put behind the last name."""
    generator = np.random.default_rng(0)
    labels, noise = (generator.random(300) < 0.3).astype(np.int64), generator.normal(0, 1, 300)
    found, kinds = dict[str, list[Scored]](), dict[str, tuple[str, str]]()
    for name in names or list(WAYS):
        one = 1 / (1 + np.exp(-(WAYS[name][0] * labels + noise)))
        shown = name + long * (name == "pooled")
        found[shown], kinds[shown] = [Scored(labels, np.stack([1 - one, one], 1))], (WAYS[name][1], f"about {name}")
    made = Study.of(JOB, kinds, found, seeds=(0,), alarms=0.1)
    path.mkdir()
    (path / ABOUT).write_text(json.dumps({"job": JOB.model_dump(mode="json"), "party": None}))
    (path / FOUND).write_text(made.model_dump_json())
    return made


def two_classes(run: Path, by: str = "auc") -> Path:
    """Makes of a run one whose nodes are of two classes, of which its predictions say something."""
    job = yaml.safe_load((run / "job.yaml").read_text())
    (run / "job.yaml").write_text(yaml.safe_dump(merge(job, {"train": {"select_by": by}})))
    path = run / "parties" / "A" / "graph.safetensors"
    graph = load_party(path)
    assert graph.labels is not None
    labels = (graph.labels > 0).long()
    one = (labels + torch.arange(len(labels)) % 7 / 4) / 3
    save_party(replace(graph, labels=labels, num_classes=2), path)
    predicted = Predicted(torch.stack([1 - one, one], 1))
    save_predictions(RunDirectory.open(run).party("A"), predicted, class_names=["honest <b>", "fraud"])
    return run


def with_ids(run: Path) -> Path:
    """Gives a run's label holder ids, and a party file with tables of its own; returns this."""
    store = RunDirectory.open(run).party("A")
    nodes = json.loads((run / "summary.json").read_text())["nodes"]
    ids = [f"n{row}" for row in range(nodes)]
    store.save_ids(ids)
    folder = run / "own"
    folder.mkdir()
    table = pd.DataFrame({"id": ids[::-1], "age": range(nodes), "y": 0, "s": 1, "region": ["<b>north</b>"] * nodes})
    table.to_csv(folder / "nodes.csv", index=False)
    label = {"column": "y", "classes": ["0", "1", "2"]}
    split = {"column": "s", "train": "1", "val": "2", "test": "3"}
    content = {
        "party": "A",
        "nodes": {"file": "nodes.csv", "id": "id", "features": [{"columns": ["age"]}], "label": label, "split": split},
    }
    (folder / "party.yaml").write_text(yaml.safe_dump(content))
    return folder / "party.yaml"
