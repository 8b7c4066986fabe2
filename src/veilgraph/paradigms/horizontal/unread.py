"""How much of one sender's can wait unread in an honest horizontal session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from veilgraph.link.mailbox import MAX_UNREAD_BYTES, SLACK_BYTES
from veilgraph.paradigms.horizontal.network import LayerWidths
from veilgraph.paradigms.horizontal.settings import HorizontalJob
from veilgraph.protocol.unread import ITEM_BYTES, PASSES

_SHARED_BYTES: Final = 1 << 30
"""Gradients of the weights that all holders share, and their tallies: a few of up to 3 + 3·C² numbers."""
_SECURE_MAX: Final = 4
"""Times the default: what is dealt a step ahead for a secure maximum has many times the size of its rows."""


def unread_bytes_by_rows(job: HorizontalJob, rows: int, widths: Sequence[LayerWidths]) -> int:
    """Of a horizontal job.

    Args:
        job: horizontal.
        rows: of the holder; at the server of the largest.
        widths: of the layers.
    """
    if job.model.combine == "secure-max":
        return _SECURE_MAX * MAX_UNREAD_BYTES
    columns = sum(layer.sent + layer.output for layer in widths)
    return SLACK_BYTES + _SHARED_BYTES + 4 * PASSES * ITEM_BYTES * rows * columns
