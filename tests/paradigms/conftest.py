"""What runs in this room are given."""

from typing import Any

import pytest
from veilgraph_averaging.symbols import home

from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.union.settings import UnionJob
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


@pytest.fixture
def short_own_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the steps of models that holders train alone beside symbols: what is sent hangs on none of them."""
    own_job = home.own_job

    def shorter(graph: PartyGraph, seed: int) -> UnionJob:
        job = own_job(graph, seed)
        return job.model_copy(update={"train": job.train.model_copy(update={"epochs": job.train.epochs // 10})})

    monkeypatch.setattr(home, "own_job", shorter)
