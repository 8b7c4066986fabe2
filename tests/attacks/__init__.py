"""Attacks: each succeeds without the protection, and is refused with it."""

import os

import pytest

nightly = pytest.mark.skipif("VEILGRAPH_NIGHTLY" not in os.environ, reason="takes long: in make nightly")
