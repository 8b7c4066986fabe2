"""The protocol's own formula for bytes per training step (docs/protocol.md), to hold against what was sent."""

from __future__ import annotations

from collections.abc import Mapping

from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.paradigms.vertical.network import deep_width
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.protocol.job import JobSettings


def step_bytes(settings: JobSettings, nodes: int, features: Mapping[PartyId, int]) -> dict[PartyId, int]:
    """Bytes that each party sends in one training step of a collaborative job.

    Args:
        settings: of the job.
        nodes: N.
        features: holder → number of its feature columns.
    """
    model = vertical(settings).model
    peers, rounds, dim = len(features) - 1, model.rounds, model.dim
    real = 8 if settings.precision == "float64" else 4
    ring_rows = 8 * nodes * dim + HEADER_BYTES
    real_rows = real * nodes * dim + HEADER_BYTES
    published = ring_rows if model.combine.is_masked else real_rows
    deep_rows = real * nodes * deep_width(model, len(features)) + HEADER_BYTES
    total = sum(features.values())
    sent = {}
    for holder, columns in features.items():
        operands = 8 * dim * (total - columns) + peers * HEADER_BYTES
        opened, gradients = peers * ring_rows, peers * ring_rows
        sent[holder] = operands + opened + gradients + (2 * rounds - 1) * published
    sent[settings.data.label_party] += deep_rows
    correlations = sum(ring_rows + 8 * columns * dim + HEADER_BYTES for columns in features.values())
    sent[SERVER] = correlations + (2 * rounds - 1) * len(features) * real_rows + deep_rows
    return sent
