"""Small runs on disk, and what it means that two of them are the same."""

from pathlib import Path

import torch
from torch import Tensor

from tests.roles.federation import Settings, joint_weights, small_job, small_parties
from veilgraph.core.types import SERVER
from veilgraph.graph.party import load_party, save_party
from veilgraph.mpc.ring import fractional_bits
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import TrainResult, load_result
from veilgraph.runtime.store.run_directory import Record, RunDirectory, load_tensors

DROPOUT: Settings = {"model": {"initial": {"dropout": 0.2}, "local": {"dropout": 0.2}, "server": {"dropout": 0.5}}}


def saved_job(folder: Path, *changes: Settings, holders: int = 2) -> JobSettings:
    """A job over party graphs that lie in ``folder``, as a user would have it."""
    folder.mkdir(parents=True, exist_ok=True)
    graphs = small_parties(holders)
    for graph in graphs:
        save_party(graph, folder / f"{graph.party}.safetensors")
    paths = {graph.party: str(folder / f"{graph.party}.safetensors") for graph in graphs}
    return small_job(holders, {"data": {"dataset": None, "graphs": paths}}, DROPOUT, *changes)


def joint_model(path: Path) -> dict[str, Tensor]:
    """The whole trained model of a run, W reconstructed from its shares."""
    run = RunDirectory.open(path)
    settings = run.settings
    parties = (*settings.data.names, SERVER)
    parts = {party: load_tensors(run.party(party).model_path)[0] for party in parties}
    bits = vertical(settings).model.initial.feature_bits
    if bits is None:
        graphs = [load_party(run.party(name).graph_path) for name in settings.data.names]
        bits = max(fractional_bits(graph.features) for graph in graphs)
    return joint_weights(settings, parts, bits)


def lasting(metrics: list[Record]) -> list[Record]:
    """Metrics without what a clock says."""
    return [{key: value for key, value in record.items() if key != "step_seconds"} for record in metrics]


def lasting_summary(summary: Record) -> Record:
    """The summary without clocks, and without what only counts the last session."""
    left_out = {"seconds_per_step", "started_at", "sent_bytes"}
    return {key: value for key, value in summary.items() if key not in left_out}


def assert_same_run(one: TrainResult, other: TrainResult) -> None:
    """Metrics, model, predictions and summary are bit-identical."""
    assert lasting(one.metrics) == lasting(other.metrics)
    ours, theirs = joint_model(one.path), joint_model(other.path)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), f"{name} differs by {float((tensor - theirs[name]).abs().max()):.3g}"
    assert torch.equal(one.predictions.probabilities, other.predictions.probabilities)
    assert torch.equal(one.predictions.classes, other.predictions.classes)
    assert lasting_summary(one.summary) == lasting_summary(other.summary)
    assert lasting_summary(load_result(other.path).summary) == lasting_summary(other.summary)


def model_bytes(path: Path) -> dict[str, bytes]:
    run = RunDirectory.open(path)
    return {party: run.party(party).model_path.read_bytes() for party in (*run.settings.data.names, SERVER)}
