"""How much of one sender's can wait unread in an honest session: it is at most about one pass ahead.

Bounds, not counts: several times what the largest message of a kind takes, so that no schedule of an honest session
comes near, and a sender that floods a party is noticed while that is still small.
"""

from __future__ import annotations

import math
from typing import Final

from veilgraph.link.mailbox import BOOKKEEPING_BYTES, SLACK_BYTES

ITEM_BYTES: Final = 8
PASSES: Final = 2
_BLOCKS: Final = 4
"""Of operands of the secure product, which holders prepare two ahead."""


def unread_of_passes(
    nodes: int, features: list[int], *, width: int, dim: int, rounds: int, batch_size: int | None = None
) -> int:
    """Of passes over common nodes.

    Args:
        nodes: C.
        features: of each party.
        width: of the widest matrix of a round.
        dim: of an embedding.
        rounds: of a pass.
        batch_size: nodes of a step; None: all.
    """
    matrix = ITEM_BYTES * nodes * width
    once = 2 * ITEM_BYTES * nodes * max(features) + _BLOCKS * ITEM_BYTES * dim * sum(features)
    batches = 1 if batch_size is None else math.ceil(nodes / batch_size)
    messages = 2 * rounds + 6
    return SLACK_BYTES + once + PASSES * messages * (matrix + BOOKKEEPING_BYTES * batches)
