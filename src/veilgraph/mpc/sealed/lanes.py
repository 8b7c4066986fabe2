"""Parts of a program side by side: while one waits for messages, the next one computes.

Parts run in threads, one at a time. Whoever has sent what a round needs lets the next one go on, and then waits for
what others send. Rounds are the same at all parties, so their turns are in the same order, and so is what each sends:
it follows from the program alone. Nobody waits for what is sent in a later turn, so that nothing is waited for forever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

Value = TypeVar("Value")


class _End(Protocol):
    """A party's end of a part of the program; ``turn`` is called once a round."""

    turn: Callable[[], None]

    def fork(self, count: int, /) -> list[Self]:
        """Return the ends of so many parts that run side by side."""

    def join(self, lanes: Sequence[Self], /) -> None:
        """Go on where these parts have ended."""


End = TypeVar("End", bound=_End)


class Ends(Generic[End]):
    """A party's ends of the parts of the program: each thread has its own."""

    def __init__(self, first: End) -> None:
        self._first, self._lane = first, threading.local()

    @property
    def here(self) -> End:
        """The end of the part that this thread runs."""
        found: End = getattr(self._lane, "end", self._first)
        return found

    def abreast(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        """Run parts side by side, each with an end of its own, and return what they give; one alone as it is."""
        if len(parts) == 1:
            return [parts[0]()]
        here = self.here
        lanes, turns = here.fork(len(parts)), Turns(len(parts), here.turn)

        def one(place: int, part: Callable[[], Value]) -> Value:
            self._lane.end = lanes[place]
            lanes[place].turn = partial(turns.pass_on, place)
            return part()

        found = turns.run([partial(one, *each) for each in enumerate(parts)])
        here.join(lanes)
        return found


class Turns:
    """The turns of so many threads, of which one runs at a time: the first one begins.

    ``around`` is called after each turn of the last: it lets go on what all these threads together run beside.
    """

    def __init__(self, count: int, around: Callable[[], None]) -> None:
        self._changed = threading.Condition()
        self._running, self._at = list(range(count)), 0
        self._around, self._failed = around, False

    def run(self, parts: Sequence[Callable[[], Value]]) -> list[Value]:
        """Run each part in a thread, and return what they give; the first error ends all of them."""
        found: dict[int, Value] = {}
        errors: list[BaseException] = []

        def one(place: int, part: Callable[[], Value]) -> None:
            try:
                self._await(place)
                found[place] = part()
                if len(self._running) > 1:
                    self._end_round(place)
            except BaseException as error:  # noqa: BLE001 - raised again below, by the thread that waits for all
                if not (isinstance(error, _Ended) and self._failed):  # else one of these threads has failed before
                    errors.append(error)
            finally:
                self._leave(place, failed=bool(errors))

        threads = [threading.Thread(target=one, args=each, daemon=True) for each in enumerate(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [found[place] for place in range(len(parts))]

    def pass_on(self, place: int) -> None:
        """Let the next thread go on, and wait for the next turn of thread ``place``."""
        self._end_round(place)
        with self._changed:
            self._at = (self._at + 1) % len(self._running)
            self._changed.notify_all()
        self._await(place)

    def _end_round(self, place: int) -> None:
        """Behind the last thread's turn let others go on: the first one would only wait for its messages."""
        if place == self._running[-1]:
            self._around()

    def _await(self, place: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._running[self._at] == place)
            if self._failed:
                raise _Ended

    def _leave(self, place: int, *, failed: bool) -> None:
        with self._changed:
            self._failed |= failed
            at = self._running.index(place)
            del self._running[at]
            self._at = at % max(len(self._running), 1)
            self._changed.notify_all()


class _Ended(Exception):
    """Ends a thread, as another has failed."""
