"""Threads that ask for the same wait for the one that computes it."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from veilgraph.core.threads import locked_cache


def test_threads_share_one_result() -> None:
    made = list[int]()

    @locked_cache(maxsize=4)
    def slow(number: int) -> object:
        made.append(number)
        time.sleep(0.05)
        return object()

    start = threading.Barrier(4)

    def ask() -> object:
        start.wait()
        return slow(1)

    with ThreadPoolExecutor(4) as pool:
        found = {work.result() for work in [pool.submit(ask) for _ in range(4)]}
    assert len(found) == 1
    assert made == [1]
    assert slow(2) not in found


def test_one_may_ask_for_another_and_an_error_is_not_kept() -> None:
    @locked_cache(maxsize=4)
    def factorial(number: int) -> int:
        if number < 0:
            raise LookupError
        return 1 if number == 0 else number * factorial(number - 1)

    assert factorial(5) == 120
    for _ in range(2):
        with pytest.raises(LookupError):
            factorial(-1)
