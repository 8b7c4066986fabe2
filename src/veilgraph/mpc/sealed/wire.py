"""What a secret value is to each party: a wire, or summands of one that is not opened yet.

A wire v in Z_2^n (n = 32 or 64) is a public Λ = v + λ that all holders know and a mask λ = Σ_p λ_p of which holder p
knows λ_p and the dealer all. A real number x with ``bits`` fractional bits is v = round(x·2^bits). Linear functions
of a wire are those of Λ and of λ: nobody sends anything.

The same classes serve all parties: at a holder ``public`` is Λ and ``mask`` its λ_p, at the dealer ``public`` is None
and ``mask`` is λ. In the twin ``public`` is x itself, floating, and the mask is zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Final, Literal, Self

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId

Ring = Literal[32, 64]
DTYPES: Final[dict[int, torch.dtype]] = {32: torch.int32, 64: torch.int64}
Bilinear = Callable[[Tensor, Tensor], Tensor]  # a bilinear function of two tensors
Index = int | slice | None | tuple[int | slice | None, ...]
# A linear function of a tensor: moves, copies, adds and negates entries, or multiplies them by whole numbers.
Linear = Callable[[Tensor], Tensor]
AT_ONCE: Final = 1 << 20  # entries of a wire that are opened together: more would hold many times its memory


class _Secret(ABC):
    """What wires and summands have in common: linear functions of them are those of each of their tensors."""

    @abstractmethod
    def map(self, function: Linear, bits: int = 0) -> Self:
        """Apply a linear function, which adds so many fractional bits to the result's."""

    def __getitem__(self, index: Index) -> Self:
        return self.map(lambda part: part[index])

    def __neg__(self) -> Self:
        return self.map(torch.neg)

    def times(self, factor: int | Tensor) -> Self:
        """Multiply by a public whole number, or by one for each entry: int64."""
        return self.map(lambda part: part * torch.as_tensor(factor, device=part.device, dtype=torch.int64))

    def halved(self, times: int) -> Self:
        """Divide by 2^times, exactly, by so many fractional bits more."""
        return self.map(lambda part: part * 2.0**-times if part.is_floating_point() else part, times)

    def scaled(self, factor: float, bits: int) -> Self:
        """Multiply by a public number rounded to so many fractional bits, which are added to its own."""
        whole = round(factor * 2.0**bits)
        return self.map(lambda part: part * (whole * 2.0**-bits if part.is_floating_point() else whole), bits)


@dataclass(frozen=True)
class Wire(_Secret):
    """v = Λ − λ, or a linear function of several.

    Attributes:
        public: Λ at a holder, x in the twin, None at the dealer.
        mask: λ_p at a holder, λ at the dealer, int32 or int64.
        bits: fractional bits.
        owner: who put it in and knows it, where it is what a holder put in; its mask is zero at all other holders.
    """

    public: Tensor | None
    mask: Tensor
    bits: int
    owner: PartyId | None = None

    @property
    def known(self) -> Tensor:
        """Λ, or x in the twin; ``TypeError`` at the dealer."""
        return _require_public(self.public)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of v."""
        return tuple(self.mask.shape)

    @property
    def ring(self) -> int:
        """Bits n of the ring Z_2^n: 32 or 64."""
        return 8 * self.mask.element_size()

    @override
    def map(self, function: Linear, bits: int = 0) -> Wire:
        public = None if self.public is None else function(self.public)
        return replace(self, public=public, mask=function(self.mask), bits=self.bits + bits)

    def fill(self, rows: slice, other: Wire) -> None:
        """Overwrite these rows, in place, with those of another wire."""
        self.mask[rows] = other.mask
        if self.public is not None:
            self.public[rows] = other.known

    def copied(self) -> Wire:
        """Copy a wire into memory of its own; a mask of zeros that takes none stays so."""
        return self.map(lambda part: part.clone() if any(part.stride()) else part)

    @property
    def T(self) -> Wire:  # noqa: N802 - as of a tensor
        """Transposed."""
        return self.map(torch.t)

    def columns(self, places: Tensor) -> Wire:
        """Select columns by their number: [N, d] → [N, n]."""
        return self.map(lambda part: part.index_select(1, places.to(part.device)))

    def sum(self, dim: int) -> Wire:
        """Sum along a dimension, which stays with size 1."""
        return self.map(lambda part: part.sum(dim, keepdim=True, dtype=part.dtype))

    def __add__(self, other: Wire) -> Wire:
        return _combine([self, other], lambda parts: parts[0] + parts[1])

    def __sub__(self, other: Wire) -> Wire:
        return _combine([self, other], lambda parts: parts[0] - parts[1])

    def plus(self, constant: float) -> Wire:
        """Add a public constant, rounded to the wire's fractional bits."""
        if self.public is None:
            return self
        what = constant if self.public.is_floating_point() else round(constant * 2.0**self.bits)
        return replace(self, public=self.public + what)


def plain_wire(values: Tensor, bits: int, ring: Ring = 64) -> Wire:
    """Make a wire of the twin from its numbers; its zero mask takes no memory."""
    return Wire(values, torch.zeros((), dtype=DTYPES[ring]).expand(values.shape), bits)


