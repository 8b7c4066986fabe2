"""The door of perturbed values: paid for before they are drawn, and never more often than the budget allows."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from veilgraph_node_dp.mechanisms import FeatureMechanism, MultiBit
from veilgraph_node_dp.publisher import LocalPublisher

from tests.errors import refused
from tests.roles.federation import fixed_secrets
from tests.roles.local_parties import local_job, local_parties
from veilgraph.core.errors import ConfigError, DataError, RunError
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.releases import RELEASE, depends_on
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import PartyStore

X, LABELS = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])


def publisher(
    ledger: Ledger | None, epsilon: float = 1.0, labels: float | None = None, mechanism: FeatureMechanism | None = None
) -> LocalPublisher:
    response = None if labels is None else LabelResponse(labels, 2)
    return LocalPublisher(mechanism or MultiBit(epsilon, 0.0, 1.0, 3), response, ledger, fixed_secrets("door"))


def opened(folder: Path, budget: float | None, delta: float = 1e-12) -> Ledger:
    return Ledger.open(folder / "ledger.jsonl", delta, budget, job="job")


@settings(max_examples=20)
@given(
    epsilon=st.sampled_from([0.1, 0.3, 0.7, 1.0, 2.5]),
    labels=st.sampled_from([None, 0.1, 0.2, 3.0]),
    times=st.integers(0, 12),
    more=st.sampled_from([0.0, 0.05]),
)
def test_the_room_that_it_states_is_there(
    tmp_path_factory: pytest.TempPathFactory, epsilon: float, labels: float | None, times: int, more: float
) -> None:
    """Before every release: whoever was told that there is room must not find that there is none."""
    budget = times * (epsilon + (labels or 0.0)) + more
    if budget == 0:
        return
    with opened(tmp_path_factory.mktemp("ledger"), budget) as ledger:
        door = publisher(ledger, epsilon, labels)
        room = door.room()
        assert room is not None
        assert times - 1 <= room <= times, "one less where the sum, rounded up, is above the budget"
        for _ in range(times + 1):
            if not door.room():
                break
            door.features(X)
            if labels is not None:
                door.labels(LABELS)
        assert door.spent().epsilon_total <= budget * (1 + 1e-12)
        assert door.spent().releases["features"] >= room


def test_what_it_says_of_itself(tmp_path: Path) -> None:
    with opened(tmp_path, 8.0) as ledger:
        door = publisher(ledger, 1.0, 2.0)
        door.features(X)
        door.labels(LABELS)
        spent = door.spent()
        assert (spent.releases, spent.epsilon_release, spent.epsilon_total) == ({"features": 1, "labels": 1}, 3.0, 3.0)
        assert (door.budget, door.about()["delta"]) == (8.0, 0.0)
    assert publisher(None).spent().epsilon_total == math.inf


def test_what_is_refused_costs_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, 8.0) as ledger:
        door = publisher(ledger)
        with refused(DataError, key="x"):
            door.features(X + 1)
        with refused(ConfigError, key="release.labels"):
            door.labels(LABELS)
        assert door.spent().epsilon_total == 0


def test_it_is_paid_before_it_is_drawn(tmp_path: Path) -> None:
    """A kill in between, or in the drawing, leaves a ledger that counts too much, never too little."""

    class CutError(Exception):
        pass

    def cut(size: int) -> bytes:
        raise CutError

    with opened(tmp_path, None) as ledger:
        door = LocalPublisher(MultiBit(1.0, 0.0, 1.0, 3), LabelResponse(2.0, 2), ledger, cut)
        with pytest.raises(CutError):
            door.features(X)
        with pytest.raises(CutError):
            door.labels(LABELS)
    with opened(tmp_path, None) as ledger:
        assert publisher(ledger).spent().releases == {"features": 1, "labels": 1}


def test_the_partys_own_limit_is_the_budget_and_a_ledger_beside_a_release_is_not_begun_anew(tmp_path: Path) -> None:
    job = local_job(3)
    graph, store = local_parties(job)[1], PartyStore(tmp_path)
    with publisher_of(store, job, graph, 1.5, begun=False) as door:
        assert door is not None
        assert door.budget == 1.5
    (tmp_path / LEDGER).unlink()
    (tmp_path / f"{RELEASE}.safetensors").touch()
    with refused(RunError, key=tmp_path / "ledger.jsonl"), publisher_of(store, job, graph, None, begun=True):
        pass
    assert not (tmp_path / LEDGER).exists()


def test_a_release_depends_on_public_facts_alone() -> None:
    graph = local_parties(local_job(3))[1]
    before = depends_on("one", graph)
    assert depends_on("one", replace(graph, features=graph.features.to_dense() + 1)) == before
    assert depends_on("other", graph) != before, "other rows"
    assert depends_on("one", replace(graph, num_common=graph.common - 1)) != before
