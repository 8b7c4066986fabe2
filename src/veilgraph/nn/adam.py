"""Adam without ``torch.compile``.

What an optimiser of torch does first imports the compiler, seconds of computing and 80 MB in every process that
trains; nothing here is compiled.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer


class Adam(torch.optim.Adam):
    """``torch.optim.Adam``, to the bit: its methods as they are before torch wraps them for its compiler."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))
