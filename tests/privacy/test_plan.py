"""What a job will publish and what that costs, against counting by hand and the accountant."""

import math
from typing import Any

import pytest

from tests.privacy.planned import HOPS, job, planned
from veilgraph.paradigms.vertical.settings import VerticalJob, plan
from veilgraph.privacy.plan import rows_changed_by_edge, rows_changed_by_node


@pytest.mark.parametrize("rounds", [1, 3])
def test_releases_are_those_of_the_protocol(rounds: int) -> None:
    """Each step R embeddings and R − 1 gradients, and at the label holder one more; R for every inference."""
    settings = job(50, rounds, noise_multiplier=5, predictions=4)
    holder, label_holder = planned(settings, "B"), planned(settings, "A")
    assert holder.releases == 50 * (2 * rounds - 1) + 5 * rounds
    assert label_holder.releases == 50 * 2 * rounds + 5 * rounds
    assert plan(settings, "server") is None
    assert plan(VerticalJob(), "A") is None


def test_once_is_one_release_and_none_at_the_label_holder() -> None:
    settings = job(schedule="once", epsilon_total=4, predictions=1, holders=3)
    for party in ("B", "C"):
        assert planned(settings, party).releases == 2
        assert planned(settings, party).per_step == 0
        assert planned(settings, party).epsilon_total == pytest.approx(4, abs=1e-6)
    assert planned(settings, "A").releases == 0
    assert planned(settings, "A").epsilon_total == 0


def test_the_papers_calibration_costs_what_it_truly_costs() -> None:
    found = planned(job(epsilon_step=16, calibration="classical"), "B")
    assert found.multiplier == pytest.approx(math.sqrt(2 * math.log(1.25e4)) / 16)
    assert found.epsilon_release == pytest.approx(19.8, abs=0.05)


@pytest.mark.cases(2)
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("unit", ["edge", "node"])
def test_an_edge_or_a_node_needs_as_much_noise_as_the_rows_that_it_changes(unit: str, mechanism: str) -> None:
    settings = job(schedule="once", mechanism=mechanism, unit=unit, degree_bound=4, epsilon_total=5)
    count = rows_changed_by_edge if unit == "edge" else rows_changed_by_node
    rows = count(4, HOPS, 1 << 60)
    found = planned(settings, "B")
    row = planned(job(schedule="once", mechanism=mechanism, neighbours="replacement", epsilon_total=5), "B")
    assert found.rows == rows > 1
    assert found.multiplier / row.multiplier == pytest.approx(rows if mechanism == "laplace" else math.sqrt(rows))
    assert 5 * (1 - 1e-3) < found.epsilon_total <= 5
    assert found.event is not None
    assert (found.event.unit, found.event.neighbours) == (unit, "replacement")
    assert planned(settings, "B", nodes=3).rows == 3, "no more rows change than there are"


def test_steps_that_a_budget_affords_leave_room_for_inferences() -> None:
    found = planned(job(50, rounds=2, noise_multiplier=5, epsilon_total=100, predictions=1), "A")
    assert found.per_step == 4
    assert [found.affordable_steps(releases) for releases in (0, 3, 4, 7, 8, 11, 12)] == [0, 0, 0, 0, 1, 1, 2]
    assert found.epsilon_bound == min(found.epsilon_total, 100)


@pytest.mark.parametrize("noise", [{"epsilon_total": 4}, {"epsilon_step": 1, "epsilon_total": 4}])
@pytest.mark.parametrize(("nodes", "delta"), [(500, 1e-4), (19717, 1e-6)])
def test_a_delta_that_the_job_leaves_open_is_that_of_the_nodes(noise: dict[str, Any], nodes: int, delta: float) -> None:
    found, wanted = planned(job(**noise), "B", nodes=nodes), planned(job(**noise, delta=delta), "B")
    assert (found.delta, found.multiplier) == (delta, wanted.multiplier)
    assert (found.epsilon_release, found.epsilon_total) == (wanted.epsilon_release, wanted.epsilon_total)
