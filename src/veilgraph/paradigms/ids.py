"""Node ids beside tensors: text packed into two of them, so that one safetensors file holds all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final

import torch
from torch import Tensor

_BYTES: Final = "ids.utf8"
_ENDS: Final = "ids.ends"


def pack_ids(ids: Sequence[str]) -> dict[str, Tensor]:
    """Text as UTF-8 in one uint8 vector, and where each ends as an int64 vector of ``len(ids)``."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in ids]
    joined = bytearray(b"".join(encoded))
    return {
        _BYTES: torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8),
        _ENDS: torch.tensor(list(accumulate(map(len, encoded))), dtype=torch.int64),
    }


def unpack_ids(tensors: Mapping[str, Tensor]) -> list[str] | None:
    """What ``pack_ids`` packed; None where there are no ids."""
    if _ENDS not in tensors:
        return None
    joined = tensors[_BYTES].numpy().tobytes()
    return [
        joined[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise([0, *tensors[_ENDS].tolist()])
    ]
