from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table
from veilgraph_node_dp.settings import node_dp, release_plan

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.budget import protection_of
from veilgraph.report.ledgers import spent_table
from veilgraph.report.noise import Horizon, NeededNoise
from veilgraph.report.run_data import read_spent
from veilgraph.runtime.store.run_directory import RunDirectory


def horizon_note(*of: Any) -> str:
    return next((note for note in NeededNoise(*of).notes() if note.startswith("with the noise that the job")), "")


def job(**privacy: Any) -> JobSettings:
    noise = {"privacy": {"unit": "edge", "epsilon_total": 4, **privacy}}
    return parse_job({"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}, **noise})


def plan_of(settings: JobSettings) -> Plan:
    found = release_plan(node_dp(settings), "A")
    assert found is not None
    return found


def rows(table: Table | None) -> list[tuple[str, ...]]:
    assert table is not None
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def test_it_says_which_delta_figures_are_at_and_from_when_one_is_refused() -> None:
    def at(settings: JobSettings, nodes: int | None) -> tuple[str, list[str]]:
        found = {name: cells for name, *cells in rows(protection_of(settings, nodes).table())}
        return found["δ"][0], [
            note for note in protection_of(settings, nodes).notes() if "1/N" in note or "1/(10·N)" in note
        ]

    delta, (note,) = at(job(), None)
    assert delta == "0.0001"
    assert note.endswith("with N above 1,000 it is less, and noise more: --nodes N shows it")
    delta, (note,) = at(job(), 19717)
    assert (delta, note.endswith("and at most 0.0001")) == ("1e-06", True)
    assert at(job(delta=1e-5), None)[1] == [
        "privacy.delta=1e-05 is refused from 100,000 common nodes on (δ ≥ 1/N); lower privacy.delta, or leave it out "
        "and it follows from their number"
    ]
    assert at(job(delta=1e-5), 19717) == ("1e-05", [])
    (note,) = at(job(delta=1e-3), 2708)[1]
    assert note.startswith("every holder refuses the job: privacy.delta=0.001 with 2708 common nodes")
    needed = NeededNoise(job(), [4], 19717).table()
    assert needed is not None
    assert "δ = 1e-06" in str(needed.caption)


UNITS: dict[str, dict[str, Any]] = {"edge": {}, "node-edges": {"unit": "node-edges", "degree_bound": 20}}


@pytest.mark.parametrize(("jobs", "predictions"), [(1, 0), (12, 0), (1, 24), (7, 5)])
@pytest.mark.parametrize("unit", UNITS)
def test_the_noise_for_a_horizon_is_what_a_lifetime_ledger_has_room_for(
    jobs: int, predictions: int, unit: str, tmp_path: Path
) -> None:
    """As many releases as it says, and not one more."""
    settings = job(delta=1e-4, predictions=2, **UNITS[unit])
    (row,) = NeededNoise(settings, [4.0], horizon=Horizon(jobs, predictions)).facts
    planned = plan_of(settings)
    assert row["releases"] == jobs * 3 + predictions == jobs * planned.releases + predictions * planned.inference
    wanted = planned.within(4.0, row["releases"])
    assert wanted.deviation == row["deviation"]
    ledger = Lifetime(tmp_path / "ledger", "A", Budget(4.0), Marks(tmp_path / "marks"))
    assert ledger.room(wanted.event, np.arange(3, dtype=np.uint64)) == row["releases"]


def test_what_a_horizon_comes_to_is_what_a_lifetime_ledger_counts(tmp_path: Path) -> None:
    settings = job(delta=1e-4, epsilon_total=0.5)
    ledger, horizon = Lifetime(tmp_path / "ledger", "A", Budget(), Marks(tmp_path / "marks")), Horizon(40, 8)
    event, keys = plan_of(settings).event, np.arange(3, dtype=np.uint64)
    ledger.charge(event, "sums", 48, keys, delta=1e-4, run="ab" * 32, job="job")
    below, above = ledger.total() * (1 - 1e-6), ledger.total() * (1 + 1e-6)
    assert horizon_note(settings, [below], None, horizon).endswith("none of the totals asked about")
    assert not horizon_note(settings, [above], None, horizon).endswith("none of the totals asked about")


def test_a_job_without_privacy_is_told_so_and_what_it_would_take() -> None:
    settings = parse_job({"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}, "model": {"hops": "auto"}})
    needed = NeededNoise(settings, [4])
    assert rows(needed.table()) == rows(NeededNoise(job(), [4]).table())
    plain = parse_job({"paradigm": "sealed"})
    assert "no differential privacy" in protection_of(plain).notes()[0]
    assert "infinite" in protection_of(plain).notes()[0]


@pytest.mark.parametrize("content", [{}, {"paradigm": "horizontal"}, {"paradigm": "averaging"}])
def test_a_job_that_can_have_none_says_why(content: dict[str, Any]) -> None:
    settings = parse_job(content)
    assert NeededNoise(settings, [4]).table() is None
    (note,) = NeededNoise(settings, []).notes()
    assert note.startswith("noise is not for this job: ")
    assert "sealed" in note


SPENT = {"releases": {"sums": 21}, "epsilon_release": 0.60158, "epsilon_total": 21.26}


def test_what_was_spent_shows_both_epsilons_and_what_they_are_about() -> None:
    settings = job()
    nothing = {"releases": {}, "epsilon_release": 0.0, "epsilon_total": 0.0}
    unbounded: dict[str, Any] = {"releases": {}, "epsilon_release": None, "epsilon_total": None}
    table = spent_table({"A": {**SPENT, "delta": 1e-4}, "B": nothing, "[red]C": unbounded}, settings)
    assert [str(column.header) for column in table.columns] == ["holder", "releases", "per-release ε", "total ε"]
    assert rows(table) == [
        ("A", "sums 21", "0.6016", "21.26"),
        ("B", "none", "0", "0"),
        ("[red]C", "not counted", "infinite", "infinite"),
    ]
    assert str(table.caption).startswith("Of A's edges, replacement, at δ = 0.0001, against ")
    assert "replacement, at δ ≤ 1/(10·N), of N common nodes, against" in str(
        spent_table({"B": nothing}, settings).caption
    )


def test_what_was_spent_is_read_from_every_part_that_is_here(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", job())
    assert read_spent(run) == {}
    part = run.party_path("B")
    part.mkdir(parents=True)
    (part / "ledger.json").write_text(
        '{"releases": {"embeddings": 2}, "epsilon_release": 1.5, "epsilon_total": null, "delta": 1e-4, "lasting": true}'
    )
    spent = {
        "releases": {"embeddings": 2},
        "epsilon_release": 1.5,
        "epsilon_total": None,
        "delta": 1e-4,
        "budget": None,
        "lasting": True,
    }
    assert read_spent(run) == {"B": spent}
    (part / "ledger.json").write_text('{"releases": {}}')
    with refused(RunError, key=tmp_path / "run" / "parties" / "B" / "ledger.json"):
        read_spent(run)
