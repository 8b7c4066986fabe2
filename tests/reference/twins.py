"""Runs that must be their twin's, and parties of odd shapes."""

import os
from collections.abc import Sequence

import pytest
import torch
from veilgraph_testing.vertical import weights_of

from tests.paradigms.runs import joint_model
from tests.roles.federation import (
    Federation,
    federate,
    small_data,
    small_parties,
)
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.ring import fractional_bits
from veilgraph.nn.local.build import CustomModel
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.launch.jobs import TrainResult

STEPS = 20 if "VEILGRAPH_NIGHTLY" in os.environ else 8


TOLERANCE = 1e-4


def assert_twins(
    settings: JobSettings,
    graphs: Sequence[PartyGraph],
    custom: CustomModel | None = None,
    *,
    steps: int = STEPS,
    tolerance: float = TOLERANCE,
) -> tuple[Federation, PlainNetwork]:
    """Trains both and compares every weight and the logits."""
    twin = PlainNetwork(settings, graphs, settings.data.label_party, custom)
    start = {name: weight.detach().clone() for name, weight in weights_of(twin).items()}
    for epoch in range(1, steps + 1):
        twin.train_step(epoch)
    bits = vertical(settings).model.initial.feature_bits
    if bits is None:
        bits = max(fractional_bits(graph.common_part().features) for graph in graphs)
    federation = federate(settings, graphs, steps, custom, keep_transcripts=False)
    ours, expected = federation.weights(bits), weights_of(twin)
    assert ours.keys() == expected.keys()
    for name, weight in expected.items():
        assert ours[name].shape == weight.shape
        difference = float((ours[name].double() - weight.double()).abs().max()) if weight.numel() else 0.0
        assert difference <= tolerance, f"{name} differs by {difference:.3g}"
    moved = [name for name in start if not torch.equal(start[name], expected[name].detach())]
    assert f"{settings.data.label_party}/head.output.weight" in moved
    assert all(f"{graph.party}/W" in moved for graph in graphs), "W did not learn; the comparison says nothing"
    with torch.no_grad():
        logits = twin.forward(None)
    assert float((federation.label_holder.logits - logits).abs().max()) <= 10 * tolerance
    return federation, twin


def assert_run_is_twin(
    run: TrainResult, settings: JobSettings, graphs: Sequence[PartyGraph], tolerance: float = 1e-6
) -> PlainNetwork:
    """Compares every weight, loss and prediction of a run with those of its twin, which it trains."""
    twin = PlainNetwork(settings, graphs, "A")
    start = {name: weight.detach().clone() for name, weight in weights_of(twin).items()}
    losses = [twin.train_step(epoch) for epoch in range(1, settings.train.epochs + 1)]
    ours, expected = joint_model(run.path), weights_of(twin)
    assert ours.keys() == expected.keys()
    for name, weight in expected.items():
        assert float((ours[name].double() - weight.double()).detach().abs().max()) <= tolerance, name
    assert all(not torch.equal(start[f"{graph.party}/W"], expected[f"{graph.party}/W"].detach()) for graph in graphs)
    assert [record["loss"] for record in run.metrics] == pytest.approx(losses, abs=tolerance)
    assert float((run.predictions.uncalibrated - twin.infer().softmax(dim=1)).abs().max()) <= tolerance
    return twin


def odd_parties() -> list[PartyGraph]:
    """Sparse and dense, weighted and not, float64, isolated nodes, no edges at all at one holder."""
    data = small_data()
    parties = small_parties(3)
    assert data.edge_index is not None
    sparse = (parties[1].features > 0.9).float().to_sparse_csr()
    keep = (parties[2].edge_index < 40).all(dim=0)
    weights = torch.rand(int(keep.sum()), generator=torch.Generator().manual_seed(1))
    weights[:3] = 0
    return [
        PartyGraph(**{**parties[0].__dict__, "edge_index": torch.empty(2, 0, dtype=torch.int64)}),
        PartyGraph("B", sparse, parties[1].edge_index),
        PartyGraph("C", parties[2].features.double() / 3, parties[2].edge_index[:, keep], weights),
    ]
