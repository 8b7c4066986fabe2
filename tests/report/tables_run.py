"""A run from tables whose predictions a test can replace."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml

from veilgraph.nn.calibration import Calibration
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.judge import Predicted
from veilgraph.runtime.launch.jobs import train
from veilgraph.runtime.store.predictions import save_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

NODES = 300
IDS = [f"C{number:03}" for number in range(NODES)]
SPLITS = ["train", "val", "test", "test"]
LABELS = [("no", "yes")[number % 5 == 0] for number in range(NODES)]
SEEN = [number for number in range(NODES) if SPLITS[number % 4] in ("train", "val")]
UNSEEN = [number for number in range(NODES) if number not in SEEN]


def write_tables(folder: Path) -> dict[str, Path]:
    found = {}
    for name in "AB":
        home = folder / name
        home.mkdir(parents=True)
        labelled = name == "A"
        lines = ["id,x,y,label,split" if labelled else "id,x,y"]
        for number, text in enumerate(IDS):
            more = f",{LABELS[number]},{SPLITS[number % 4]}" if labelled else ""
            lines.append(f"{text if labelled else text.lower()},{number % 7},{number * 7 % 11}{more}")
        (home / "nodes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        nodes: dict[str, object] = {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x", "y"]}]}
        if labelled:
            nodes |= {"label": {"column": "label", "classes": ["no", "yes"]}, "split": {"column": "split"}}
        content = {"party": name, "nodes": nodes, "ids": {"lower": True}}
        (home / "party.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
        found[name] = home / "party.yaml"
    return found


def made_run(folder: Path) -> Path:
    """One epoch is all that it was trained for."""
    data = {"parties": {name: str(path) for name, path in write_tables(folder).items()}, "label_holder": "A"}
    return train(parse_job({"data": data, "train": {"epochs": 1}, "model": {"dim": 2}}), folder / "run").path


def model(
    made: Path,
    path: Path,
    chances: np.ndarray,
    rows: Sequence[int] | None = None,
    *,
    classes_alone: bool = False,
    calibration: Calibration | None = None,
) -> Path:
    """A copy of the run that predicts the second class of these nodes so, or of ``rows`` of them alone."""
    shutil.copytree(made, path)
    store = RunDirectory.open(path).party("A")
    known = store.ids()
    assert known is not None
    order = [IDS.index(text.upper()) for text in known]
    likely = torch.from_numpy(np.stack([1 - chances, chances], 1)[order])
    nodes = None if rows is None else torch.tensor([place for place, number in enumerate(order) if number in set(rows)])
    ids = known if nodes is None else [known[place] for place in nodes]
    predicted = Predicted(likely if nodes is None else likely[nodes], nodes=nodes, classes_alone=classes_alone)
    written = [text.upper() for text in ids]  # as A's own table has them
    save_predictions(store, predicted, written, ["no", "yes"], alike=ids, calibration=calibration)
    return path
