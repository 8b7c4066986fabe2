"""Adam, and backward passes from given gradients, without what torch first imports for its compiler.

That takes seconds of computing and up to 80 MB in every process that trains, and nothing here is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import unwrap
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, to the bit: its methods as they are before torch wraps them for its compiler."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


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

    Where torch is handed a gradient, it compares shapes by way of those that its compiler traces, and imports sympy for
    it. Of a number it asks for no gradient.
    """
    for output, gradient in zip(outputs, gradients, strict=True):
        if output.shape != gradient.shape:
            raise RuntimeError(f"a gradient of shape {tuple(gradient.shape)} for an output of {tuple(output.shape)}")
    with torch.enable_grad():
        return cast(Tensor, _Handed.apply(gradients, *outputs))  # type: ignore[no-untyped-call]
