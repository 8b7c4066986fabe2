"""A party's lifetime ledger, and its filter: what would take a node beyond the budget is refused before it is made.

A release is paid for before it is made, as in the ledger of a run, and here by every node whose data it depends on. The
budget is one (ε, δ) about one unit and relation, over all jobs and predictions that the party ever takes part in. δ is
the party's own (``limits.max_delta``). The δ of a job is recorded and changes no total.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from veilgraph.core.errors import BudgetSpent
from veilgraph.core.secrets import derive_key
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, Neighbours, Scope, Unit
from veilgraph.privacy.ledger_files import Entry, LifetimeFile, Marks, cohort_name, now
from veilgraph.privacy.lifetime_costs import Costs, Keys, keyed_hashes, price

# A budget of exactly what was calibrated to it has room for that, however the sum was rounded.
_ROUNDING: Final = 1 + 1e-12


@dataclass(frozen=True)
class Budget:
    """What a party lets all releases come to: ε, infinite for none, at δ; without unit as the first release."""

    epsilon: float = math.inf
    delta: float = 1e-4
    unit: Unit | None = None
    neighbours: Neighbours | None = None


class Lifetime:
    """An open lifetime ledger, in a folder made at need: safe to use from several threads and processes.

    ``lines`` is its file; ``marks`` are of this account. Raises ``RunError`` as ``LifetimeFile``.
    """

    def __init__(self, folder: Path, party: str, budget: Budget, marks: Marks) -> None:
        self.budget = budget
        self._lock = threading.RLock()
        self.lines = LifetimeFile(folder, party, marks)
        # What the lines come to, as far as they were read.
        self._read, self._costs = 0, Costs()
        self._first: Event | None = None
        self._events: set[Event] = set()
        self._paid: set[tuple[str, str, str]] = set()
        self._add_new_lines()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the ledger, with all lines added up that any process has added so far."""
        with self._lock, self.lines.held():
            self._add_new_lines()
            yield

    def __str__(self) -> str:
        total, about, most = self.total(), self.about, self.budget.epsilon
        said = "" if about is None else f", unit {about.unit}, {about.neighbours}"
        limit = "" if math.isinf(most) else f" of limits.max_epsilon={most:g}"
        return f"ever released of a node: a total ε of {total:.6g}{limit} (δ = {self.delta:g}{said}; {self.path})"

    @property
    def path(self) -> Path:
        """Path of the ledger's file."""
        return self.lines.path

    def keys(self, ids: Iterable[str]) -> Keys:
        """Return the keys of ids: sorted, each once; the same for the same id for as long as the ledger is."""
        return np.unique(self.each_key(ids))

    def each_key(self, ids: Iterable[str]) -> Keys:
        """Return the key of each id, in the order of the ids."""
        return keyed_hashes(bytes.fromhex(self.lines.header.salt), ids)

    def secret(self, purpose: str) -> bytes:
        """32 secret bytes that stay the same for as long as the ledger is."""
        return derive_key(bytes.fromhex(self.lines.header.salt), purpose)

    def charge(
        self,
        event: Event,
        channel: str,
        count: int,
        keys: Keys,
        *,
        delta: float | None,
        run: str,
        job: str,
        content: str = "",
    ) -> None:
        """Pay for releases that depend on the data of these nodes; they may be made when this has returned.

        ``delta``, ``run`` (SHA-256 of the settings) and ``job`` are for the record. ``content`` names a draw that is
        kept: it is paid for once. Raises ``BudgetSpent``: nothing was written; ``RunError``: the entry could not be
        written, or the ledger is not what it was.
        """
        with self._held():
            if content and (channel, content, cohort_name(keys)) in self._paid:
                return
            if not self._fits(event, count, keys):
                raise BudgetSpent(
                    self._refusal(event, count, keys, channel),
                    code="lifetime",
                    key="limits.max_epsilon",
                    value=self.budget.epsilon,
                )
            self.lines.append(
                Entry(
                    time=now(),
                    run=run,
                    job=job,
                    channel=channel,
                    event=event,
                    count=count,
                    delta=delta,
                    cohort=self.lines.keep_cohort(keys),  # not before: refused jobs must not fill the disk
                    content=content,
                )
            )
            self._add_new_lines()

    def room(self, event: Event, keys: Keys, most: int = accountant.MOST_RELEASES) -> int | None:
        """How many more such releases the budget allows, counted no further than ``most``; None without a budget."""
        if math.isinf(self.budget.epsilon):
            return None
        with self._held():
            return accountant.largest_count(lambda count: self._fits(event, count, keys), most)

    def has_room(self, event: Event, count: int, keys: Keys) -> bool:
        """Whether the budget allows so many more releases; their price, seconds to find, is remembered."""
        price(event, count, self.delta)
        with self._held():
            return self._fits(event, count, keys)

    def booked(self, costs: Sequence[Event]) -> Event:
        """Return the cost that a release is charged at: the first to bound the total's unit, or else the first."""
        with self._held():
            abouts = [(each, self._about(each)) for each in costs]
        return next((each for each, about in abouts if about is not None and about.bounds(each)), costs[0])

    def has_paid(self, channel: str, content: str, keys: Keys) -> bool:
        """Whether these nodes have paid for the draw that ``content`` names, on that channel."""
        with self._held():
            return (channel, content, cohort_name(keys)) in self._paid

    def total(self) -> float:
        """The largest total ε of any node, at ``delta``; infinite where a release is about something else."""
        with self._held():
            return self._total(self.about)

    def total_with(self, event: Event, count: int, jobs: int = 1) -> float:
        """The total once every node has paid for so many more such jobs' releases; infinite as ``total``."""
        with self._held():
            return self._total_with(event, count, jobs=jobs)

    def fits(self, total: float) -> bool:
        """Whether the budget has room for such a total."""
        return total <= self.budget.epsilon * _ROUNDING

    @property
    def nodes(self) -> int:
        """Number of nodes that have paid by a key of their own."""
        return self._costs.nodes

    @property
    def delta(self) -> float:
        """δ of the total."""
        return self.budget.delta

    @property
    def about(self) -> Scope | None:
        """What the total is about: as the budget says, or the first release; None where nothing says."""
        return self._about(None)

    def _about(self, event: Event | None) -> Scope | None:
        """Return the total's unit and relation once ``event`` is released: the budget's, else the first release's."""
        first = event if self._first is None else self._first
        unit = self.budget.unit or (None if first is None else first.unit)
        neighbours = self.budget.neighbours or (None if first is None else first.neighbours)
        return None if unit is None or neighbours is None else Scope(unit, neighbours)

    def _total(self, about: Scope | None) -> float:
        """The largest total ε of any node; infinite where a release does not bound this unit and relation."""
        if about is not None and not all(about.bounds(event) for event in self._events):
            return math.inf
        return self._costs.most(self.delta)

    def _fits(self, event: Event, count: int, keys: Keys) -> bool:
        """Whether the total stays within the budget once these nodes pay for so many more releases."""
        return math.isinf(self.budget.epsilon) or self.fits(self._total_with(event, count, keys))

    def _total_with(self, event: Event, count: int, keys: Keys | None = None, jobs: int = 1) -> float:
        """The total once these nodes, or all, have paid for so many more such jobs' releases."""
        about = self._about(event)
        if about is None or not about.bounds(event):
            return math.inf  # before its price is looked for, which can take minutes
        more = price(event, count, self.delta).times(jobs)
        return max(self._total(about), self._costs.most(self.delta, keys, more))

    def _refusal(self, event: Event, count: int, keys: Keys, channel: str) -> str:
        budget, about = self.budget.epsilon, self._about(event)
        total, before = self._total_with(event, count, keys), self._total(about)
        if about is not None and math.isinf(total):
            other = next((each for each in (event, *self._events) if not about.bounds(each)), event)
            said = f"about {other.unit}, {other.neighbours}"
            return (
                f"{channel}: limits.max_epsilon={budget:g} is about {about.unit}, {about.neighbours}, for all that is "
                f"ever released ({self.path}), and this or an earlier release is {said}, which bounds nothing of that; "
                "it was not made; change what the job protects (privacy.unit; of embeddings to publish it is node and "
                "edge), or limits.epsilon_unit to what all releases are about"
            )
        return (
            f"{channel}: the release would take what was ever released of a node from a total ε of {before:.6g} to "
            f"{total:.6g} (δ = {self.delta:g}; all jobs in {self.path}), over "
            f"limits.max_epsilon={budget:.6g}, and was not made; allow a larger total, or add more noise"
        )

    def _add_new_lines(self) -> None:
        """Add up what nodes paid by the lines read since the last time."""
        for entry in self.lines.entries[self._read :]:
            event, keys = entry.event, self.lines.cohort(entry.cohort)
            self._costs.add(keys, price(event, entry.count, self.delta))
            self._events.add(event)
            self._first = self._first or event
            if entry.content:
                self._paid.add((entry.channel, entry.content, entry.cohort))
            self._read += 1


