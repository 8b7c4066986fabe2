"""What runs in this room are given."""

from typing import Any

import pytest

from veilgraph.runtime.store import lifetime as lifetimes


@pytest.fixture
def from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved graphs as if they came from memory: what is kept of their releases, and paid, is the run's alone."""
    monkeypatch.setattr(lifetimes, "default_ledger_of", lambda _: None)


@pytest.fixture
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a score is of hangs on no number of trees."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: PLC0415  (seconds to import)

    def fewer(max_iter: int, **rest: Any) -> HistGradientBoostingClassifier:
        return HistGradientBoostingClassifier(max_iter=min(max_iter, 8), **rest)

    monkeypatch.setattr("sklearn.ensemble.HistGradientBoostingClassifier", fewer)
