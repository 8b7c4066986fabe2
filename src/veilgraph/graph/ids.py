"""Node ids beside tensors: text packed into two of them, so that one safetensors file holds all of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from numbers import Integral, Number
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.given import kind_of
from veilgraph.core.types import PartyId
from veilgraph.graph.rules import refuse

_BYTES: Final = "ids.utf8"
_ENDS: Final = "ids.ends"
ID_TENSORS: Final = (_BYTES, _ENDS)
"""Names of the tensors that ``pack_ids`` makes."""


def pack_ids(ids: Sequence[str], prefix: str = "") -> dict[str, Tensor]:
    """Text as UTF-8 in one uint8 vector, and where each ends as an int64 vector of ``len(ids)``."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in ids]
    joined = bytearray(b"".join(encoded))
    return {
        prefix + _BYTES: torch.frombuffer(joined, dtype=torch.uint8) if joined else torch.empty(0, dtype=torch.uint8),
        prefix + _ENDS: torch.tensor(list(accumulate(map(len, encoded))), dtype=torch.int64),
    }


def unpack_ids(tensors: Mapping[str, Tensor], prefix: str = "") -> list[str] | None:
    """What ``pack_ids`` packed; None where there are no ids."""
    if prefix + _ENDS not in tensors:
        return None
    joined, ends = tensors[prefix + _BYTES].numpy().tobytes(), tensors[prefix + _ENDS].tolist()
    return [joined[start:end].decode("utf-8", "surrogatepass") for start, end in pairwise([0, *ends])]


def checked_ids(party: PartyId, ids: Iterable[Hashable] | Tensor | np.ndarray, nodes: int) -> list[str]:
    """A holder's ids as text, one for each of its rows.

    Args:
        party: the holder.
        ids: of anything that ``str`` tells apart, and no fractional numbers, which pandas makes of a column with a gap:
            7.0 would be another node than 7. A vector's numbers count as Python's.
        nodes: N, rows of its graph.

    Raises:
        DataError: there are not N, one is no id, or is given twice.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        refuse(party, "ids", f"{kind_of(ids)} must be one id for each row", "give a list, a tensor or an array")
    values: Iterable[Hashable] = ids.tolist() if isinstance(ids, Tensor | np.ndarray) else ids
    given = list(values) if isinstance(values, Iterable) else [values]
    if strange := [value for value in given if value is None or isinstance(value, bytes) or _is_fractional(value)]:
        way_out = "write it as text or as a whole number, the same in every run"
        refuse(party, "ids", f"{strange[0]!r} is no id, for as text it would be another node's", way_out)
    texts = [str(value) for value in given]
    if len(texts) != nodes:
        refuse(party, "ids", f"{len(texts)} for {nodes} nodes", "give every row its node's id")
    if len(set(texts)) < nodes:
        seen: set[str] = set()
        twice = next(text for text in texts if text in seen or seen.add(text))  # type: ignore[func-returns-value]
        refuse(party, "ids", f"{twice!r} is given twice, as text", "a node has one row and one id; mend one")
    return texts


def _is_fractional(value: object) -> bool:
    return isinstance(value, Number) and not isinstance(value, Integral)
