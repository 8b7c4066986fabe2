"""An opening with truncation is exact to one unit and right on average, whatever is opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.mpc.sealed.faults import bits_unmasked
from tests.mpc.sealed.parties import of, run, secret
from tests.mpc.sessions import fixed_secrets
from veilgraph.core.types import Kind, PartyId
from veilgraph.link.view import RecordedLink
from veilgraph.mpc import bits as planes
from veilgraph.mpc.sealed.correlations import Holder
from veilgraph.mpc.sealed.machine import Machine
from veilgraph.mpc.sealed.opening import GUARD, Open
from veilgraph.mpc.sealed.wire import Wire

# ring of what is opened, bits that are cut off, ring of the result
CUTS = (
    *((64, shift, 64) for shift in (1, 16, 31, 32, 33, 48, 61)),
    *((64, shift, 32) for shift in (1, 16, 32, 33, 61)),
    *((32, shift, ring) for shift in (1, 16, 29) for ring in (32, 64)),
    (32, 0, 64),
)


def numbers(ring: int, shift: int, count: int, seed: int) -> Tensor:
    """All that may be opened: uniform numbers, small ones, and those next to the ends and to multiples of 2^shift."""
    draw = np.random.default_rng(seed)
    most = 1 << (ring - GUARD)
    uniform = draw.integers(1 - most, most, count // 2)
    small = draw.integers(-(4 << shift), 4 << shift, count // 4) if 4 << shift < most else uniform[: count // 4]
    steps = draw.integers(-(most >> shift), most >> shift, count - len(uniform) - len(small) - 6) << shift
    near = np.clip(steps + draw.integers(-1, 2, len(steps)), 1 - most, most - 1)
    ends = [1 - most, 2 - most, most - 1, most - 2, 0, -1]
    return torch.from_numpy(np.concatenate([uniform, small, near, ends]).astype(np.int64))


def opened(ring: int, shift: int, result: Any, x: Tensor, holders: int, seed: object) -> Tensor:
    """What the parties make of x · 2^−shift."""

    def program(machine: Machine) -> Wire:
        summands = machine.summands(of(machine, "B", x), tuple(x.shape), 0, of="B")
        if ring == 32:
            summands = machine.split(machine.open(summands, 0, 32))
        return machine.open(summands, shift, result)

    found = secret(run(program, holders, secrets=fixed_secrets("truncation", seed)))
    return found.to(torch.int32).to(torch.int64) if result == 32 else found


def check(ring: int, shift: int, result: Any, count: int, holders: int, seed: int) -> tuple[float, float]:
    """How many were rounded up beyond what is expected, and the variance of that number."""
    x = numbers(ring, shift, count, seed)
    up = opened(ring, shift, result, x, holders, (ring, shift, result, seed)) - (x >> shift)
    if result == 32:  # the quotient may be more than the result's ring holds
        up = up & 0xFFFF_FFFF
    rest = (x & ((1 << shift) - 1)).to(torch.float64) * 2.0**-shift
    assert ((up == 0) | (up == 1)).all()
    assert (up[rest == 0] == 0).all()
    return float(up.sum() - rest.sum()), float((rest * (1 - rest)).sum())


@pytest.mark.parametrize("holders", [2, 3])
@pytest.mark.parametrize(("ring", "shift", "result"), CUTS)
def test_an_opened_number_is_cut_off_to_one_unit_and_right_on_average(
    ring: int, shift: int, result: int, holders: int
) -> None:
    excess, variance = check(ring, shift, result, 70_000, holders, 0)
    assert abs(excess) <= 5 * variance**0.5


@nightly
def test_a_hundred_million() -> None:
    for ring, shift, result in CUTS:
        parts = [check(ring, shift, result, 1_000_000, 2 + seed % 2, 1 + seed) for seed in range(8)]
        excess, variance = (sum(each) for each in zip(*parts, strict=True))
        assert abs(excess) <= 5 * variance**0.5, (ring, shift, result)


@pytest.mark.parametrize("holders", [2, 3])
def test_what_is_out_of_range_is_wrong(holders: int) -> None:
    """The bound is that of the protocol: half of the numbers far beyond it come out wrong."""
    x = torch.full((64,), 3 << 61)
    up = opened(64, 16, 64, x, holders, 0) - (x >> 16)
    assert not ((up == 0) | (up == 1)).all()


SIZE, VALUE = 4096, 1 << 61


def guessed(x: Tensor) -> float:
    """How many signs of values of one size B gets right, of those between which A's highest bit decides."""
    summands: dict[str, Tensor] = {}
    links: dict[PartyId, RecordedLink] = {}
    cut = Open.cut_by_bits

    def spied(self: Open, holder: Holder, tag: Any, summand: Tensor, *more: Any) -> Tensor:
        summands[holder.party] = summand
        return cut(self, holder, tag, summand, *more)

    def program(machine: Machine) -> Wire:
        return machine.open(machine.summands(of(machine, "A", x), (SIZE,), 0, of="A"), 16)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Open, "cut_by_bits", spied)
        run(program, links=links, secrets=fixed_secrets("signs"), keeps=True)
    (got,) = [each for each in links["B"].transcript() if (each.sender, each.tag.kind) == ("A", Kind.MASKED_BITS)]
    bit, own = planes.from_plane(got.tensor, SIZE).numpy(), summands["B"].numpy().view(np.uint64)
    up, down = ((np.uint64((1 << 62) - 1 + value) - own) < np.uint64(1 << 63) for value in (VALUE, -VALUE))
    decides = up != down
    assert 500 < decides.sum() < SIZE
    return float(np.mean((bit == up)[decides] == (x.numpy() > 0)[decides]))


def test_what_a_bit_tells_of_a_sign_its_mask_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    """B knows its own summand, and so what A's highest bit is for each value that there may be."""
    x = torch.where(torch.arange(SIZE) % 3 == 0, VALUE, -VALUE)
    assert abs(guessed(x) - 0.5) < 0.1
    bits_unmasked(SIZE)(monkeypatch)
    assert guessed(x) == 1
