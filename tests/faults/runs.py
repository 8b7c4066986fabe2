"""The jobs whose parties are killed here, and what an undisturbed run of them gives."""

import shutil
from pathlib import Path

import numpy as np
import torch
import yaml

from tests.paradigms.horizontal import MEAN, SECURE, assert_same
from tests.paradigms.horizontal import job as small_horizontal_job
from tests.paradigms.runs import assert_same_run, saved_job
from tests.roles.federation import Settings
from tests.tables.writing import write
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.run_data import read_disclosures
from veilgraph.runtime.launch.jobs import load_result, predict, resume
from veilgraph.runtime.store.run_directory import RunDirectory

EPOCHS = 12
LABEL_HOLDER, OTHER = "A", "B"
ROLES = (SERVER, LABEL_HOLDER, OTHER)
SMALL: Settings = {
    "precision": "float64",
    "model": {"dim": 4},
    "train": {"epochs": EPOCHS, "checkpoint_every": 2, "patience": None},
}
ROUNDS: Settings = {"model": {"rounds": 2, "combine": {"strategy": "degree-weighted"}}}


def graph_job(folder: Path, *changes: Settings) -> JobSettings:
    """A job over graphs whose rows are aligned already."""
    return saved_job(folder, SMALL, ROUNDS, *changes)


def table_job(folder: Path, *changes: Settings) -> JobSettings:
    """A job over tables: its parties align them, and build their graphs, before they train."""
    parties = {}
    for party in (LABEL_HOLDER, OTHER):
        (folder / party).mkdir(parents=True)
        parties[party] = str(_write_tables(folder / party, party))
    base = saved_job(folder, SMALL, *changes).model_dump(mode="json")
    return parse_job({**base, "data": {"parties": parties, "label_holder": LABEL_HOLDER}})


def secure_max_job(folder: Path) -> JobSettings:
    """A horizontal job whose server deals in the background; two holders are left when one is killed."""
    return small_horizontal_job(3, SECURE, {"train": {**SMALL["train"], "epochs": 6}})


def mean_job(folder: Path) -> JobSettings:
    """A horizontal job whose server learns hashed edges and degrees before it trains."""
    return small_horizontal_job(2, MEAN, {"train": SMALL["train"], "model": {"server": {"batch_norm": True}}})


def _write_tables(folder: Path, party: str) -> Path:
    random = np.random.default_rng(ord(party))
    classes = np.arange(80) % 2
    known = random.permutation(np.arange(70) if party == LABEL_HOLDER else np.arange(10, 80))
    ids = np.array([f"C{node:02d}" for node in range(80)])
    features = random.normal(size=(80, 2)) + classes[:, None]
    nodes = {"id": ids[known], "x": features[known, 0], "y": features[known, 1]}
    settings: dict[str, object] = {"file": "nodes.csv", "id": "id", "features": [{"columns": ["x", "y"]}]}
    if party == LABEL_HOLDER:
        nodes |= {"class": classes[known].astype(str), "split": np.array(["train", "val", "test"])[known % 3]}
        settings["label"] = {"column": "class", "classes": ["0", "1"]}
        settings["split"] = {"column": "split", "train": "train", "val": "val", "test": "test"}
    write(folder / "nodes.csv", nodes)
    source, target = random.choice(known, (2, 200))
    write(folder / "edges.csv", {"from": ids[source], "to": ids[target]})
    edges = [{"file": "edges.csv", "source": "from", "target": "to"}]
    path = folder / "party.yaml"
    path.write_text(yaml.safe_dump({"party": party, "nodes": settings, "edges": edges}))
    return path


def assert_undisturbed(run: Path, scratch: Path) -> None:
    """A run that was disturbed is what an undisturbed one gives, and nothing of the disturbances is left in it.

    Args:
        run: complete.
        scratch: a folder to make, for the undisturbed run. It begins with the parties' graphs, seeds and alignment of
            ``run``, for an alignment anew would put the rows into another order.
    """
    checkpoints = shutil.ignore_patterns("epoch-*", "model.*", "result.*", "predictions.*", "*.jsonl", "summary.json")
    shutil.copytree(run, scratch, ignore=checkpoints)
    undisturbed = resume(scratch)
    assert undisturbed.summary["started_at"] == 0
    result = load_result(run)
    assert undisturbed.predictions.names() == result.predictions.names()
    settings = RunDirectory.open(run).settings
    (assert_same if settings.paradigm == "horizontal" else assert_same_run)(undisturbed, result)
    last = settings.train.epochs
    assert [record["epoch"] for record in result.metrics] == list(range(1, last + 1))
    if not settings.data.from_tables:
        assert torch.equal(predict(run).probabilities, undisturbed.predictions.probabilities)
    for party in (*settings.data.names, SERVER):
        assert read_disclosures(run / "parties" / party / "disclosures.jsonl")
        assert RunDirectory.open(run).party(party).epochs() == [last]
    assert unfinished(run) == []
    shutil.rmtree(scratch)


def unfinished(run: Path) -> list[Path]:
    """Files that were being written when their writer was killed."""
    return [path for path in run.rglob(".*") if path.name != ".lock"]
