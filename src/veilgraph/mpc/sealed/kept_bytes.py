"""Whole numbers in fewer bytes: what is rounded off below, and left out above, of what a dealer sends."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

Form: TypeAlias = tuple[tuple[int, ...], torch.dtype]  # shape and dtype of a tensor
Kept: TypeAlias = tuple[int, int]  # how many low bits of an entry are rounded off, and how many bytes above them stay


def kept_form(form: Form, kept: Kept) -> Form:
    """Form of what ``keep`` makes of a tensor."""
    return (*form[0], kept[1]), torch.uint8


def keep(values: Tensor, kept: Kept) -> Tensor:
    """Round whole numbers to the nearest multiple of 2^low, and keep bytes of the rest: uint8 [*shape, bytes]."""
    low, count = kept
    whole = values.to(torch.int64)
    if low:
        whole = whole + (1 << low - 1) >> low
    return whole.unsqueeze(-1).view(torch.uint8)[..., :count]


def restore(octets: Tensor, kept: Kept, form: Form) -> Tensor:
    """Return numbers of ``form`` from what ``keep`` made of them, but for what it rounded off, and what lay above."""
    low, count = kept
    whole = torch.zeros((*form[0], 8), dtype=torch.uint8)
    whole[..., :count] = octets
    return (whole.view(torch.int64).squeeze(-1) << low).to(form[1])
