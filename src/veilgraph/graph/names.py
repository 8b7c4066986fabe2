"""What holders are called where nobody names them."""

from __future__ import annotations

from itertools import chain, islice, product
from string import ascii_uppercase
from typing import Final

from veilgraph.core.types import PartyId

MAX_HOLDERS: Final = 256
"""Of one job on one machine."""


def holder_names(count: int) -> tuple[PartyId, ...]:
    """A to Z, then AA, AB, …: the first ``count`` of these, of which there are as many as ``MAX_HOLDERS`` at least."""
    double = ("".join(letters) for letters in product(ascii_uppercase, repeat=2))
    return tuple(islice(chain(ascii_uppercase, double), count))
