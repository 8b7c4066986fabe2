"""Honest audits raise an alarm once in a hundred runs (``FALSE_ALARM_RATE``): here all runs are the same every time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.audit.runs import job_in
from tests.chance import Chance
from veilgraph.runtime.launch.jobs import train

CHANCE = Chance()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What several tests of a module share is the same whichever of them makes it."""
    CHANCE.restart(item.path.stem)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_by_chance() -> Iterator[None]:
    with CHANCE.is_fixed():
        yield


@pytest.fixture(autouse=True)
def _each_test_begins_anew(request: pytest.FixtureRequest) -> None:
    CHANCE.restart(request.node.name)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited")
    train(job_in(folder / "data"), folder / "run", record_views=True)
    return folder / "run"
