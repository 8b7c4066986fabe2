"""A trace of where the time goes: what each thread of a party does and when, with names and sizes and no values.

Written in the JSON object form of the Trace Event Format (Google), which chrome://tracing and Perfetto load. Times are
of the monotonic clock, which all processes of a machine share: traces of its parties fit together as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from veilgraph.core.errors import RunError
from veilgraph.core.files import write_json

Fact = str | int
"""What may be told of a span: a name, a count or a size."""
Event = dict[str, Any]

MAX_EVENTS: Final = 200_000
"""Events that a party keeps: thousands of passes, in about 100 MB of memory and 40 MB on disk."""
_NS_PER_US: Final = 1000


class Trace:
    """Events of one party, kept in memory until they are written. All threads may add to it.

    ``number``, from 1, is the trace's process. Beyond ``limit`` events are dropped and counted.
    """

    def __init__(self, party: str, number: int, limit: int = MAX_EVENTS) -> None:
        self._party, self._number, self._limit = party, number, limit
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._threads: dict[threading.Thread, int] = {}
        self._dropped = 0

    @contextmanager
    def span(self, name: str, category: str = "work", **facts: Fact) -> Iterator[dict[str, Fact]]:
        """Record the block as a span of this thread, also where it fails; yields ``facts``, to which it may add.

        ``name`` is the same every time that this is done; ``category`` is "work", or on a link "send" or "wait".
        """
        started = time.monotonic_ns()
        try:
            yield facts
        finally:
            duration = (time.monotonic_ns() - started) / _NS_PER_US
            self._add({"ph": "X", "name": name, "cat": category, "ts": started / _NS_PER_US, "dur": duration}, facts)

    def flow_begins(self, identity: str) -> None:
        """Record the tail of an arrow from the open span to another thread; its head has the same ``identity``."""
        self._add_flow({"ph": "s", "id": identity})

    def flow_ends(self, identity: str) -> None:
        """Record the head of the arrow of this ``identity``, in the span that is open in this thread."""
        self._add_flow({"ph": "f", "bp": "e", "id": identity})

    def write(self, path: Path) -> None:
        """Writes the trace of this party alone."""
        with self._lock:
            events, threads, dropped = list(self._events), dict(self._threads), self._dropped
        names = [self._name_event("process_name", self._party, 0)]
        names += [self._name_event("thread_name", thread.name, number) for thread, number in threads.items()]
        write_trace(path, names + events, {self._party: dropped} if dropped else {})

    def _add_flow(self, event: Event) -> None:
        self._add({**event, "name": "message", "cat": "message", "ts": time.monotonic_ns() / _NS_PER_US}, {})

    def _add(self, event: Event, facts: Mapping[str, Fact]) -> None:
        """Keep an event of this thread with its facts; count it as dropped where the trace is full."""
        thread = threading.current_thread()
        with self._lock:
            if len(self._events) == self._limit:
                self._dropped += 1
                return
            number = self._threads.setdefault(thread, len(self._threads) + 1)
            self._events.append({**event, "pid": self._number, "tid": number, "args": facts})

    def _name_event(self, kind: str, name: str, thread: int) -> Event:
        """Make the event that names the process or a thread (``kind``) in the trace."""
        return {"ph": "M", "name": kind, "pid": self._number, "tid": thread, "args": {"name": name}}


class NoTrace:
    """Stands in for a ``Trace`` where none is asked for, and records nothing."""

    _nothing: Final = nullcontext()

    def span(self, name: str, category: str = "work", **facts: Fact) -> AbstractContextManager[None]:
        """Does nothing. Arguments as those of ``Trace.span``."""
        return self._nothing


NO_TRACE: Final = NoTrace()
AnyTrace = Trace | NoTrace


def write_trace(path: Path, events: Iterable[Event], dropped: Mapping[str, int]) -> None:
    """Write events as one Trace Event file (JSON); ``dropped``: party → number of its events that did not fit."""
    trace = {"traceEvents": list(events), "displayTimeUnit": "ms", "otherData": {"dropped": dict(dropped)}}
    write_json(path, trace)


def merge_traces(paths: Iterable[Path], path: Path) -> dict[str, int]:
    """Write the traces of several parties of one machine as one; gives party → events that did not fit.

    Raises ``RunError``: a trace is missing or damaged.
    """
    events, dropped = list[Event](), dict[str, int]()
    for part in paths:
        try:
            trace = from_json(part.read_text(encoding="utf-8"))
            events += trace["traceEvents"]
            dropped |= trace["otherData"]["dropped"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{part}: missing or damaged ({error}); train again with a profile") from error
    write_trace(path, events, dropped)
    return dropped
