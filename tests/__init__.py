"""The tests; those that take long run in ``make nightly`` alone."""

import os

import pytest

nightly = pytest.mark.skipif("VEILGRAPH_NIGHTLY" not in os.environ, reason="takes long: in make nightly")
