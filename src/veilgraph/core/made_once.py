"""Results that the threads of a process share: while one computes, the others wait for what it finds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def made_once(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """``lru_cache`` under a lock: all parties of a simulation ask for the same total at the same time."""

    def decorate(make: Callable[P, R]) -> Callable[P, R]:
        cached, lock = lru_cache(maxsize)(make), threading.RLock()

        @wraps(make)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            with lock:
                return cached(*args, **kwargs)  # type: ignore[arg-type]  # all that is asked for can be hashed

        return found

    return decorate
