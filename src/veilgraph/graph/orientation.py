"""A public orientation of a graph: every pair of nodes points one way, and everybody can compute which."""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import Final

import torch
from torch import Tensor

_PAIR_BYTES: Final = 16  # of two rows


def oriented(edges: Tensor, seed: int) -> Tensor:
    """Each pair of nodes once, whichever way and however often it is there, from one end to the other: int64 [2, P].

    Of edges int64 [2, E] from a node to itself there is none. A hash of the seed and the pair, in the order of rows,
    says where it points, and so nothing else that a holder has does.
    """
    low, high = edges.aminmax(dim=0)
    pairs = torch.unique(torch.stack([low, high])[:, low != high], dim=1)
    ends, key = pairs.T.numpy().astype("<i8").tobytes(), sha256(f"votes/{seed}".encode()).digest()
    drawn = (
        blake2b(ends[at : at + _PAIR_BYTES], key=key, digest_size=1).digest()[0] & 1
        for at in range(0, len(ends), _PAIR_BYTES)
    )
    turns: Tensor = torch.tensor(list(drawn), dtype=torch.bool)
    return torch.where(turns, pairs.flip(0), pairs)
