"""Whole numbers in fewer bytes, against integers of Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from veilgraph.mpc.sealed.kept_bytes import keep, kept_form, restore


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_what_is_kept_is_the_number_but_for_what_lies_below_and_above(dtype: Any) -> None:
    """Of any number of low bits, whole bytes or not: numbers of both signs, those that wrap around too."""
    least, most, width = torch.iinfo(dtype).min, torch.iinfo(dtype).max, torch.iinfo(dtype).bits
    drawn = torch.randint(least, most, (2, 50), generator=torch.Generator().manual_seed(1), dtype=dtype)
    numbers = torch.cat([drawn, torch.tensor([[least, most, 0, 1, -1]] * 2, dtype=dtype)], 1)
    form = tuple(numbers.shape), dtype
    for low in range(width):
        for octets in range(1, (width - low) // 8 + 1):
            kept = keep(numbers, (low, octets))
            assert (tuple(kept.shape), kept.dtype) == kept_form(form, (low, octets))
            found = restore(kept, (low, octets), form)
            for number, other in zip(numbers.view(-1).tolist(), found.view(-1).tolist(), strict=True):
                half, modulus = 1 << low >> 1, 1 << low + 8 * octets
                assert (number - other + half) % modulus <= 2 * half
                assert other % (1 << low) == 0
