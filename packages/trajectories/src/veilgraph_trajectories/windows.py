"""Pieces of equal length of a recording, as a recurrent network takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph_trajectories.near import pairs_in

Whole = NDArray[np.signedinteger[Any]]
Real = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Windows:
    """M tracks, each an object in one window of T frames; those of a window see each other.

    Attributes:
        positions: Tensor[M, T, 2], metres; 0 where an object is not there.
        here: Tensor[M, T] bool, whether it is there.
        pairs: Tensor[2, Q] int64, all ordered pairs of tracks of one window.
        near: for each frame Tensor[2, E] int64, those of the pairs that are near each other in it.
        object: Tensor[M] int64.
        start: Tensor[M] int64, the window's first frame.
    """

    positions: Tensor
    here: Tensor
    pairs: Tensor
    near: tuple[Tensor, ...]
    object: Tensor
    start: Tensor

    def __len__(self) -> int:
        return len(self.object)

    def take(self, keep: Tensor) -> Windows:
        """Whole windows, by Tensor[M] bool that is the same for all tracks of one."""
        number = keep.cumsum(0) - 1

        def kept(pairs: Tensor) -> Tensor:
            return number[pairs[:, keep[pairs[0]]]]

        return Windows(
            positions=self.positions[keep],
            here=self.here[keep],
            pairs=kept(self.pairs),
            near=tuple(kept(pairs) for pairs in self.near),
            object=self.object[keep],
            start=self.start[keep],
        )


def windows(
    objects: Whole, frame: Whole, position: Real, *, length: int, stride: int, radius: float, dtype: torch.dtype
) -> Windows:
    """All windows of a recording that begin ``stride`` frames after each other, from its first frame on.

    The last ones reach past the end. Tracks are those of objects that are there in some frame, by window and object.

    Args:
        objects: int64 [R], which object a row is of; no object is twice in a frame.
        frame: int64 [R].
        position: float [R, 2], metres.
        length: T, of frames.
        stride: at most T.
        radius: metres; who is nearer is near.
        dtype: of positions.
    """
    first = frame.min() if len(frame) else 0
    since, parts = frame - first, []
    for earlier in range(-(-length // stride)):
        number = since // stride - earlier
        inside = (number >= 0) & (since - number * stride < length)
        parts.append((number[inside], np.flatnonzero(inside)))
    number, row = (np.concatenate(each) for each in zip(*parts, strict=True))
    keys, track = np.unique(np.stack([number, objects[row]], axis=1), axis=0, return_inverse=True)
    positions, here = np.zeros((len(keys), length, 2)), np.zeros((len(keys), length), bool)
    place = track.ravel(), since[row] - number * stride
    positions[place], here[place] = position[row], True
    where, there = torch.from_numpy(positions).to(dtype), torch.from_numpy(here)
    pairs = torch.from_numpy(pairs_in(keys[:, 0]))
    return Windows(
        positions=where,
        here=there,
        pairs=pairs,
        near=tuple(near_of(where[:, t], there[:, t], pairs, radius) for t in range(length)),
        object=torch.from_numpy(keys[:, 1].copy()),
        start=torch.from_numpy(first + keys[:, 0] * stride),
    )


def side_by_side(parts: Sequence[Windows]) -> Windows:
    """Windows of several recordings, which know nothing of each other."""
    before = np.cumsum([0, *map(len, parts)]).tolist()

    def moved(pairs: Sequence[Tensor]) -> Tensor:
        return torch.cat([each + first for each, first in zip(pairs, before, strict=False)], dim=1)

    return Windows(
        positions=torch.cat([each.positions for each in parts]),
        here=torch.cat([each.here for each in parts]),
        pairs=moved([each.pairs for each in parts]),
        near=tuple(moved(each) for each in zip(*(each.near for each in parts), strict=True)),
        object=torch.cat([each.object for each in parts]),
        start=torch.cat([each.start for each in parts]),
    )


def near_of(position: Tensor, here: Tensor, pairs: Tensor, radius: float) -> Tensor:
    """The pairs of which both are there, less than ``radius`` apart.

    Args:
        position: Tensor[M, 2], metres.
        here: Tensor[M] bool.
        pairs: Tensor[2, Q] int64.
        radius: metres.

    Returns:
        Tensor[2, E] int64.
    """
    both = pairs[:, here[pairs].all(0)]
    one, other = position.detach()[both]
    return both[:, (one - other).square().sum(1) < radius**2]
