"""The tests; those that take long run in ``make nightly`` alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def __getattr__(name: str) -> pytest.MarkDecorator:
    """``nightly``, when it is asked for: what the tutorial runs from here needs no pytest."""
    if name != "nightly":
        raise AttributeError(name)
    import pytest  # noqa: PLC0415

    return pytest.mark.skipif("VEILGRAPH_NIGHTLY" not in os.environ, reason="takes long: in make nightly")
