"""What a holder releases a single time: its bytes are kept, paid for, and only then sent; so they can be sent again.

Noise that is drawn anew for the same data is another release, and averages out over enough of them. Whoever asks again,
because a file was lost or on purpose, is given the same bytes, which say nothing new and cost nothing.

What is paid for is a draw, and not the bytes that came of it: labels have few outcomes, and two draws of them that come
out alike are two releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from veilgraph.privacy.event import Event
from veilgraph.privacy.ledger import Ledger

if TYPE_CHECKING:
    from veilgraph.privacy.lifetime.sent import SentRows


class SentRelease(Protocol):
    """Where a holder keeps what a run released, whatever its data have become since."""

    def get(self, channel: str) -> Tensor | None:
        """What was kept for that channel; None where nothing was, or it is of other nodes."""

    def put(self, channel: str, released: Tensor) -> None:
        """Keeps it, with the name of a new draw: it is on the disk when this returns."""

    def draw(self, channel: str) -> str:
        """The name of the draw that what is kept for that channel came of; empty where it was kept without one."""


def release_once(
    kept: SentRelease | None, ledger: Ledger | None, event: Event, channel: str, make: Callable[[], Tensor]
) -> Tensor:
    """The release of a channel, made and paid for unless it was before.

    A kill at any point leaves nothing sent that is not paid for, and nothing paid for twice: the ledger's entry names
    the draw that it is for.

    Args:
        kept: of the holder; None where nothing is kept, as in a plaintext simulation.
        ledger: of the holder; None as well.
        event: mechanism and noise of the release, and what it protects.
        channel: what is released to whom.
        make: makes a new release.

    Raises:
        BudgetSpent: the budget does not allow a new release; nothing may be sent.
        RunError: it could not be kept, or the entry not be written.
    """
    if kept is None:
        if ledger is not None:
            ledger.spend(event, channel, 0)
        return make()
    released = kept.get(channel)
    if released is None:
        released = make()
        kept.put(channel, released)
    content = _content(kept, channel, released)
    if ledger is not None and not ledger.has_paid(channel, content):
        ledger.spend(event, channel, 0, content=content)
    return released


def release_rows(
    sent: SentRows | None,
    kept: SentRelease | None,
    ledger: Ledger | None,
    channel: str,
    rows: Tensor,
    event: Event,
    mechanism: str,
    make: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return what ``make`` released of the rows, by ``SentRows.release`` or, without a ledger for life, once in a run.

    Args:
        sent: of all the holder's jobs, where it has a ledger for life.
        kept: of the run, where it has none.
        ledger: of the run.
        channel: as of ``SentRows.release``, and so what follows.
        rows: before the release.
        event: of the release.
        mechanism: of the release.
        make: makes a new release of rows.

    Raises:
        BudgetSpent: a budget does not allow a new release; nothing may be sent.
        RunError: it could not be kept, or the entry not be written.
    """
    if sent is None:
        return release_once(kept, ledger, event, channel, lambda: make(rows))

    def pay(content: str) -> None:
        if ledger is not None and not ledger.has_paid(channel, content):
            ledger.spend(event, channel, 0, content=content, by_rows=True)

    return sent.release(channel, rows, event, mechanism, make, pay)


def is_sent_again(
    sent: SentRows | None, kept: SentRelease | None, ledger: Ledger | None, channel: str, event: Event, mechanism: str
) -> bool:
    """Return whether ``release_rows`` costs nothing: all of it was paid for before."""
    if sent is not None:
        return sent.owing(channel, event, mechanism) is None
    released = None if kept is None else kept.get(channel)
    if kept is None or ledger is None or released is None:
        return False
    return ledger.has_paid(channel, _content(kept, channel, released))


def room_for(sent: SentRows | None, ledger: Ledger, channel: str, event: Event, mechanism: str) -> int | None:
    """Return how many more such releases the budgets allow; None without a budget."""
    if sent is None:
        return ledger.room(event)
    return ledger.room(event, by_rows=True) if sent.fits(channel, event, mechanism) else 0


def _content(kept: SentRelease, channel: str, released: Tensor) -> str:
    """What the ledger knows a release by: its draw, or its bytes where it was kept without a name of one."""
    return kept.draw(channel) or fingerprint(released)


def fingerprint(released: Tensor) -> str:
    """SHA-256 of the released values: of what the others are given, and of nothing more."""
    digest = hashlib.sha256(f"{released.dtype}/{tuple(released.shape)}/".encode())
    digest.update(released.detach().contiguous().numpy().data)
    return digest.hexdigest()


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that a tensor is made of: itself, or the three of sparse_csr."""
    if not tensor.is_sparse_csr:
        return (tensor,)
    return tensor.crow_indices(), tensor.col_indices(), tensor.values()
