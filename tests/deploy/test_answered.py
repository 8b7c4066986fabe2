"""A server that is slow to answer ends no wait for a job; one that never does ends it in time."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from nvflare.fuel.flare_api.api_spec import JobNotFound, NoConnection

from veilgraph.deploy import session


def slow(times: int) -> tuple[list[int], Callable[[], str]]:
    asked = list[int]()

    def ask() -> str:
        asked.append(1)
        if len(asked) <= times:
            raise NoConnection("cannot connect to server: ERROR_SERVER_CONNECTION")
        return "running"

    return asked, ask


def test_a_late_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    asked, ask = slow(3)
    assert session.answered(ask) == "running"
    assert len(asked) == 4


def test_no_answer_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "UNANSWERED_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    _, ask = slow(10**9)
    with pytest.raises(NoConnection):
        session.answered(ask)


def test_nothing_but_silence_is_asked_again() -> None:
    asked = list[int]()

    def broken() -> str:
        asked.append(1)
        raise JobNotFound

    with pytest.raises(JobNotFound):
        session.answered(broken)
    assert len(asked) == 1
