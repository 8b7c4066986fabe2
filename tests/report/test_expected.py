"""What accuracy a budget lets expect: from curves that were measured, said only of jobs of their kind."""

import json
from typing import Any

import pytest
from veilgraph_node_dp.settings import node_dp, release_plan

import research.expected
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.noise import (
    CURVES,
    Curve,
    Horizon,
    NeededNoise,
    curves,
    expected_facts,
    expected_table,
    not_measured,
    way_of,
)

NODES: dict[str, Any] = {"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}}
VOTES: dict[str, Any] = {"unit": "edge", "epsilon_total": 4}
CURVE = Curve("labels", "x", "accuracy", 3, 0.7, 0.9, 0.69, {1.0: 0.7, 4.0: 0.8, 16.0: 0.84})


def horizon_note(*of: Any) -> str:
    return next((note for note in NeededNoise(*of).notes() if note.startswith("with the noise that the job")), "")


def test_the_file_is_what_was_measured() -> None:
    assert json.loads(CURVES.read_text(encoding="utf-8")) == research.expected.made(), "python -m research.expected"
    assert {curve.way for curve in curves()} >= {
        "labels",
        "labels, horizontal",
        "labels, averaging",
    }


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [
        (0.998, 0.69),
        (0.9999, 0.7),
        (2.0, 0.75),
        (8.0, 0.82),
        (99.0, 0.84),
    ],
)
def test_between_measured_points_it_is_a_line_and_beyond_them_no_promise(epsilon: float, expected: float) -> None:
    assert CURVE.at(epsilon) == pytest.approx(expected)


def test_a_curve_is_of_its_own_kind_of_job_alone() -> None:
    kinds = {
        "labels": parse_job(
            {
                "data": {"dataset": "cora", "split": [0.5, 0.25, 0.25], "stratify": False},
                "label_privacy": {"epsilon": 2},
            }
        ),
    }
    by_nodes = {"dataset": "cora", "split": [0.5, 0.25, 0.25], "stratify": False, "partition": {"by": "nodes"}}
    kinds["labels, horizontal"] = parse_job(
        {"paradigm": "horizontal", "data": by_nodes, "label_privacy": {"epsilon": 2}}
    )
    kinds["labels, averaging"] = parse_job({"paradigm": "averaging", "data": by_nodes, "label_privacy": {"epsilon": 2}})
    kinds["node-dp, noise on the learner's edges"] = parse_job({**NODES, "privacy": VOTES})
    for way, output in (("sealed, noise on votes", "margins"), ("sealed, noise on votes, classes alone", "classes")):
        kinds[way] = parse_job(
            {
                "paradigm": "sealed",
                "data": {"dataset": "cora"},
                "model": {"edge_slots": 8192},
                "train": {"select_by": "last"},
                "output": output,
                "privacy": VOTES,
            }
        )
    joint = {"threshold": 3, "privacy": {"epsilon_total": 4, "batch": 200, "joint_noise": {"colluding": 1}}}
    alone = {"privacy": {"epsilon_total": 4, "batch": 200}}
    for way, given in (("class sums, then at home", alone), ("class sums with joint noise, then at home", joint)):
        kinds[way] = parse_job(
            {
                "paradigm": "averaging",
                "preset": "auto",
                "data": {"dataset": "cora", "holders": 3, "split": [0.5, 0.25, 0.25]},
                "averaging": given,
            }
        )
    assert {way: way_of(job) for way, job in kinds.items()} == {way: way for way in kinds}
    of_nodes = parse_job({**NODES, "privacy": {**VOTES, "unit": "node-edges", "degree_bound": 5}})
    assert way_of(of_nodes) == ""
    assert expected_table(of_nodes, {4.0: 4.0}) is None
    assert "was not measured" in not_measured(of_nodes)


def test_totals_beyond_what_was_measured_are_not_listed_again() -> None:
    votes = {"model": {"edge_slots": 8192}, "train": {"select_by": "last"}, "output": "margins", "privacy": VOTES}
    job = parse_job({"paradigm": "sealed", "data": {"dataset": "cora"}, **votes})
    table = expected_table(job, {each: each for each in (4.0, 8.0, 16.0, 64.0)})
    assert table is not None
    assert [text for text in map(str, table.columns[0].cells) if text] == ["4", "8"]
    assert [column.header for column in table.columns][-2:] == ["no privacy", "seeds"]


def test_a_curve_is_of_one_neighbouring_relation() -> None:
    """Of nodes it is zero-out's; at the same ε replacement takes about twice the noise."""
    trained = {"epsilon_total": 4, "batch": 200}
    for neighbours, is_measured in (("zero-out", True), ("replacement", False)):
        averaging = parse_job(
            {
                "paradigm": "averaging",
                "preset": "auto",
                "data": {"dataset": "cora", "split": [0.5, 0.25, 0.25]},
                "averaging": {"privacy": {**trained, "neighbours": neighbours}},
            }
        )
        assert bool(expected_facts(averaging, {4.0: 4.0})) == is_measured


def test_one_job_of_a_horizon_has_the_noise_that_the_total_needs_and_its_own_epsilon() -> None:
    job = parse_job({**NODES, "privacy": VOTES})
    planned = release_plan(node_dp(job), "A")
    assert planned is not None
    (alone,) = NeededNoise(job, [4.0]).facts
    assert alone["deviation"] == planned.multiplier, "as the job itself would have it"
    assert NeededNoise(job, [4.0]).job_epsilons() == {4.0: pytest.approx(4.0, rel=1e-6)}
    twelve = NeededNoise(job, [4.0, 16.0], horizon=Horizon(12)).job_epsilons()
    assert 0.5 < twelve[4.0] < 1.5 < twelve[16.0] < 6
    facts = expected_facts(job, twelve)
    assert {each["epsilon_total"] for each in facts} == {4.0, 16.0}
    assert all(each["epsilon_job"] == twelve[each["epsilon_total"]] for each in facts)


def test_a_horizon_says_which_totals_the_jobs_own_noise_fits() -> None:
    job = parse_job({**NODES, "privacy": VOTES})
    assert horizon_note(job, [4.0], None, Horizon()) == ""
    assert horizon_note(job, [4.0, 64.0], None, Horizon(3)).endswith("which fits a total of 64")
    alike = [horizon_note(job, [4.0], None, each).split("total ε of ")[1] for each in (Horizon(3), Horizon(1, 2))]
    assert alike[0] == alike[1], "a prediction of changed data is a release as a job's is"
    assert horizon_note(job, [4.0, 5.0], None, Horizon(3)).endswith("none of the totals asked about")
