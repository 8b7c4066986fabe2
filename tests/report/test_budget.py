from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.table import Table

from tests.errors import refused
from veilgraph.core.errors import RunError
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import protection_of
from veilgraph.report.ledgers import spent_table
from veilgraph.report.noise import Horizon, NeededNoise
from veilgraph.report.run_data import read_spent
from veilgraph.runtime.store.run_directory import RunDirectory

ONCE = {"initial": {"method": "individual"}, "local": {"model": "appnp"}}


def horizon_note(*of: Any) -> str:
    return next((note for note in NeededNoise(*of).notes() if note.startswith("with the noise that the job")), "")


def job(epochs: int = 200, *, holders: int = 2, model: dict[str, Any] | None = None, **privacy: Any) -> JobSettings:
    return parse_job(
        {
            "data": {"holders": holders},
            "model": {"initial": {"method": "individual"}, **(model or {})},
            "train": {"epochs": epochs, "select_by": "last", "patience": None},
            "privacy": {"unit": "row", "schedule": "every-step", **privacy} if privacy else None,
        }
    )


def rows(table: Table | None) -> list[tuple[str, ...]]:
    assert table is not None
    return list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))


def facts(settings: JobSettings) -> dict[str, list[str]]:
    return {name: cells for name, *cells in rows(protection_of(settings).table())}


def limit_note(settings: JobSettings) -> str:
    (note,) = [note for note in protection_of(settings).notes() if note.startswith("privacy.epsilon_total")]
    return note


def test_where_h0_is_joint_others_releases_count_as_well() -> None:
    settings = job(299, holders=4, model={"initial": {"method": "collaborative"}}, noise_multiplier=5)
    found = facts(settings)
    assert found["releases per training step"] == ["embeddings 1, gradients 1, others 3", "embeddings 1, others 3"]
    assert found["releases per inference"] == ["4", "4"]
    assert found["releases in all"] == ["1,499", "1,200"]
    assert any(
        "what the 3 others publish counts as releases of each holder's data" in n
        for n in protection_of(settings).notes()
    )


@pytest.mark.parametrize(
    ("method", "against"),
    [
        ("individual", "the server and all other holders"),
        ("collaborative", "the server only"),
        ("secure-sum", "the server only"),
    ],
)
def test_it_says_against_whom_a_number_holds(method: str, against: str) -> None:
    settings = job(model={"initial": {"method": method}}, epsilon_total=4)
    assert facts(settings)["holds against"] == [against, against]
    warned = any("h0 goes to the other holders without noise" in note for note in protection_of(settings).notes())
    assert warned == (method != "individual")


def test_an_edge_counts_the_rows_that_it_can_change() -> None:
    settings = job(model=ONCE, schedule="once", unit="edge", degree_bound=10, epsilon_total=4)
    found = facts(settings)
    assert (found["unit"], found["neighbours"]) == (["edge", "edge"], ["replacement", "replacement"])
    assert found["rows that a unit changes"] == ["–", "at most 40"]
    rows_known = "no more than there are common nodes"
    assert any(rows_known in note for note in protection_of(settings).notes())
    assert not any(
        rows_known in note
        for note in [*protection_of(settings, 60).notes(), *protection_of(job(epsilon_total=4)).notes()]
    )


def test_it_says_which_delta_figures_are_at_and_from_when_one_is_refused() -> None:
    def at(settings: JobSettings, nodes: int | None) -> tuple[str, list[str]]:
        found = {name: cells for name, *cells in rows(protection_of(settings, nodes).table())}
        return found["δ"][0], [
            note for note in protection_of(settings, nodes).notes() if "1/N" in note or "1/(10·N)" in note
        ]

    delta, (note,) = at(job(noise_multiplier=5), None)
    assert delta == "0.0001"
    assert note.endswith("with N above 1,000 it is less, and noise or ε more: --nodes N shows them")
    delta, (note,) = at(job(noise_multiplier=5), 19717)
    assert (delta, note.endswith("and at most 0.0001")) == ("1e-06", True)
    assert at(job(noise_multiplier=5, delta=1e-5), None)[1] == [
        "privacy.delta=1e-05 is refused from 100,000 common nodes on (δ ≥ 1/N); lower privacy.delta, or leave it out "
        "and it follows from their number"
    ]
    assert at(job(noise_multiplier=5, delta=1e-5), 19717) == ("1e-05", [])
    (note,) = at(job(noise_multiplier=5, delta=1e-3), 2708)[1]
    assert note.startswith("every holder refuses the job: privacy.delta=0.001 with 2708 common nodes")
    needed = NeededNoise(job(epsilon_total=4), [4], 19717).table()
    assert needed is not None
    assert "δ = 1e-06" in str(needed.caption)


