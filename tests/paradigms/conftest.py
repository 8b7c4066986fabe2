"""What runs in this room are given."""

import pytest

from veilgraph.runtime.store import lifetime as lifetimes


@pytest.fixture
def from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved graphs as if they came from memory: what is kept of their releases, and paid, is the run's alone."""
    monkeypatch.setattr(lifetimes, "beside", lambda _: None)
