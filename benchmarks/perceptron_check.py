"""What SPU's program of the default sealed network is given and reports; needs only numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WEIGHT_TOLERANCE, CLASS_TOLERANCE = 2.0**-5, 0.02


@dataclass(frozen=True)
class Values:
    """Of a job.

    Attributes:
        hops: K.
        teleport: α.
        learning_rate, momentum, weight_decay: of SGD.
    """

    hops: int
    teleport: float
    learning_rate: float
    momentum: float
    weight_decay: float


@dataclass(frozen=True)
class Figures:
    """Seconds, and bytes of the holder that sends most.

    Attributes:
        set_up_s, step_s, predict_s: the step's is a median.
        set_up_bytes, step_bytes, predict_bytes: sent.
        error: largest difference of a weight from the plain one.
    """

    set_up_s: float
    step_s: float
    predict_s: float
    set_up_bytes: int
    step_bytes: int
    predict_bytes: int
    error: float

    def whole_s(self, steps: int) -> float:
        """Of a job with so many steps."""
        return self.set_up_s + steps * self.step_s + self.predict_s

    def whole_bytes(self, steps: int) -> int:
        """Likewise."""
        return self.set_up_bytes + steps * self.step_bytes + self.predict_bytes


def load(path: Path) -> tuple[Values, dict[str, np.ndarray]]:
    """``x0``, ``x1`` [N, F_i], ``a0``, ``a1`` [N, N], ``rows`` [T, N], ``y`` [T, C], weights and velocities; float32.

    They are ``w1`` [1 + F, C + h], the bias first, ``w2`` [h, C], and ``v1``, ``v2`` of the same shapes.
    """
    with np.load(path, allow_pickle=False) as arrays:
        values = dict(arrays)
    hops, *rest = values.pop("options").tolist()
    return Values(int(hops), *rest), values


def save(path: Path, options: Values, values: dict[str, np.ndarray]) -> None:
    """As ``load`` reads it."""
    numbers = [options.hops, options.teleport, options.learning_rate, options.momentum, options.weight_decay]
    arrays: dict[str, Any] = {name: value.astype(np.float32) for name, value in values.items()}
    np.savez(path, options=np.array(numbers), **arrays)


def check(found: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> float:
    """Compares weights and classes with those in plaintext.

    Returns:
        The largest error of a weight.

    Raises:
        RuntimeError: if that, or the share of other classes, is beyond its tolerance.
    """
    error = max(float(np.abs(found[name] - plain[name]).max()) for name in ("w1", "w2"))
    other = float((found["classes"] != plain["classes"]).mean())
    if error > WEIGHT_TOLERANCE or other > CLASS_TOLERANCE:
        raise RuntimeError(f"weights are off by {error}, and {100 * other:.1f} % of the classes are others")
    return error