@pytest.mark.cases(2)
@pytest.mark.parametrize(("jobs", "predictions"), [(1, 0), (12, 0), (1, 24), (7, 5)])
@pytest.mark.parametrize("schedule", ["once", "every-step"])
@pytest.mark.parametrize(("mechanism", "event_of"), [("gaussian", GaussianEvent), ("laplace", LaplaceEvent)])
def test_the_noise_for_a_horizon_is_what_a_lifetime_ledger_has_room_for(
    jobs: int, predictions: int, schedule: str, mechanism: str, event_of: Callable[[float], Event], tmp_path: Path
) -> None:
    """As many releases as it says, and not one more. Laplace noise of one job alone is composed as its run does."""
    settings = job(10, model=ONCE, schedule=schedule, epsilon_total=4, delta=1e-4, mechanism=mechanism)
    found = NeededNoise(settings, [4.0], horizon=Horizon(jobs, predictions)).facts
    (row,) = [row for row in found if row["schedule"] == schedule and row["holder"].startswith("B")]
    planned = plan(settings, "B")
    assert planned is not None
    assert row["releases"] == jobs * planned.releases + predictions * planned.inference
    event, keys = event_of(row["noise_multiplier"]), np.arange(3, dtype=np.uint64)
    ledger = Lifetime(tmp_path / "ledger", "B", Budget(4.0), Marks(tmp_path / "marks"))
    if (mechanism, jobs, predictions) == ("laplace", 1, 0):
        assert accountant.total({event: row["releases"]}, 1e-4) == pytest.approx(4.0, rel=1e-3)
        return
    assert ledger.room(event, keys) == row["releases"]


@pytest.mark.parametrize(("mechanism", "event_of"), [("gaussian", GaussianEvent), ("laplace", LaplaceEvent)])
def test_what_a_horizon_comes_to_is_what_a_lifetime_ledger_counts(
    mechanism: str, event_of: Callable[[float], Event], tmp_path: Path
) -> None:
    settings = job(10, model=ONCE, schedule="once", noise_multiplier=20, delta=1e-4, mechanism=mechanism)
    ledger, horizon = Lifetime(tmp_path / "ledger", "B", Budget(), Marks(tmp_path / "marks")), Horizon(40, 8)
    ledger.charge(event_of(20.0), "embeddings", 48, np.arange(3, dtype=np.uint64), delta=1e-4, run="ab" * 32, job="job")
    below, above = ledger.total() * (1 - 1e-6), ledger.total() * (1 + 1e-6)
    assert horizon_note(settings, [below], None, horizon).endswith("none of the totals asked about")
    assert not horizon_note(settings, [above], None, horizon).endswith("none of the totals asked about")


def test_noise_of_zero_is_no_privacy() -> None:
    settings = job(noise_multiplier=0)
    assert facts(settings)["total ε"] == ["infinite", "infinite"]
    assert any("there is no differential privacy" in note for note in protection_of(settings).notes())


def test_a_budget_ends_training_where_the_first_holder_cannot_pay() -> None:
    settings = job(noise_multiplier=5, epsilon_total=10)
    most = max(n for n in range(404) if accountant.total({GaussianEvent(5): n}, 1e-4) <= 10)
    note = limit_note(settings)
    assert f"ends training after step {(most - 1) // 2} of 200; " in note
    assert note.endswith("would have a total ε of 22.22")
    assert facts(settings)["total ε"] == ["at most 10", "at most 10"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (job(3, noise_multiplier=5, epsilon_total=10), "has room for all that the job foresees"),
        (job(3, epsilon_total=10), "has room for all that the job foresees"),
        (job(3, noise_multiplier=5, epsilon_total=0.1), "has no room for a training step beside"),
        (job(3, model=ONCE, schedule="once", noise_multiplier=1, epsilon_total=1), "has no room for a single"),
    ],
)
def test_a_budget_says_what_it_has_room_for(settings: JobSettings, says: str) -> None:
    assert says in limit_note(settings)


def test_a_schedule_that_the_job_cannot_have_is_left_out_with_the_reason() -> None:
    settings = job(epsilon_total=4, model={"initial": {"method": "collaborative"}})
    assert {row[1] for row in rows(NeededNoise(settings, [1]).table())} == {"every-step"}
    assert NeededNoise(settings, []).notes() == [
        "schedule once is not for this job: model.initial.method='collaborative' with privacy.schedule=once: each "
        "holder projects its own features; set model.initial.method to individual, or do without privacy.schedule=once"
    ]


def test_a_job_without_privacy_is_told_so_and_what_it_would_take() -> None:
    settings = parse_job({"model": {"initial": {"method": "individual"}}})
    assert "no differential privacy" in protection_of(settings).notes()[0]
    assert "infinite" in protection_of(settings).notes()[0]
    assert rows(NeededNoise(settings, [4]).table())[1][4] == "13.6"  # docs/privacy.md: 201 releases
    assert (
        "schedule every-step needs train.select_by=last and train.patience=null as well"
        in NeededNoise(settings, []).notes()
    )