@dataclass(frozen=True)
class Account:
    """What a job pays from: a party's ledger for life, and the keys of all nodes in its data, or ``EVERYBODY``.

    δ, None where every ε is pure, the SHA-256 of the job's settings and its name are for the record.
    """

    lifetime: Lifetime
    keys: Keys
    delta: float | None
    run: str
    job: str

    def charge(
        self, event: Event, channel: str, count: int = 1, *, keys: Keys | None = None, content: str = ""
    ) -> None:
        """Pay as ``Lifetime.charge`` does; all nodes pay where ``keys`` is None."""
        whose = self.keys if keys is None else keys
        self.lifetime.charge(
            event, channel, count, whose, delta=self.delta, run=self.run, job=self.job, content=content
        )

    def has_paid(self, channel: str, content: str) -> bool:
        """Whether all nodes have paid for the draw that ``content`` names, on that channel."""
        return self.lifetime.has_paid(channel, content, self.keys)

    def has_room(self, event: Event, count: int) -> bool:
        """Whether the budget allows so many more releases of all nodes, composed as one training's rounds are."""
        return self.lifetime.has_room(event, count, self.keys)

    def room(self, event: Event) -> int | None:
        """How many more releases of all nodes the budget allows; None without a budget."""
        return self.lifetime.room(event, self.keys)
