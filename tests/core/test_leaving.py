"""A process ends with its own exit code whatever still runs in it."""

import signal
import sys
from pathlib import Path

import pytest

from tests.forks import Forks


def test_an_interpreter_aborts_beneath_a_party_that_computes(forks: Forks) -> None:
    """The fault itself: without ``leave`` a good message is followed by SIGABRT, unless the process ends first."""
    for _ in range(5):
        ended = forks.run(target="tests.leaving:interpreter_ends")
        assert ended.stderr.startswith("a bad row\n")
        if sys.version_info >= (3, 14) or ended.exit_code == -signal.SIGABRT:
            break
    if sys.version_info < (3, 14):
        assert ended.exit_code == -signal.SIGABRT
        assert "terminate called" in ended.stderr


@pytest.mark.parametrize(
    ("way", "code"), [("leaves", 7), ("leaves_well", 0), ("script_ends", 7), ("command_refuses", 7)]
)
def test_a_party_that_computes_does_not_change_the_exit_code(forks: Forks, way: str, code: int) -> None:
    ended = forks.run(target=f"tests.leaving:{way}")
    assert (ended.exit_code, ended.stderr) == (code, "a bad row\n")
    assert ended.stdout == "all of it, and the end"


def test_without_daemon_threads_the_interpreter_ends_by_itself(forks: Forks) -> None:
    ended = forks.run(target="tests.leaving:leaves_alone")
    assert (ended.exit_code, ended.stdout, ended.stderr) == (7, "joined", "")


def test_what_cannot_be_written_at_the_end_is_no_success(forks: Forks) -> None:
    assert forks.run(target="tests.leaving:leaves_into_nothing").exit_code == 120


def test_a_script_waits_for_what_was_left_behind_but_not_for_ever(forks: Forks) -> None:
    ended = forks.run(target="tests.leaving:script_does_not_wait_for_ever", limit_s=15)
    assert (ended.exit_code, ended.stderr) == (7, "")


def test_a_fault_of_ours_is_shown_and_ends_with_1(forks: Forks) -> None:
    ended = forks.run(target="tests.leaving:command_breaks")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("a bad row\nTraceback")
    assert ended.stderr.endswith("ZeroDivisionError: a fault of ours\n")


def test_a_terminated_command_removes_its_temporary_files(forks: Forks) -> None:
    ended = forks.run(target="tests.leaving:command_is_terminated")
    assert (ended.exit_code, ended.stderr) == (130, "veilgraph: stopped\n")
    assert ended.stdout
    assert not Path(ended.stdout).exists()


def test_a_partys_process_ends_with_its_own_exit_code_or_1(forks: Forks) -> None:
    ended = forks.run(target="tests.leaving:process_ends")
    assert ended.exit_code == 0
    assert ended.stdout.endswith("0 7 1 1"), ended.stderr