def test_a_job_that_can_have_none_says_why() -> None:
    settings = parse_job({"model": {"combine": {"strategy": "degree-weighted"}}})
    assert NeededNoise(settings, [4]).table() is None
    assert [note.partition(":")[0] for note in NeededNoise(settings, []).notes()] == [
        "schedule every-step is not for this job",
        "schedule once is not for this job",
    ]


SPENT = {"releases": {"embeddings": 201, "gradients": 200}, "epsilon_release": 0.60158, "epsilon_total": 21.26}


def test_what_was_spent_shows_both_epsilons_and_what_they_are_about() -> None:
    settings = job(noise_multiplier=5)
    nothing = {"releases": {}, "epsilon_release": 0.0, "epsilon_total": 0.0}
    unbounded: dict[str, Any] = {"releases": {}, "epsilon_release": None, "epsilon_total": None}
    table = spent_table({"A": {**SPENT, "delta": 1e-4}, "B": nothing, "[red]C": unbounded}, settings)
    assert [str(column.header) for column in table.columns] == ["holder", "releases", "per-release ε", "total ε"]
    assert rows(table) == [
        ("A", "embeddings 201, gradients 200", "0.6016", "21.26"),
        ("B", "none", "0", "0"),
        ("[red]C", "not counted", "infinite", "infinite"),
    ]
    assert table.caption == (
        "Of every holder's rows (not a person, not an edge), zero-out, at δ = 0.0001, against the server and all other "
        "holders."
    )
    assert "zero-out, at δ ≤ 1/(10·N), of N common nodes, against" in str(spent_table({"B": nothing}, settings).caption)


def test_what_was_spent_is_read_from_every_part_that_is_here(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", job(noise_multiplier=5))
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


def test_in_every_step_joint_noise_is_what_the_label_holder_needs() -> None:
    model = {"initial": {"method": "individual"}}
    settings = job(holders=4, model=model, epsilon_total=4, joint_noise={"colluding": 1})
    alone = job(holders=4, model=model, epsilon_total=4)
    found, without = facts(settings), facts(alone)
    assert found["holds against"] == ["the server and at most 1 of the other 3 holders, all together"] * 2
    assert found["noise made by"] == ["any 3 of 4"] * 2
    assert found["noise over clip"] == [without["noise over clip"][0]] * 2
    assert found["total ε"][0] == without["total ε"][0] == "4"
    assert 2 < float(found["total ε"][1]) < 4
    embeddings, gradients = (
        [float(each[f"its deviation in {what}"][0]) for each in (found, without)]
        for what in ("embeddings", "gradients")
    )
    assert embeddings[0] == pytest.approx(embeddings[1] / 3**0.5, rel=1e-3)
    assert gradients[0] == gradients[1]
    assert any("the noise of a sum is as much as A needs" in note for note in protection_of(settings).notes())
    needed = {fact["holder"]: fact["noise_multiplier"] for fact in NeededNoise(settings, [4.0]).facts}
    assert len(set(needed.values())) == 1
    assert max(needed.values()) == max(fact["noise_multiplier"] for fact in NeededNoise(alone, [4.0]).facts)


@pytest.mark.parametrize(
    ("colluding", "against"),
    [
        (1, "the server and A, with at most 1 of the other 2 that publish, all together"),
        (0, "the server and A, as long as none of the 3 that publish helps them"),
    ],
)
def test_noise_that_is_made_jointly_says_whose_and_against_whom(colluding: int, against: str) -> None:
    settings = job(holders=4, model=ONCE, schedule="once", epsilon_total=4, joint_noise={"colluding": colluding})
    found = facts(settings)
    assert found["holds against"] == [against, against]
    assert found["noise made by"] == ["–", f"any {3 - colluding} of 3"]
    alone = facts(job(holders=4, model=ONCE, schedule="once", epsilon_total=4))
    assert "noise made by" not in alone
    assert [found[name] for name in ("noise over clip", "total ε")] == [
        alone[name] for name in ("noise over clip", "total ε")
    ]
    share = float(found["its deviation in embeddings"][1]) / float(alone["its deviation in embeddings"][1])
    assert share == pytest.approx((3 - colluding) ** -0.5, rel=1e-3)
    assert any(
        f"where more than {colluding} of them help the server, or add none" in n
        for n in protection_of(settings).notes()
    )
    assert protection_of(settings).facts()["B, C, D"]["joint_noise"] == {"holders": 3, "colluding": colluding}
    said = protection_of(settings).guarantee()
    assert dict(said.about)["holds against"] == against
    assert any(limit.startswith("It rests on the noise of other holders") for limit in said.limits)
    assert any("ε holds against " + against in sentence for sentence in paradigm_of(settings).words.describe(settings))
