"""Work beside a role's passes: in order, with errors raised at the next check."""

from __future__ import annotations

import threading

import pytest

from veilgraph.core.errors import LinkError
from veilgraph.paradigms.vertical.dealing import Background


def test_work_is_done_in_order_beside_the_caller_and_close_waits_for_it() -> None:
    background, go = Background(), threading.Event()
    done: list[int] = []
    background.submit(go.wait, 10)
    for number in range(5):
        background.submit(done.append, number)
    background.check()
    assert done == []
    go.set()
    background.close()
    assert done == [0, 1, 2, 3, 4]
    background.check()


def test_an_error_is_raised_once_by_a_check_after_it() -> None:
    def fail() -> None:
        raise LinkError("B is gone")

    background, done = Background(), threading.Event()
    background.submit(fail)
    background.submit(done.set)
    assert done.wait(10)
    with pytest.raises(LinkError, match="B is gone"):
        background.check()
    background.check()
    background.close()


def test_without_work_there_is_no_thread() -> None:
    before = threading.active_count()
    background = Background()
    assert threading.active_count() == before
    background.close()
