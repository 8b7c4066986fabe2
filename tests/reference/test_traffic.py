"""Bytes on the wire against the protocol's own formula, to the byte."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.traffic import step_bytes
from veilgraph.graph.datasets import load_parties
from veilgraph.protocol.job_file import parse_job
from veilgraph.run.jobs import train

JOBS: list[dict[str, Any]] = [
    {},
    {"data": {"holders": 3}, "model": {"combine": {"strategy": "regression"}}},
    {"model": {"combine": {"strategy": "concat"}}},
    {"model": {"combine": {"strategy": "concat"}, "server": {"layers": 0}}},
    {"model": {"rounds": 3, "combine": {"strategy": "degree-weighted"}}},
    {"model": {"rounds": 2, "combine": {"masked": False}}, "precision": "float64"},
]


@pytest.mark.parametrize("changes", JOBS, ids=str)
def test_a_step_sends_what_the_formula_says(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Two lengths of the same job: what a longer one sends more is steps alone."""
    data = {"dataset": "synthetic", **changes.get("data", {})}
    model = {"dim": 8, **changes.get("model", {})}
    sent = {}
    for steps in (2, 4):
        plan = {"epochs": steps, "evaluate_every": steps, "checkpoint_every": steps, "patience": None}
        settings = parse_job({**changes, "data": data, "model": model, "train": plan})
        sent[steps] = train(settings, tmp_path / f"{steps}").summary["sent_bytes"]
    graphs = load_parties(settings.data, settings.seed)
    features = {graph.party: graph.num_features for graph in graphs}
    expected = step_bytes(settings, graphs[0].num_nodes, features)
    # Every message has a header of fixed length, so HELLO and the like cancel but for the digits of a number.
    assert {party: (sent[4][party] - sent[2][party]) / 2 for party in expected} == expected
