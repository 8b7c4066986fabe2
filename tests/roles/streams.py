"""The random streams of a learner."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from research import local_private


@contextmanager
def streams_of(party: str) -> Iterator[None]:
    """The twin's initial weights and dropout are drawn for the server; here for a holder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_private, "SERVER", party)
        yield
