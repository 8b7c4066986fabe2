"""What nodes release, for the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.report.protection import PerturbedFeatures


def job(holders: int = 2, *, labels: dict[str, Any] | None = None, **features: Any) -> JobSettings:
    settings = {"features": {"epsilon": 1.5, **features}, "labels": labels}
    return parse_job({"paradigm": "node-dp", "data": {"holders": holders}, "release": settings})


def table(settings: JobSettings) -> Table:
    assert settings.noise.feature_release is not None
    return PerturbedFeatures(settings, settings.noise.feature_release).table()


def notes(settings: JobSettings) -> list[str]:
    assert settings.noise.feature_release is not None
    return PerturbedFeatures(settings, settings.noise.feature_release).notes()


def rows(of: Table) -> list[tuple[str, ...]]:
    return list(zip(*([str(cell) for cell in column.cells] for column in of.columns), strict=True))


def test_who_learns_releases_nothing_and_a_holders_releases_add_up() -> None:
    assert rows(table(job(3, labels={"holder": "C", "epsilon": 2}))) == [
        ("A (learns)", "nothing", "–", "0", "0"),
        ("B", "features", "multi-bit", "1.5", "1.5"),
        ("C", "features", "multi-bit", "1.5", "3.5"),
        ("", "label", "randomised response", "2", ""),
    ]


@pytest.mark.parametrize(
    ("features", "shown"),
    [
        ({"mechanism": "one-bit"}, "Of one release, made a single time."),
        ({"mechanism": "gaussian", "delta": 1e-5}, "Of one release, made a single time; δ = 1e-05."),
    ],
)
def test_delta_is_said_where_there_is_one(features: dict[str, Any], shown: str) -> None:
    found = table(job(**features))
    assert found.caption == shown
    assert rows(found)[1][2] == features["mechanism"]


def test_notes_say_what_epsilon_is_about_and_what_it_is_not() -> None:
    found = notes(job(low=-1, high=3))
    assert "neighbouring relation: replacement: the node's own values, or any others from -1 to 3" in found
    assert "features: multi-bit, ε 1.5, perturbed once at B" in found
    assert "Edges are not noised: A, which learns, has them and sends nothing of them." in found
    assert found[-1] == (
        "Changed data are released anew, which costs as much again; training and predicting cost nothing."
    )
    more = notes(job(3, labels={"holder": "B", "epsilon": 2}))
    assert "Which nodes there are, and which have a label for training, is not hidden." in more
    assert any("what a node releases at all of these has a total ε of 5" in each for each in more)
