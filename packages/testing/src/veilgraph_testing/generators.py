"""The generators of the process, which nothing that is tested may draw from or seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def untouched() -> Iterator[None]:
    """Fails where torch's, numpy's or Python's own generator is used while the block lasts."""
    before = _states()
    yield
    for name, state in _states().items():
        assert state == before[name], f"it draws from {name}'s generator of the process"


def _states() -> dict[str, object]:
    numpy = np.random.get_state(legacy=False)
    return {"torch": torch.get_rng_state().tolist(), "numpy": repr(numpy), "Python": random.getstate()}
