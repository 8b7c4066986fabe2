"""Jobs that draw wherever they can, and how far two runs of one are apart."""

from typing import Any

from torch import Tensor

from veilgraph.runtime.store.predictions import Predictions

DROPPING: dict[str, Any] = {
    "dim": 4,
    "local": {"model": "sage-mean", "dropout": 0.5},
    "initial": {"dropout": 0.3},
    "server": {"dropout": 0.4},
    "head": {"dropout": 0.4},
}


def by_id(found: Predictions) -> dict[str, Tensor]:
    assert found.ids is not None
    return dict(zip(found.ids, found.probabilities, strict=True))


def distance(one: Predictions, other: Predictions) -> float:
    """The largest difference of a probability; the ids are the same."""
    ours, theirs = by_id(one), by_id(other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
