"""Small horizontal jobs, their models, and runs that must be the same."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.paradigms.runs import lasting, lasting_summary
from tests.roles.federation import Settings, merge
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.jobs import TrainResult
from veilgraph.run.run_directory import RunDirectory, load_tensors

PLAIN: Settings = {"model": {"server": {"dropout": 0.0}}}


SECURE: Settings = {"model": {"combine": "secure-max"}}


MEAN: Settings = {"model": {"aggregate": "mean", "edges": "deduplicate"}, "data": {"partition": {"overlap": 0.5}}}


def job(holders: int = 2, *changes: Settings) -> JobSettings:
    base: Settings = {
        "paradigm": "horizontal",
        "seed": 5,
        "timeout_s": 20,
        "data": {"dataset": "synthetic", "holders": holders, "partition": {"overlap": 0.2}},
        "model": {"dim": 8},
        "train": {"epochs": 8, "patience": None, "checkpoint_every": 2},
    }
    return parse_job(merge(base, *changes))


def models(run: TrainResult) -> dict[str, dict[str, Tensor]]:
    """Every party's part of the model; all holders' are the same."""
    directory = RunDirectory.open(run.path)
    names = directory.settings.data.names
    found = {party: load_tensors(directory.party(party).model_path)[0] for party in (*names, SERVER)}
    for name in names[1:]:
        assert found[name].keys() == found[names[0]].keys()
        assert all(torch.equal(tensor, found[name][key]) for key, tensor in found[names[0]].items())
    return found


def tables(run: TrainResult) -> dict[str, str]:
    """Every holder's predictions as it has them."""
    names = RunDirectory.open(run.path).settings.data.names
    return {name: (run.path / "parties" / name / "predictions.csv").read_text() for name in names}


def assert_same(one: TrainResult, other: TrainResult) -> None:
    """Bit-identical in all that lasts, at every party."""
    assert lasting(one.metrics) == lasting(other.metrics)
    assert lasting_summary(one.summary) == lasting_summary(other.summary)
    ours, theirs = models(one), models(other)
    for party, tensors in ours.items():
        assert tensors.keys() == theirs[party].keys()
        assert all(torch.equal(tensor, theirs[party][name]) for name, tensor in tensors.items()), party
    assert tables(one) == tables(other)
    assert torch.equal(one.predictions.probabilities, other.predictions.probabilities)