def to_float64(values: Tensor | None) -> Tensor:
    """Return numbers as the twin has them, float64; they must not be None."""
    assert values is not None
    return values.to(torch.float64)


def _require_public(public: Tensor | None) -> Tensor:
    if public is None:
        raise TypeError("a wire of another machine: its Λ is not known here")
    return public


def concatenate(wires: Sequence[Wire], dim: int = 0) -> Wire:
    """Concatenate wires along a dimension; one alone is not copied."""
    return wires[0] if len(wires) == 1 else _combine(wires, lambda parts: torch.cat(list(parts), dim))


def row_slices(shape: Sequence[int], most: int | None = None) -> list[slice]:
    """Divide the rows of a tensor of ``shape`` into slices of ``most`` entries, by default ``AT_ONCE``, or of a row."""
    step = max(1, (most or AT_ONCE) // max(1, prod(shape[1:])))
    return [slice(start, min(start + step, shape[0])) for start in range(0, max(1, shape[0]), step)]


def joined(wires: Iterable[Wire], size: int, dim: int = 0) -> Wire:
    """Concatenate wires along a dimension to ``size``, one at a time; ``ValueError``: they are more or fewer."""
    found: Wire | None = None
    start = 0
    for wire in wires:
        width = wire.shape[dim]
        if found is None and width == size:
            found, start = wire, size
            continue
        if found is None:
            shape = (*wire.shape[:dim], size, *wire.shape[dim + 1 :])
            public = None if wire.public is None else wire.public.new_empty(shape)
            found = Wire(public, wire.mask.new_empty(shape), wire.bits)
        if start + width <= size:
            found.mask.narrow(dim, start, width).copy_(wire.mask)
            if found.public is not None:
                found.public.narrow(dim, start, width).copy_(wire.known)
        start += width
    if found is None or start != size:
        raise ValueError(f"{start} rows or columns came, and {size} were said to")
    return found


def _combine(wires: Sequence[Wire], function: Callable[[Sequence[Tensor]], Tensor]) -> Wire:
    """Apply a function to wires' public parts and to their masks; ``ValueError``: their rings or bits differ."""
    first = wires[0]
    if any((wire.bits, wire.ring) != (first.bits, first.ring) for wire in wires):
        kinds = ", ".join(f"{wire.bits} bits of Z_2^{wire.ring}" for wire in wires)
        raise ValueError(f"wires of {kinds} cannot be added or joined: open them with the same bits")
    publics = [wire.public for wire in wires if wire.public is not None]
    public = function(publics) if publics else None
    owners = {wire.owner for wire in wires}
    return Wire(public, function([wire.mask for wire in wires]), first.bits, owners.pop() if len(owners) == 1 else None)


@dataclass(frozen=True)
class Summands(_Secret):
    """A secret that is still a sum: ``part`` is this party's summand, of the dealer's too; in the twin all of it.

    ``of_holders``: the dealer's is zero, whatever the data are, and all parties know it.
    """

    part: Tensor
    bits: int
    of_holders: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the secret."""
        return tuple(self.part.shape)

    @override
    def map(self, function: Linear, bits: int = 0) -> Summands:
        return replace(self, part=function(self.part), bits=self.bits + bits)

    def __add__(self, other: Summands) -> Summands:
        self._check(other)
        return replace(self, part=self.part + other.part, of_holders=self.of_holders and other.of_holders)

    def __sub__(self, other: Summands) -> Summands:
        self._check(other)
        return replace(self, part=self.part - other.part, of_holders=self.of_holders and other.of_holders)

    def _check(self, other: Summands) -> None:
        if self.bits != other.bits or self.part.dtype != other.part.dtype:
            raise ValueError(f"summands of {self.bits} and {other.bits} bits cannot be added; shift one of them")


def in_a_row(several: Sequence[Summands]) -> Summands:
    """All entries of summands of the same bits, one after another, to be opened together: [n]."""
    first, *others = several
    for other in others:
        first._check(other)
    return Summands(torch.cat([each.part.reshape(-1) for each in several]), first.bits)


def apart(joined: Wire, shapes: Sequence[tuple[int, ...]]) -> list[Wire]:
    """The inverse of ``in_a_row``: wires of these shapes out of a wire [n]."""
    ends = list(accumulate(map(prod, shapes)))
    return [
        joined[end - prod(shape) : end].map(partial(torch.reshape, shape=shape))
        for end, shape in zip(ends, shapes, strict=True)
    ]


@dataclass(frozen=True)
class Bit:
    """A secret bit b = Λ ⊕ λ for every entry: Λ, bool, None at the dealer; and a share of λ, or λ, int64."""

    public: Tensor | None
    mask: Tensor

    @property
    def known(self) -> Tensor:
        """Λ, or b in the twin; ``TypeError`` at the dealer."""
        return _require_public(self.public)

    def __invert__(self) -> Bit:
        return replace(self, public=None if self.public is None else ~self.public)

    def map(self, function: Linear) -> Bit:
        """Apply a function that moves or copies entries."""
        public = None if self.public is None else function(self.public)
        return Bit(public, function(self.mask))
