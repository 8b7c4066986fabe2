"""What is kept from the terminal while the engine is called, and nothing more or longer."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from threading import Event, Thread

import pytest

from veilgraph.deploy.guard.seldom import EVERY_S, TALKATIVE, Seldom, thin
from veilgraph.deploy.quiet import Shared, no_logs, no_prints


def test_attempts_to_reach_the_server_are_said_now_and_then() -> None:
    """Each kind of line by itself, and again once it was not said for a while."""
    now, filter_ = [0.0], Seldom(lambda: now[0])

    def passes(words: str, level: int = logging.INFO) -> bool:
        return bool(filter_.filter(logging.LogRecord("nvflare", level, "", 1, words, (), None)))

    assert passes("Retrying [CH00001] in 10 seconds")
    assert not passes("Retrying [CH00002] in 11 seconds")
    assert passes("Connection [CN00001] is closed")
    assert passes("Connection [CN00001] is closed", logging.ERROR)
    now[0] += EVERY_S
    assert passes("Retrying [CH00003] in 10 seconds")
    words = ["".join(chr(ord("a") + int(digit)) for digit in str(number)) for number in range(10_000)]
    assert all(map(passes, words)), "none is like another"
    assert not passes(words[-1])
    assert passes("Retrying [CH00004] in 10 seconds"), "it does not remember everything that was ever said"


def test_the_lines_that_are_thinned_are_those_of_flare(caplog: pytest.LogCaptureFixture) -> None:
    for name in TALKATIVE:
        module, _, kind = name.rpartition(".")
        assert find_spec(name) is not None if kind.islower() else hasattr(import_module(module), kind), name
        log, before = logging.getLogger(name), list(logging.getLogger(name).filters)
        try:
            thin()
            with caplog.at_level(logging.INFO):
                log.info("try 1")
                log.info("try 2")
        finally:
            log.filters[:] = before
    assert [record.getMessage() for record in caplog.records] == ["try 1"] * len(TALKATIVE)


def test_threads_that_overlap_leave_everything_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = sys.stdout, sys.stderr
    level = logging.getLogger("nvflare").level
    for quiet in (no_logs, no_prints):
        first, second = quiet(), quiet()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert (sys.stdout, sys.stderr, logging.getLogger("nvflare").level) != (*terminal, level), "ended too early"
        second.__exit__(None, None, None)
        assert (sys.stdout, sys.stderr, logging.getLogger("nvflare").level) == (*terminal, level)
    sys.stdout.write("seen\n")
    assert capsys.readouterr().out == "seen\n"


@pytest.mark.parametrize("quiet", [no_logs, no_prints])
def test_it_holds_for_as_long_as_any_thread_is_inside(quiet: Shared) -> None:
    def state() -> tuple[object, ...]:
        return sys.stdout, sys.stderr, logging.getLogger("nvflare").level

    before, entered, leave = state(), Event(), Event()

    def other() -> None:
        with quiet():
            entered.set()
            leave.wait(10)

    thread = Thread(target=other)
    with quiet():
        thread.start()
        assert entered.wait(10)
    inside = state()
    leave.set()
    thread.join()
    assert inside != before, "ended too early"
    assert state() == before


def test_an_error_inside_leaves_everything_as_it_was() -> None:
    terminal = sys.stdout
    for quiet in (no_logs, no_prints):
        with pytest.raises(ValueError, match="inside"), quiet():
            raise ValueError("inside")
        assert sys.stdout is terminal
        assert logging.getLogger("nvflare.private").isEnabledFor(logging.ERROR)


def test_only_the_engines_own_log_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    with no_logs():
        logging.getLogger("nvflare.fuel").error("of the engine")
        logging.getLogger("veilgraph").warning("ours")
        logging.getLogger("of.the.user").warning("a user's")
    logging.getLogger("nvflare.fuel").error("of the engine, afterwards")
    assert caplog.messages == ["ours", "a user's", "of the engine, afterwards"]
