"""The door of noisy sums over a learner's edges: within its budgets, and at the δ that its ledger was begun with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.publisher import SumPublisher
from veilgraph_node_dp.sums import pair_matrix

from tests.errors import refused
from tests.paradigms.local import LEARNER, edges
from tests.roles.local_parties import local_job, local_parties
from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.graph.party import PartyGraph
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.session.publishers import publisher_of
from veilgraph.runtime.store import LEDGER
from veilgraph.runtime.store.run_directory import PartyStore


def learners(settings: JobSettings) -> PartyGraph:
    return next(graph for graph in local_parties(settings) if graph.party == LEARNER)


def released(door: SumPublisher, graph: PartyGraph) -> Tensor:
    rows = torch.eye(3, dtype=torch.float64)[torch.arange(graph.common) % 3]
    pairs = pair_matrix(graph.edge_index, graph.edge_weight, graph.num_nodes)
    return door.sums(rows, pairs, lambda sums: sums[:, -3:])


@pytest.mark.parametrize(
    ("of_job", "of_party", "budget"), [(9.0, 4.0, 4.0), (4.0, 9.0, 4.0), (4.0, 4.0, 4.0), (4.0, None, 4.0)]
)
def test_the_jobs_budget_and_the_partys_own_limit_both_hold(
    of_job: float, of_party: float | None, budget: float, tmp_path: Path
) -> None:
    """Whichever is the smaller: ``privacy.epsilon_total`` of the job, or ``limits.max_epsilon`` of the party's file."""
    settings = local_job(3, edges(epsilon_total=of_job))
    graph = learners(settings)
    with publisher_of(PartyStore(tmp_path), settings, graph, of_party, begun=False) as door:
        assert isinstance(door, SumPublisher)
        assert door.budget == budget
        assert door.affordable_releases() == int(of_job <= budget)
        if of_job <= budget:
            sums = released(door, graph)
            assert torch.equal(released(door, graph), sums), "and is sent again for nothing"
        else:
            with pytest.raises(BudgetSpent):
                released(door, graph)
        assert door.spent().epsilon_total == pytest.approx(of_job if of_job <= budget else 0.0)
    lines = (tmp_path / LEDGER).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + (of_job <= budget)


def test_a_ledger_keeps_the_delta_that_it_was_begun_with(tmp_path: Path) -> None:
    """A job without one takes it from the number of nodes, which changes where tables do."""
    settings, store = local_job(3, edges(delta=None)), PartyStore(tmp_path)
    graph = learners(settings)

    def delta_with(nodes: int) -> float:
        more = replace(graph, features=torch.zeros(nodes, 1), labels=None, train_mask=None, val_mask=None)
        with publisher_of(store, settings, replace(more, test_mask=None), None, begun=False) as door:
            assert isinstance(door, SumPublisher)
            assert door.account()["delta"] == door.about()["delta"]
            return float(door.about()["delta"])

    assert [delta_with(nodes) for nodes in (900, 1100, 9999)] == [1e-4] * 3
    with refused(RunError, key=tmp_path / "ledger.jsonl"):
        delta_with(10_000)
    (tmp_path / LEDGER).unlink()
    assert delta_with(10_000) == 1e-5


@pytest.mark.parametrize(("unit", "relation"), [("edge", "replacement"), ("node-edges", "zero-out")])
def test_every_epsilon_says_what_it_is_about(tmp_path: Path, unit: str, relation: str) -> None:
    settings = local_job(3, edges(unit))
    with publisher_of(PartyStore(tmp_path), settings, learners(settings), None, begun=False) as door:
        assert isinstance(door, SumPublisher)
        account = door.account()
    assert (account["unit"], account["neighbours"], account["delta"]) == (unit, relation, 1e-4)
