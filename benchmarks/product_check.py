"""What the programs of peers report of the secure product, and the check of their results; needs only numpy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

TOLERANCE = 2.0**-5
"""Of a sum of as many truncated products as there are rows or columns."""


@dataclass(frozen=True)
class PeerFigures:
    """One step; medians.

    Attributes:
        seconds: of all of it.
        online_seconds: after what can be made ahead was made; all of it where nothing can.
        sent_bytes: online, by the holder that sends most.
        ahead_bytes: by a dealer.
        error: largest difference from the plain product.
    """

    seconds: float
    online_seconds: float
    sent_bytes: int
    ahead_bytes: int
    error: float


def load(path: Path) -> dict[str, np.ndarray]:
    """``x0``, ``x1`` … [N, F_i] and ``g0``, ``g1`` … [N, d] of each holder, and ``w`` [F, d]; float32."""
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def check(values: dict[str, np.ndarray], h0: np.ndarray, update: np.ndarray) -> float:
    """Compares X·W and Xᵀ·Σg with the plain ones.

    Returns:
        The largest error.

    Raises:
        RuntimeError: if that is beyond ``TOLERANCE``.
    """
    x = np.concatenate([values[name] for name in sorted(values) if name[0] == "x"], axis=1)
    g = sum(value for name, value in values.items() if name[0] == "g")
    error = max(float(np.abs(got - wanted).max()) for got, wanted in ((h0, x @ values["w"]), (update, x.T @ g)))
    if error > TOLERANCE:
        raise RuntimeError(f"a result is off by {error}, more than {TOLERANCE}")
    return error
