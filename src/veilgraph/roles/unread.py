"""How much of one sender's can wait unread in an honest session: it is at most about one pass ahead.

Bounds, not counts: several times what the largest message of a kind takes, so that no schedule of an honest session
comes near, and a sender that floods a party is noticed while that is still small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from veilgraph.core.config import JobSettings
from veilgraph.core.types import PartyId
from veilgraph.link.mailbox import BOOKKEEPING_BYTES, MAX_UNREAD_BYTES, SLACK_BYTES
from veilgraph.nn.layered import LayerWidths
from veilgraph.roles.agreement import Hello

_ITEM_BYTES: Final = 8
_PASSES: Final = 2
_BLOCKS: Final = 4
"""Of operands of the secure product, which holders prepare two ahead."""
_SHARED_BYTES: Final = 1 << 30
"""Gradients of the weights that all holders share, and their tallies: a few of up to 3 + 3·C² numbers."""
_SECURE_MAX: Final = 4
"""Times the default: what is dealt a step ahead for a secure maximum has many times the size of its rows."""


def unread_bytes(job: JobSettings, hellos: Mapping[PartyId, Hello]) -> int:
    """Of a job about common nodes, from what all parties state.

    Args:
        job: vertical or local.
        hellos: of all parties.
    """
    nodes = max(hello.nodes for hello in hellos.values())
    features = [hello.features for hello in hellos.values()]
    model = job.model
    width = model.dim * (len(job.data.names) if model.combine.strategy == "concat" else 1)
    matrix = _ITEM_BYTES * nodes * width
    once = 2 * _ITEM_BYTES * nodes * max(features) + _BLOCKS * _ITEM_BYTES * model.dim * sum(features)
    batches = 1 if job.train.batch_size is None else math.ceil(nodes / job.train.batch_size)
    messages = 2 * model.rounds + 6
    return SLACK_BYTES + once + _PASSES * messages * (matrix + BOOKKEEPING_BYTES * batches)


def unread_bytes_by_rows(job: JobSettings, rows: int, widths: Sequence[LayerWidths]) -> int:
    """Of a horizontal job.

    Args:
        job: horizontal.
        rows: of the holder; at the server of the largest.
        widths: of the layers.
    """
    if job.horizontal.combine == "secure-max":
        return _SECURE_MAX * MAX_UNREAD_BYTES
    columns = sum(layer.sent + layer.output for layer in widths)
    return SLACK_BYTES + _SHARED_BYTES + 4 * _PASSES * _ITEM_BYTES * rows * columns
