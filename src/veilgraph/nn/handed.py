"""Backward passes that begin with gradients from elsewhere, without sympy.

Where torch is handed a gradient, it compares shapes by way of those that its compiler traces, and imports sympy for it:
a third of a second of computing and tens of MB in every process that trains. Of a number it asks for no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override


class _Handed(torch.autograd.Function):
    @staticmethod
    @override
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    @override
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *ctx.gradients


def handed(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """A number, 0, whose backward pass is that of ``outputs`` from ``gradients``, to the bit.

    Args:
        outputs: one or more, whose gradients are known.
        gradients: of each of them, of its shape and dtype.

    Raises:
        RuntimeError: a gradient has another shape than its output.
    """
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.shape != gradient.shape:
            raise RuntimeError(f"a gradient of shape {tuple(gradient.shape)} for an output of {tuple(output.shape)}")
    with torch.enable_grad():
        return cast(Tensor, _Handed.apply(gradients, *outputs))  # type: ignore[no-untyped-call]
