"""What accuracy a budget lets expect: from curves that were measured, said only of jobs of their kind."""

import json
from typing import Any

import pytest

import research.expected
from tests.roles.once import job as once_job
from veilgraph.paradigms.vertical.settings import plan
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

HOPS: dict[str, Any] = {"unit": "edge", "epsilon_total": 4, "delta": 1e-5, "aggregation": {"hops": 2, "dim": 8}}
CURVE = Curve("edge, noise in every hop", "x", "accuracy", 3, 0.7, 0.9, 0.69, {1.0: 0.7, 4.0: 0.8, 16.0: 0.84})


def horizon_note(*of: Any) -> str:
    return next((note for note in NeededNoise(*of).notes() if note.startswith("with the noise that the job")), "")


def test_the_file_is_what_was_measured() -> None:
    assert json.loads(CURVES.read_text(encoding="utf-8")) == research.expected.made(), "python -m research.expected"
    assert {curve.way for curve in curves()} >= {
        "edge, noise in every hop",
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
        "edge, noise in every hop": once_job(2, **HOPS),
        "edge, noise in every hop, own rows in the clear": once_job(
            2, **{**HOPS, "aggregation": {"hops": 2, "dim": 8, "own_rows": "clear"}}
        ),
        "node-edges, noise in every hop": once_job(2, **{**HOPS, "unit": "node-edges", "degree_bound": 5}),
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
    votes = {"unit": "edge", "epsilon_total": 4, "aggregation": {}}
    nodes = {"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}}
    kinds["node-dp, noise on the learner's edges"] = parse_job({**nodes, "privacy": votes})
    kinds["sealed, noise on votes"] = parse_job(
        {
            "paradigm": "sealed",
            "data": {"dataset": "cora"},
            "model": {"edge_slots": 8192},
            "train": {"select_by": "last"},
            "privacy": votes,
        }
    )
    for way, at_home in (("private training", None), ("private training, then at home", {"epochs": 3})):
        given = {"epsilon_total": 4, "batch": 200}
        kinds[way] = parse_job(
            {
                "paradigm": "averaging",
                "preset": "auto",
                "data": {"dataset": "cora", "split": [0.5, 0.25, 0.25]},
                "averaging": {"privacy": given, "at_home": at_home},
            }
        )
    assert {way: way_of(job) for way, job in kinds.items()} == {way: way for way in kinds}
    of_nodes = parse_job({**nodes, "privacy": {**votes, "unit": "node-edges", "degree_bound": 5}})
    less = {"unit": "node-edges", "degree_bound": 5, "aggregation": {"hops": 2, "dim": 8, "own_share": 0.5}}
    unmeasured = ({"unit": "node", "degree_bound": 5}, less)
    for job in (of_nodes, once_job(2, epsilon_total=4), *(once_job(2, **{**HOPS, **each}) for each in unmeasured)):
        assert way_of(job) == ""
        assert expected_table(job, {4.0: 4.0}) is None
        assert "was not measured" in not_measured(job)


def test_what_a_job_has_otherwise_than_those_that_were_measured_is_said() -> None:
    def caption(hops: int, dim: int, **more: Any) -> str:
        job = once_job(2, **{**HOPS, "aggregation": {"hops": hops, "dim": dim}, **more})
        table = expected_table(job, {4.0: 4.0})
        assert table is not None
        return str(table.caption).partition("on them.")[2]

    assert caption(2, 64) == ""
    assert caption(3, 64) == " Measured otherwise: privacy.aggregation.hops was 2, and is 3 here."
    nodes = caption(2, 8, unit="node-edges", degree_bound=20)
    assert "privacy.aggregation.dim was 64, and is 8 here; privacy.degree_bound was 20 or 50, and is 20 here" in nodes
    learner = {"unit": "edge", "epsilon_total": 4, "aggregation": {"hops": 2}}
    job = parse_job({"paradigm": "node-dp", "release": {"features": {"epsilon": 1}}, "privacy": learner})
    assert [each["measured_with"] for each in expected_facts(job, {4.0: 4.0})] == [{"privacy.aggregation.hops": 3}]
    table = expected_table(job, {4.0: 4.0})
    assert table is not None
    assert str(table.caption).endswith("privacy.aggregation.hops was 3, and is 2 here.")


def test_a_curve_is_of_one_neighbouring_relation() -> None:
    """Of nodes it is zero-out's; at the same ε replacement takes about twice the noise."""
    of_hops = {**HOPS, "unit": "node-edges", "degree_bound": 5}
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
        for job in (once_job(2, **of_hops, neighbours=neighbours), averaging):
            assert bool(expected_facts(job, {4.0: 4.0})) == is_measured


def test_one_job_of_a_horizon_has_the_noise_that_the_total_needs_and_its_own_epsilon() -> None:
    job = once_job(2, **HOPS)
    planned = plan(job, "B")
    assert planned is not None
    assert NeededNoise(job, [4.0]).facts[-1]["noise_multiplier"] == planned.multiplier, (
        "as the job itself would have it"
    )
    assert NeededNoise(job, [4.0]).job_epsilons() == {4.0: pytest.approx(4.0, rel=1e-6)}
    twelve = NeededNoise(job, [4.0, 16.0], horizon=Horizon(12)).job_epsilons()
    assert 0.5 < twelve[4.0] < 1.5 < twelve[16.0] < 6
    facts = expected_facts(job, twelve)
    assert {each["epsilon_total"] for each in facts} == {4.0, 16.0}
    assert all(each["epsilon_job"] == twelve[each["epsilon_total"]] for each in facts)


def test_a_horizon_says_which_totals_the_jobs_own_noise_fits() -> None:
    job = once_job(2, **HOPS)
    assert horizon_note(job, [4.0], None, Horizon()) == ""
    assert horizon_note(job, [4.0, 64.0], None, Horizon(3)).endswith("which fits a total of 64")
    alike = [horizon_note(job, [4.0], None, each).split("total ε of ")[1] for each in (Horizon(3), Horizon(1, 2))]
    assert alike[0] == alike[1], "a prediction of changed data is a release as a job's is"
    assert horizon_note(job, [4.0, 5.0], None, Horizon(3)).endswith("none of the totals asked about")
