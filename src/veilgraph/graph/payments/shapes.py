"""The shapes of patterns: who pays whom, in which stage. Members are slots, numbered over all patterns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilgraph.graph.payments.transfers import Whole
from veilgraph.graph.payments_settings import PATTERN_KINDS, PatternKind

_CYCLE: Final = "cycle"
_FEWEST_MEMBERS: Final = 4
_ONE: Final = (1, 1)
_NONE: Final = (0, 0)
_LAYERS: Final[dict[PatternKind, tuple[tuple[int, int], ...]]] = {
    "fan-in": ((4, 10), _ONE, _NONE),
    "fan-out": (_ONE, (4, 10), _NONE),
    "cycle": ((4, 10), _NONE, _NONE),
    "scatter-gather": (_ONE, (4, 9), _ONE),
    "bipartite": ((2, 4), (2, 4), _NONE),
    "stack": ((2, 3), (2, 3), (2, 3)),
}
"""Fewest and most members in each layer; every one of a layer pays every one of the next. A cycle is a ring of one."""
_MIDDLES: Final[dict[PatternKind, int]] = {"fan-in": 1, "fan-out": 0}
"""Layer of the one whom all others of a fan pay, or who pays them."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """P patterns of S slots in all, and their M transfers.

    Attributes:
        kind: int8 [P], place in ``PATTERN_KINDS``.
        pattern: int32 [S], which pattern a slot belongs to, ascending.
        middle: bool [S], the one in the middle of a fan.
        layers: int64 [P, 3], members in each layer.
        of: int32 [M], which pattern a transfer belongs to, ascending, in each by stage.
        source: int64 [M], the slot that pays.
        target: int64 [M].
        stage: int64 [M], from 0: all transfers of a stage come before those of the next.
        number: int64 [M], the transfer's place in its pattern.
    """

    kind: Whole
    pattern: Whole
    middle: NDArray[np.bool_]
    layers: Whole
    of: Whole
    source: Whole
    target: Whole
    stage: Whole
    number: Whole

    @property
    def stages(self) -> Whole:
        """How many stages each pattern has, [P]."""
        cycles = self.kind == PATTERN_KINDS.index(_CYCLE)
        return np.where(cycles, self.layers[:, 0], 1 + (self.layers[:, 2] > 0))

    @property
    def first_transfers(self) -> Whole:
        """Where each pattern's transfers begin, [P]."""
        return np.searchsorted(self.of, np.arange(len(self.kind)))


def draw_shapes(most_members: int, kinds: tuple[PatternKind, ...], generator: np.random.Generator) -> Shapes:
    """As many patterns as fit, in turn of each kind, of sizes drawn evenly.

    Args:
        most_members: S is at most that, and less than a pattern's below it.
        kinds: which there are.
        generator: of the sizes.
    """
    places = np.array([PATTERN_KINDS.index(kind) for kind in kinds])
    kind = np.resize(places, most_members // _FEWEST_MEMBERS + 1)
    fewest, most = np.array([_LAYERS[each] for each in PATTERN_KINDS]).transpose(2, 0, 1)
    layers = generator.integers(fewest[kind], most[kind] + 1)
    sizes = layers.sum(axis=1)
    fitting = np.cumsum(sizes) <= most_members
    kind, layers, sizes = kind[fitting].astype(np.int8), layers[fitting], sizes[fitting]
    first_slot = np.cumsum(sizes) - sizes
    pattern = np.repeat(np.arange(len(kind), dtype=np.int32), sizes)
    of, number = _counted(_transfer_counts(kind, layers))
    source, target, stage = _ends(kind[of], layers[of], number)
    middle = np.zeros(len(pattern), np.bool_)
    for name, layer in _MIDDLES.items():
        fans = kind == PATTERN_KINDS.index(name)
        middle[first_slot[fans] + layers[fans, :layer].sum(axis=1)] = True
    return Shapes(kind, pattern, middle, layers, of, first_slot[of] + source, first_slot[of] + target, stage, number)


def _transfer_counts(kind: Whole, layers: Whole) -> Whole:
    one, two, three = layers.T
    return np.asarray(np.where(kind == PATTERN_KINDS.index(_CYCLE), one, one * two + two * three))


def _counted(counts: Whole) -> tuple[Whole, Whole]:
    """0, 0, …, 1, …, each as often as said, and the place of each among those like it."""
    of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def _ends(kind: Whole, layers: Whole, number: Whole) -> tuple[Whole, Whole, Whole]:
    """Source, target and stage of the transfers of some numbers, slots counted from the pattern's first."""
    one, two, three = layers.T
    cycle, early = kind == PATTERN_KINDS.index(_CYCLE), number < one * two
    late = number - one * two
    wide, deep = np.maximum(two, 1), np.maximum(three, 1)
    source = np.where(cycle, number, np.where(early, number // wide, one + late // deep))
    target = np.where(cycle, (number + 1) % one, np.where(early, one + number % wide, one + two + late % deep))
    return source, target, np.where(cycle, number, ~early)
