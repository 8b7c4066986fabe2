"""Features from a model's outputs by a generator: the generative regression network.

Luo, Wu, Xiao & Ooi 2021, "Feature Inference Attack on Model Predictions in Vertical Federated Learning", section V: a
generator makes unknown features out of the known ones and noise; the model is asked what it would put out for both; the
generator learns until that is what was put out. It needs none of the unknown features, but the model. In a vertical job
nobody has that: the adversary is granted some rows of the columns it is after, and learns a model of the outputs from
them.

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

from veilgraph.audit.attacks.link_features import Floats, Numbers, check_rows
from veilgraph.core.errors import DataError
from veilgraph.core.randomness import seeded_global

MAX_NODES: Final = 2000
"""The most nodes that a generator is trained on; it serves all."""

_HIDDEN: Final = 64
_NOISE: Final = 8
_MODEL_STEPS: Final = 300
_STEPS: Final = 300
_RATE: Final = 5e-3
_DECAY: Final = 1e-3


def generated_columns(
    own: Numbers, columns: Numbers, outputs: Numbers, known: NDArray[np.bool_], *, seed: int
) -> Floats:
    """Columns that make a model put out what was put out.

    Args:
        own: [N, F]; F may be 0.
        columns: [N, k] in [0, 1]; those of other than known nodes are not read.
        outputs: [N, m].
        known: [N] bool, of the model's training.
        seed: of model, generator and noise.

    Returns:
        [N, k] float64 in [0, 1].

    Raises:
        DataError: the arrays do not fit each other, are not finite, or fewer than two nodes are known.
    """
    if known.dtype != np.bool_ or known.shape != (len(outputs),) or known.sum() < 2:
        raise DataError(
            f"known is {known.dtype} {known.shape}; give one bool for each of {len(outputs)} nodes, two True"
        )
    made = _standardised(check_rows("outputs", outputs, len(known)))
    mine = _standardised(check_rows("own", own, len(known))) if own.shape[1] else made[:, :0]
    truth = torch.from_numpy(check_rows("columns", columns[known], int(known.sum())).astype(np.float32))
    with seeded_global(seed):
        model = _network(mine.shape[1] + truth.shape[1], made.shape[1])
        generator = _network(mine.shape[1] + made.shape[1] + _NOISE, truth.shape[1])
        noise = torch.randn(len(known), _NOISE)
        trained = torch.randperm(len(known))[:MAX_NODES]
    learned = torch.from_numpy(known)
    _train(model, torch.cat([mine[learned], truth], dim=1), made[learned], _MODEL_STEPS)
    given = torch.cat([mine, made, noise], dim=1)
    optimizer = torch.optim.Adam(generator.parameters(), lr=_RATE)
    inputs, own_part, wanted = given[trained], mine[trained], made[trained]
    for _ in range(_STEPS):
        optimizer.zero_grad()
        backward(mse_loss(model(torch.cat([own_part, generator(inputs).sigmoid()], dim=1)), wanted))
        optimizer.step()
    with torch.no_grad():
        return np.asarray(generator(given).sigmoid().double().numpy())


def _train(model: nn.Module, inputs: Tensor, wanted: Tensor, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE, weight_decay=_DECAY)
    for _ in range(steps):
        optimizer.zero_grad()
        backward(mse_loss(model(inputs), wanted))
        optimizer.step()
    for parameter in model.parameters():
        parameter.requires_grad = False


def _network(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, _HIDDEN), nn.LayerNorm(_HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, out))


def _standardised(rows: Numbers) -> Tensor:
    values = rows.astype(np.float64)
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return torch.from_numpy(((values - values.mean(axis=0)) / spread).astype(np.float32))
