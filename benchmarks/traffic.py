"""Bytes of a training step, as the plan of a job has them, to hold against what was sent."""

from __future__ import annotations

from collections.abc import Mapping

from veilgraph.core.types import PartyId
from veilgraph.paradigms.vertical.paradigm import costs_of
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.costs import PartySizes
from veilgraph.protocol.job import JobSettings


def step_bytes(settings: JobSettings, nodes: int, features: Mapping[PartyId, int]) -> dict[PartyId, int]:
    """Bytes that each party sends in one more training step, without an evaluation.

    Args:
        settings: of the job, whole graphs at a time.
        nodes: N.
        features: holder → number of its feature columns.
    """
    sizes = {holder: PartySizes(columns, 0) for holder, columns in features.items()}
    sent = []
    for steps in (2, 3):
        train = settings.train.model_copy(update={"epochs": steps, "evaluate_every": steps})
        costs = costs_of(vertical(settings).model_copy(update={"train": train}), nodes, sizes)
        assert costs is not None
        sent.append(costs.sent())
    return {party: sent[1][party] - sent[0][party] for party in sent[0]}
