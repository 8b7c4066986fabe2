"""Training nodes of a single class: nothing can be learned, and the training ends before anything is sent."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import DataError
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph, save_party
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import train


def graphs() -> list[PartyGraph]:
    holders = split_vertically(synthetic_data(80, 6, 3, 0), names=list("AB"), label_holder="A", seed=0, num_classes=3)
    first, labels = holders[0], holders[0].labels
    assert first.train_mask is not None
    assert labels is not None
    return [replace(first, labels=torch.where(first.train_mask, 0, labels)), holders[1]]


JOBS: dict[str, dict[str, object]] = {
    "vertical": {},
    "sealed": {},
    "node-dp": {"release": {"features": {"epsilon": 4.0, "low": -9.0, "high": 9.0}}},
}


@pytest.mark.parametrize("paradigm", JOBS)
def test_one_class_among_training_nodes_ends_the_training(paradigm: str, tmp_path: Path) -> None:
    for graph in graphs():
        save_party(graph, tmp_path / f"{graph.party}.safetensors")
    saved = {name: str(tmp_path / f"{name}.safetensors") for name in "AB"}
    data = {"graphs": saved, "label_holder": "A"}
    job = parse_job({"paradigm": paradigm, "data": data, "train": {"epochs": 1}, **JOBS[paradigm]})
    with refused(DataError, key="labels", party="A"):
        train(job, tmp_path / "run")
