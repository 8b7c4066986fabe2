"""The privacy ledger of a run: one party's record of every release that it makes, and the budget that they share.

A release is paid for **before** it is made: its entry is on the disk when ``Ledger.spend`` returns. So whatever is cut
short, the ledger can only count too much: a kill between entry and release counts a release that never was. Deleting
checkpoints does not change what was spent. What the file withstands is said in ``ledger_files``.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError

from veilgraph.core.chain import check_chain, whole_lines
from veilgraph.core.errors import BudgetSpent, ConfigError, RunError
from veilgraph.core.files import locked, os_errors_as, run_errors
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event, Neighbours, Scope, Unit
from veilgraph.privacy.ledger_files import ChainedFile, Line, Payment, now
from veilgraph.privacy.lifetime_ledger import Account

_WAY_OUT: Final = "restore a copy of the file that has every entry, or begin a new run"


class _Header(Line):
    ledger: Literal[1]
    job: str
    delta: float


class RunPayment(Payment):
    """One line: ``step`` of the first of the releases, and the ``total`` ε about the same scope with these; None: ∞."""

    step: Annotated[int, Field(ge=0)]
    total: Annotated[float, Field(ge=0)] | None


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """The releases of one channel, made or reserved: ε of one, the largest where noise differs, and of all together."""

    channel: str
    unit: Unit
    neighbours: Neighbours
    releases: int
    per_release: float
    total: float


class Ledger:
    """The open ledger of one party: safe to use from several threads, and held by one process at a time.

    The budget bounds the total ε of each unit and neighbouring relation by itself, over all channels. It is not in the
    file: a party may go on with another one, and what was spent stays spent.
    """

    def __init__(
        self, file: ChainedFile[_Header, RunPayment], budget: float | None, lifetime: Account | None, held: ExitStack
    ) -> None:
        self.path = file.path
        self.delta = file.header.delta
        self.budget = budget
        self._file: ChainedFile[_Header, RunPayment] | None = file
        self.account, self._held = lifetime, held
        self._lock = threading.RLock()
        self._reserved: Counter[tuple[str, Event]] = Counter()
        self._released: dict[tuple[str, Scope], Counter[Event]] = {}
        self._totals: dict[Scope, float] = {}
        self._paid = {(entry.channel, entry.content) for entry in file.entries if entry.content}
        for entry in file.entries:
            self._count(entry.channel, entry.event, entry.count)

    @classmethod
    def open(
        cls,
        path: Path,
        delta: float,
        budget: float | None,
        *,
        job: str,
        expected: bool = False,
        lifetime: Account | None = None,
    ) -> Self:
        """Open a party's ledger or begin one; keep other processes from its folder until it is closed.

        ``budget`` is the largest total ε; ``job`` the SHA-256 of its settings; ``expected`` whether the file must be
        there. The account ``lifetime`` is asked first. Raises ``RunError``: the file is missing though expected,
        damaged, changed, of another job or δ, in use, or cannot be read or written.
        """
        file = ChainedFile(path, _Header, RunPayment, _WAY_OUT)
        with ExitStack() as held:
            with os_errors_as(
                RunError,
                f"{path}: cannot be read and written",
                "nothing may be released without it. Make it readable and writable",
            ):
                held.enter_context(locked(path.parent, f"{path} is in use by another process; wait for it, or stop it"))
                if not path.exists():
                    if expected:
                        raise RunError(
                            f"{path}: the ledger is gone while the run has checkpoints, so the budget that is left "
                            f"cannot be known; {_WAY_OUT}"
                        )
                    file.begin(_Header(ledger=1, job=job, delta=delta))
                file.read()
            if file.header.job != job:
                raise RunError(
                    f"{path}: the ledger is of job {file.header.job[:12]} and this is job {job[:12]}; every job has a "
                    "ledger of its own: begin a new run"
                )
            if file.header.delta != delta:
                raise RunError(
                    f"{path}: the ledger's δ is {file.header.delta:g} and the job's {delta:g}; begin a new run"
                )
            return cls(file, budget, lifetime, held.pop_all())

    def close(self) -> None:
        """Let go of the file. What was reserved and not used stays counted."""
        with self._lock:
            self._reserved.clear()
            self._file = None
            self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spend(self, event: Event, channel: str, step: int, *, content: str = "", by_rows: bool = False) -> None:
        """Pay for a release, which may be made when this has returned: from what is reserved, else by an entry.

        ``content`` names a draw that is kept: ``has_paid`` knows it from then on. ``by_rows``: the lifetime ledger is
        paid beside this, by the nodes whose rows are new alone.

        Raises:
            BudgetSpent: the budget does not allow the release; nothing was written.
            ConfigError: the event cannot be accounted for.
            RunError: the entry could not be written, now or before.
        """
        with self._lock:
            if self._reserved[channel, event] < 1:
                self._pay(event, channel, step, 1, 1, content, by_rows=by_rows)
            self._reserved[channel, event] -= 1

    def reserve(self, event: Event, channel: str, step: int, count: int) -> int:
        """Pay for several releases with one entry, since every entry waits for the disk; returns how many, at least 1.

        They count from now on, and the next ``spend`` calls with the same event and channel use them up. A run that
        ends early has paid for at most ``count`` - 1 releases too many. Errors are those of ``spend``.
        """
        with self._lock:
            return self._pay(event, channel, step, count, 1)

    def _pay(
        self, event: Event, channel: str, step: int, count: int, least: int, content: str = "", *, by_rows: bool = False
    ) -> int:
        """Pay for ``count`` releases, or as many as the budget has room for, at least ``least``; return how many."""
        most, lifetime = count, None if by_rows else self.account
        if self.budget is not None and self._total_with(event, count) > self.budget:
            most = self._room(event, count - 1)
        if least <= most and least < count and lifetime is not None and (room := lifetime.room(event)) is not None:
            most = max(least, min(most, room))  # none: it says itself why not
        total = self._total_with(event, max(most, least))
        if most < least:
            raise self._refusal(event, channel, step, total)
        if self._file is None:
            raise RunError(f"{self.path}: closed, or a write failed; nothing is released without it: resume the run")
        if lifetime is not None:
            lifetime.charge(event, channel, most, content=content)
        entry = RunPayment(
            time=now(),
            step=step,
            channel=channel,
            event=event,
            count=most,
            total=total if math.isfinite(total) else None,
            content=content,
        )
        try:
            self._file.append(entry)
        except OSError as error:
            self.close()
            raise RunError(
                f"{self.path}: cannot be written ({error}), so nothing was released; make room on the disk and resume"
            ) from error
        if content:
            self._paid.add((channel, content))
        self._count(channel, event, most)
        self._totals[event.scope] = total
        self._reserved[channel, event] += most
        return most

    def has_paid(self, channel: str, content: str) -> bool:
        """Whether a draw, named by ``content``, was paid for on a channel in this run: it may be sent again."""
        with self._lock:
            return (channel, content) in self._paid

    def is_free(self, channel: str, content: str) -> bool:
        """Whether that draw was paid for in this run, or for life in any other of the party's."""
        if self.has_paid(channel, content):
            return True
        return self.account is not None and self.account.has_paid(channel, content)

    def room(self, event: Event, *, by_rows: bool = False) -> int | None:
        """How many more such releases the budget allows, beyond those reserved, up to 2^32; None without a budget."""
        with self._lock:
            own = None if self.budget is None else self._room(event, accountant.MOST_RELEASES)
            lifetime = None if self.account is None or by_rows else self.account.room(event)
            return min((each for each in (own, lifetime) if each is not None), default=None)

    def is_lifetime_spent(self, event: Event, releases: int) -> bool:
        """Whether the lifetime budget, of all runs together, has no room for so many such releases."""
        room = None if self.account is None else self.account.room(event)
        return room is not None and room < releases

    def reserved(self, event: Event, channel: str) -> int:
        """How many such releases are paid for and not used yet."""
        with self._lock:
            return self._reserved[channel, event]

    def releases(self, channel: str) -> int:
        """How many releases of a channel were ever paid for, whatever they are about."""
        with self._lock:
            return sum(events.total() for (name, _), events in self._released.items() if name == channel)

    def totals(self) -> dict[Scope, float]:
        """Total ε over all channels, of each unit and neighbouring relation that has releases."""
        with self._lock:
            return {scope: self._total(scope) for scope in dict.fromkeys(scope for _, scope in self._released)}

    def summary(self) -> list[LedgerSummary]:
        """Per-release and total ε of every channel, in the order of their first releases."""
        with self._lock:
            return [
                LedgerSummary(
                    channel=channel,
                    unit=scope.unit,
                    neighbours=scope.neighbours,
                    releases=events.total(),
                    per_release=max(accountant.per_step(event, self.delta) for event in events),
                    total=accountant.total(events, self.delta),
                )
                for (channel, scope), events in self._released.items()
            ]

    def _count(self, channel: str, event: Event, count: int) -> None:
        self._released.setdefault((channel, event.scope), Counter())[event] += count

    def _total(self, scope: Scope) -> float:
        if scope not in self._totals:
            self._totals[scope] = accountant.total(self._counts(scope), self.delta)
        return self._totals[scope]

    def _counts(self, scope: Scope) -> Counter[Event]:
        return sum((events for (_, of), events in self._released.items() if of == scope), Counter[Event]())

    def _total_with(self, event: Event, more: int) -> float:
        return accountant.total(self._counts(event.scope) + Counter({event: more}), self.delta)

    def _room(self, event: Event, most: int) -> int:
        """How many more such releases, ``most`` at most, the run's own budget allows."""
        budget = math.inf if self.budget is None else self.budget
        before = self._counts(event.scope)
        return accountant.releases_within(event, budget, self.delta, before=before, most=most)

    def _refusal(self, event: Event, channel: str, step: int, total: float) -> BudgetSpent:
        before, about = self._total(event.scope), f"unit {event.unit}, {event.neighbours}"
        return BudgetSpent(
            f"{channel}, step {step}: the release would take the total ε from {before:.6g} to {total:.6g} "
            f"(δ = {self.delta:g}, {about}), over the budget of {self.budget:.6g}, and was not made; allow a larger "
            "total, add more noise or release less often"
        )


def read_payments(path: Path) -> list[RunPayment]:
    """Read the payments in a run's ledger, and leave the file as it is; none where there is no ledger.

    Raises ``RunError``: a line was changed or removed, or is no payment.
    """
    lines = whole_lines(path)
    check_chain(path, lines)
    with run_errors(path, _WAY_OUT), os_errors_as(RunError, f"{path}: not a release", _WAY_OUT, ConfigError):
        return [RunPayment.model_validate_json(line) for line in lines[1:]]


def delta_at(path: Path) -> float | None:
    """Return the δ of the ledger at ``path``; None where none is, or what is there is no ledger."""
    try:
        with path.open("rb") as file:
            return _Header.model_validate_json(file.readline()).delta
    except (OSError, ValidationError):
        return None
