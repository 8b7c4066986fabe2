"""Every role is killed at random moments; the others stop, and the run goes on to what an undisturbed one gives.

The variable VEILGRAPH_KILLS says how many times each role of each paradigm is killed.
"""

import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import nightly
from tests.faults.host import Host, Order
from tests.faults.kills import KILLS, Moment, assert_stopped_cleanly, run_and_kill
from tests.faults.runs import ROLES, assert_undisturbed, graph_job, mean_job, secure_max_job, table_job
from veilgraph.protocol.job import JobSettings

Job = Callable[[Path], JobSettings]
JOBS: dict[str, list[Job]] = {"vertical": [table_job, graph_job], "horizontal": [secure_max_job, mean_job]}
MOST_WRITES = 20


def moment(source: random.Random, life_s: float) -> Moment:
    if source.random() < 0.6:
        return Moment(seconds=source.uniform(0, life_s))
    return Moment(write=source.randint(1, MOST_WRITES))


def assert_killed_and_resumed(
    folder: Path, host: Host, settings: JobSettings, source: random.Random, life_s: float
) -> None:
    """Kills every role once, in random order, goes on after each kill, and compares at the end."""
    runs, told = 0, []
    run = folder / "run 0"
    for role in source.sample(ROLES, len(ROLES)):
        while True:
            when = moment(source, life_s)
            told.append(f"{run.name}: {role} at {when}")
            outcome = run_and_kill(host, Order(None if run.exists() else settings, run), role, when)
            if outcome.error:
                break
            assert_undisturbed(run, folder / "undisturbed")  # it was complete before that moment
            life_s = min(life_s, outcome.seconds)
            runs += 1
            run = folder / f"run {runs}"
        sys.stdout.write(f"{role} killed at {when}: the others ended {outcome.notice_s:.2f} s later\n")
        try:
            assert_stopped_cleanly(outcome, role)
        except AssertionError as error:
            raise AssertionError(f"after {'; '.join(told)}: {outcome}") from error
    try:
        outcome = host.do(Order(None, run))
        assert outcome.error == "", outcome
        assert_undisturbed(run, folder / "undisturbed")
    except AssertionError as error:
        raise AssertionError(f"after {'; '.join(told)}") from error


@pytest.fixture(scope="module")
def life_s(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Job], float]:
    """How long an undisturbed run of a job takes, in seconds."""

    @cache
    def life_s(job: Job) -> float:
        folder = tmp_path_factory.mktemp("life")
        outcome = host.do(Order(job(folder / "data"), folder / "run"))
        assert outcome.error == "", outcome
        return outcome.seconds

    return life_s


@pytest.mark.parametrize("seed", range(KILLS))
@pytest.mark.parametrize("paradigm", ["vertical", pytest.param("horizontal", marks=nightly)])
def test_every_role_is_killed(
    tmp_path: Path, host: Host, life_s: Callable[[Job], float], paradigm: str, seed: int
) -> None:
    job = JOBS[paradigm][seed % len(JOBS[paradigm])]
    assert_killed_and_resumed(tmp_path, host, job(tmp_path / "data"), random.Random(seed), life_s(job))
