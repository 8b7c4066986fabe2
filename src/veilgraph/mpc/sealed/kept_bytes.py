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
    (low, count), (first, rest) = kept, divmod(kept[0], 8)
    rounded = values + (1 << low - 1) if low else values
    octets = (rounded >> rest if rest else rounded).unsqueeze(-1).view(torch.uint8)
    return octets[..., first : first + count]


def restore(octets: Tensor, kept: Kept, form: Form) -> Tensor:
    """Return numbers of ``form`` from what ``keep`` made of them, but for what it rounded off, and what lay above."""
    (_, count), (first, rest) = kept, divmod(kept[0], 8)
    whole = torch.zeros((*form[0], 1), dtype=form[1])
    whole.view(torch.uint8)[..., first : first + count] = octets
    return (whole << rest if rest else whole).squeeze(-1)
