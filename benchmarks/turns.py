"""Clocks of parties that each have a machine of their own, told on one machine: one thread computes at a time.

A thread holds a token while it computes, and lets go of it while it waits for a message, for its own background work or
for that to end. So every piece of computation has the machine to itself when it is timed. Each thread has a clock that
goes on by what it computes; where it waited, it is set to the clock of what it waited for if that is later (Lamport's
logical clocks with durations in place of ticks). Messages take no time.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

from torch import Tensor

from veilgraph.core.types import Link, PartyId, Tag

_SHARED_POOLS: Final = "ring "
"""Name of the pools whose threads compute for whoever holds the token, which waits for them."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The end of a piece of computation.

    Attributes:
        at: seconds on the thread's clock.
        party: who computed.
        background: whether in another thread than the party's main one.
        before: what it had to follow, at the start of the piece: its thread's last, or what it waited for if later.
    """

    at: float
    party: PartyId = ""
    background: bool = False
    before: Moment | None = None

    @property
    def start(self) -> float:
        """When the piece began, in seconds."""
        return 0.0 if self.before is None else self.before.at


class Turns:
    """The token and the clocks of one job.

    Args:
        clock: seconds that computing takes, the machine's.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.moments: list[Moment] = []
        """All pieces, in the order in which they were computed here."""
        self._token = threading.Lock()
        self._thread = threading.local()
        self._ends = weakref.WeakKeyDictionary[Future[Any], list[Moment]]()

    @contextmanager
    def turn(self, party: PartyId, *, background: bool = False, after: Sequence[Moment] = ()) -> Iterator[None]:
        """The body computes in this thread as ``party``, not before ``after`` on its clock."""
        mine = self._thread
        mine.party, mine.background = party, background
        mine.now = getattr(mine, "now", Moment(0.0))
        self._token.acquire()
        mine.started = self._clock()
        try:
            self.follow(*after)
            yield
        finally:
            self.now()
            mine.party = None
            self._token.release()

    def takes_part(self) -> bool:
        """Whether this thread has its turn."""
        return getattr(self._thread, "party", None) is not None

    def now(self) -> Moment:
        """Ends a piece of computation in this thread and begins the next."""
        mine, ended = self._thread, self._clock()
        mine.now = Moment(mine.now.at + ended - mine.started, mine.party, mine.background, mine.now)
        self.moments.append(mine.now)
        mine.started = self._clock()
        moment: Moment = mine.now
        return moment

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Others may compute during the body."""
        self.now()
        self._token.release()
        try:
            yield
        finally:
            self._token.acquire()
            self._thread.started = self._clock()

    def follow(self, *moments: Moment) -> None:
        """What this thread computes next had to wait for these."""
        self._thread.now = max((self._thread.now, *moments), key=lambda moment: moment.at)

    @contextmanager
    def background(self) -> Iterator[None]:
        """Work that a thread with a turn gives to a ``ThreadPoolExecutor`` takes turns as well; for one job."""
        submit, shutdown, result = ThreadPoolExecutor.submit, ThreadPoolExecutor.shutdown, Future.result

        def submit_in_turn(
            pool: ThreadPoolExecutor,
            work: Callable[..., Any],
            *args: Any,  # noqa: ANN401
            **kwargs: Any,  # noqa: ANN401
        ) -> Future[Any]:
            if not self.takes_part() or (pool._thread_name_prefix or "").startswith(_SHARED_POOLS):
                return submit(pool, work, *args, **kwargs)
            party, given, ends = self._thread.party, self.now(), list[Moment]()

            def run() -> Any:  # noqa: ANN401
                try:
                    with self.turn(party, background=True, after=[given]):
                        return work(*args, **kwargs)
                finally:
                    ends.append(self._thread.now)

            future = submit(pool, run)
            self._ends[future] = ends
            return future

        def result_in_turn(future: Future[Any], timeout: float | None = None) -> Any:  # noqa: ANN401
            ends = self._ends.get(future)
            if ends is None or not self.takes_part():
                return result(future, timeout)
            try:
                with self.waiting():
                    return result(future, timeout)
            finally:
                self.follow(*ends)

        def shutdown_in_turn(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
            if not self.takes_part():
                shutdown(pool, wait, cancel_futures=cancel_futures)
                return
            with self.waiting():
                shutdown(pool, wait, cancel_futures=cancel_futures)

        with (
            patch.object(ThreadPoolExecutor, "submit", submit_in_turn),
            patch.object(ThreadPoolExecutor, "shutdown", shutdown_in_turn),
            patch.object(Future, "result", result_in_turn),
        ):
            yield


class TurnLink:
    """A ``Link`` on which others compute while its party waits, and whose messages carry their sender's clock.

    Args:
        link: the link that does the work, in memory.
        turns: of the job.
        sent: of the job, too: sender, receiver, tag → when it was sent.
    """

    def __init__(self, link: Link, turns: Turns, sent: dict[tuple[PartyId, PartyId, Tag], Moment]) -> None:
        self._link, self._turns, self._sent = link, turns, sent

    @property
    def party(self) -> PartyId:
        """Name of the party on this end."""
        return self._link.party

    def send(self, to: PartyId, tag: Tag, tensor: Tensor) -> None:
        """Sends over the wrapped link. Whoever waits for it cannot go on before this thread waits in its turn."""
        self._link.send(to, tag, tensor)
        self._sent[self.party, to, tag] = self._turns.now()

    def receive(self, sender: PartyId, tag: Tag) -> Tensor:
        """Waits without the token, then takes it again: by then the sender, which had it, has noted when it sent."""
        with self._turns.waiting():
            tensor = self._link.receive(sender, tag)
        self._turns.follow(self._sent.pop((sender, self.party, tag)))
        return tensor

    def comes(self, sender: PartyId, tag: Tag, timeout_s: float) -> bool:
        """Waits without the token; takes nothing."""
        with self._turns.waiting():
            return self._link.comes(sender, tag, timeout_s)

    def expect(self, unread_bytes: int) -> None:
        """As the wrapped link."""
        self._link.expect(unread_bytes)

    def close(self) -> None:
        """Closes the wrapped link."""
        self._link.close()
