"""Small horizontal jobs, their models, and runs that must be the same."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.paradigms.runs import lasting, lasting_summary
from tests.roles.federation import Settings, merge
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch.jobs import TrainResult
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors
from veilgraph.samples.organisations import Export, export_party

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
        "train": {"epochs": 6, "patience": None, "checkpoint_every": 2},
    }
    return parse_job(merge(base, *changes))


VALUES: Settings = {"horizontal": {"task": {"name": "values"}}}


def valued(parts: Sequence[HorizontalPart], times: float = 1.0, plus: float = 0.0) -> list[HorizontalPart]:
    """The same with a number to predict where there was a label, of the node's features."""
    return [replace(part, graph=_with_targets(part.graph, times, plus)) for part in parts]


def _with_targets(graph: PartyGraph, times: float, plus: float) -> PartyGraph:
    x, labels = graph.features.to_dense(), graph.labels
    assert labels is not None
    y = torch.where(labels >= 0, times * (20 + 7 * x[:, 0] + 3 * x[:, 1] ** 2) + plus, torch.nan)
    return replace(graph, labels=None, num_classes=None, targets=y)


def brought(settings: JobSettings) -> dict[str, Any]:
    """What ``train`` is given beside the job: graphs with numbers to predict where the job is about these."""
    if not settings.inputs.of_nodes:
        return {}
    parts = valued(load_parts(settings.data, settings.seed))
    return {"parties": [part.graph for part in parts], "ids": ids_of(parts)}


def ids_of(parts: Sequence[HorizontalPart]) -> dict[PartyId, list[str]]:
    return {part.graph.party: [str(node) for node in part.ids.tolist()] for part in parts}


def write_tables(parts: Sequence[HorizontalPart], folder: Path, accepts: Iterable[str]) -> dict[str, Path]:
    """Party → its file, over tables of its own; of ids that are numbers with an n."""
    files = {}
    for part in parts:
        graph = part.graph
        (folder / graph.party).mkdir(parents=True)
        files[graph.party] = folder / graph.party / "party.yaml"
        limits = {"seed": "job", "limits": {"leakage": sorted(accepts), "max_rounds": 2}}
        names = [f"n{node}" for node in part.ids.tolist()]
        export_party(Export(graph, names, np.arange(graph.num_nodes)), files[graph.party], "csv", limits)
    return files


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
