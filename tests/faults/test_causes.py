"""Of several parties that fail, who failed first in time need not be the cause."""

import threading
import time
from typing import NoReturn

import pytest
import torch

from tests.errors import refused
from veilgraph.core.errors import DataError, PeerFailed
from veilgraph.core.types import Kind, Link, Tag
from veilgraph.runtime.launch import processes as launch

PATIENT_S = 0.5


def waits(link: Link) -> None:
    link.receive("A", Tag(Kind.HELLO, 0, 0))


def closes_and_then_says_why(link: Link) -> NoReturn:
    """As on a busy machine: its end is closed, its error still under way when the grace period is over."""
    link.close()
    time.sleep(PATIENT_S)
    raise DataError("a bad row; mend it", code="row")


def closes_and_says_nothing(link: Link) -> None:
    link.close()
    time.sleep(60)


def test_the_cause_is_waited_for_beyond_the_grace_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.0)
    with refused(DataError, code="row"):
        launch.run_threads({"A": closes_and_then_says_why, "B": waits}, 10, lambda: None)


def test_a_cause_that_never_comes_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 0.0)
    monkeypatch.setattr(launch, "CAUSE_S", 0.1)
    began = time.monotonic()
    with refused(PeerFailed, party="A"):
        launch.run_threads({"A": closes_and_says_nothing, "B": waits}, 10, lambda: None)
    assert time.monotonic() - began < 10


def test_with_a_cause_the_grace_period_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(link: Link) -> NoReturn:
        raise DataError("a bad row; mend it", code="row")

    over, ended = threading.Event(), threading.Event()

    def computes(link: Link) -> None:
        until = time.monotonic() + 5
        while time.monotonic() < until and not over.is_set():
            torch.ones(10, 10) @ torch.ones(10, 10)
        ended.set()

    monkeypatch.setattr(launch, "GRACE_S", 0.0)
    try:
        with refused(DataError, code="row"):
            launch.run_threads({"A": fails, "B": computes}, 10, lambda: None)
        assert not ended.is_set(), "it was waited for"
    finally:
        over.set()
