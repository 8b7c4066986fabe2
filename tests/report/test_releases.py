"""What nodes release, for the terminal."""

from typing import Any

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
