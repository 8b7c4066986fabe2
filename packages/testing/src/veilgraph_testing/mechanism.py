"""What every release with noise promises."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.secrets import SEED_BYTES, SecretSource, system_secrets
from veilgraph.privacy.accountant import per_step, total
from veilgraph.privacy.event import EVENTS, Event, from_json, to_json
from veilgraph_testing.generators import untouched
from veilgraph_testing.lower_bound import epsilon_lower_bound

DELTA: Final = 1e-5
_THRESHOLDS: Final = np.linspace(-2.0, 12.0, 29)
"""Of a distinguisher, over the spread of the noise; chosen before any game is played."""
_CONFIDENCE: Final = 1 - 1e-6


def fixed_source(name: str = "") -> SecretSource:
    """The same bytes in the same order whenever it is made: for tests alone."""
    calls = itertools.count()
    return lambda size: hashlib.shake_256(f"{name}/{next(calls)}".encode()).digest(size)


def check_event(event: Event) -> None:
    """What holds of every event: ledgers can keep it, and more of it costs more."""
    assert EVENTS[event.kind] is type(event), "its kind is not the name that finds it"
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert hash(event) == hash(from_json(to_json(event)))
    one, two = total({event: 1}, DELTA), total({event: 2}, DELTA)
    assert 0 < one < math.inf
    assert one < two < 2 * one * (1 + 1e-9)
    assert per_step(event, DELTA / 10) >= one


def check_source(release: Any, x: Tensor) -> None:  # noqa: ANN401 - (x, source) → a tensor
    """All randomness is of the source that is given: no generator of the process has a part in it."""
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return system_secrets(size)

    with untouched():
        first = release(x, source).to_dense()
    assert sum(asked) >= SEED_BYTES, "its randomness has fewer bits than a key"
    assert not torch.equal(first, release(x, system_secrets).to_dense()), "it comes out the same twice"
    same = [release(x, fixed_source("same")).to_dense() for _ in range(2)]
    assert torch.equal(*same), "something beside the source has a part in it"


def check_worlds(one: Tensor, other: Tensor, event: Event) -> None:
    """No threshold tells two neighbouring worlds apart better than one release's event allows.

    ``one`` and ``other`` are Tensor[T] of what a distinguisher makes of releases in each world.
    """
    claimed, spread = per_step(event, DELTA), float(other.std())
    scores = [np.sort((side - other.mean()).numpy()) / spread for side in (one, other)]
    for threshold in _THRESHOLDS:
        here, there = (len(side) - int(np.searchsorted(side, threshold)) for side in scores)
        proven = epsilon_lower_bound(here, there, len(one), DELTA, _CONFIDENCE)
        assert proven <= claimed, f"ε is at least {proven:.3g}, and the event says {claimed:.3g}"
