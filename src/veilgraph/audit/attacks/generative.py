"""Features from a model's outputs by a generator: the generative regression network.

Luo, Wu, Xiao & Ooi 2021, "Feature Inference Attack on Model Predictions in Vertical Federated Learning", section V: a
generator makes unknown features out of the known ones and noise; the model is asked what it would put out for both; the
generator learns until that is what was put out. It needs none of the unknown features, but the model. In a vertical job
nobody has that: the adversary is granted some rows of the columns it is after, and fits a model to them, the linear one
of ``equations``.

Two things differ from the paper. The generator is given the outputs as well, so that it serves an adversary without
features; and a sigmoid keeps its values within the columns' range, in place of a penalty on their variance.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import backward
from torch.nn.functional import mse_loss

from veilgraph.audit.attacks.equations import fit_model
from veilgraph.audit.attacks.link_features import Floats, Numbers
from veilgraph.core.randomness import seeded_global

MAX_NODES: Final = 2000
"""The most nodes that a generator is trained on; it serves all."""

_HIDDEN: Final = 64
_NOISE: Final = 8
_STEPS: Final = 300
_RATE: Final = 5e-3


def generated_columns(
    own: Numbers, columns: Numbers, outputs: Numbers, known: NDArray[np.bool_], *, seed: int
) -> Floats:
    """Columns that make a model put out what was put out.

    Args:
        own: [N, F]; F may be 0.
        columns: [N, k] in [0, 1]; those of other than known nodes are not read.
        outputs: [N, m].
        known: [N] bool, of the model's fit.
        seed: of generator and noise.

    Returns:
        [N, k] float64 in [0, 1].

    Raises:
        DataError: the arrays do not fit each other, are not finite, or fewer than two nodes are known.
    """
    model = fit_model(own, columns, outputs, known)
    whiten = model.whitened()
    wanted = _tensor((outputs - own @ model.own - model.bias) @ whiten)
    weights = _tensor(model.columns @ whiten)
    scale = float(wanted.square().mean()) or 1.0
    with seeded_global(seed):
        generator = _network(own.shape[1] + outputs.shape[1] + _NOISE, columns.shape[1])
        noise = torch.randn(len(known), _NOISE)
        trained = torch.randperm(len(known))[:MAX_NODES]
    given = torch.cat([_standardised(own), _standardised(outputs), noise], dim=1)
    optimizer = torch.optim.Adam(generator.parameters(), lr=_RATE)
    inputs, asked = given[trained], wanted[trained]
    for _ in range(_STEPS):
        optimizer.zero_grad()
        backward(mse_loss(generator(inputs).sigmoid() @ weights, asked) / scale)
        optimizer.step()
    with torch.no_grad():
        return np.asarray(generator(given).sigmoid().double().numpy())


def _network(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, _HIDDEN), nn.LayerNorm(_HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, out))


def _standardised(rows: Numbers) -> Tensor:
    values = rows.astype(np.float64)
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return _tensor((values - values.mean(axis=0)) / spread)


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
