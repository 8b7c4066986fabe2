"""What a holder releases a single time: its bytes are kept, paid for, and only then sent; so they can be sent again.

Noise that is drawn anew for the same data is another release, and averages out over enough of them. Whoever asks again,
because a file was lost or on purpose, is given the same bytes, which say nothing new and cost nothing.

What is paid for is a draw, and not the bytes that came of it: labels have few outcomes, and two draws of them that come
out alike are two releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from veilgraph.privacy.event import Event
from veilgraph.privacy.ledger import Ledger


class SentRelease(Protocol):
    """Where a holder keeps what it has released of its data as they are now."""

    def held(self) -> AbstractContextManager[None]:
        """Keeps other jobs from it, from the look at what is kept to the payment, and shows what they have kept."""

    def get(self, channel: str) -> Tensor | None:
        """What was kept for that channel; None where nothing was, or the data have changed since."""

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
    with kept.held():
        released = kept.get(channel)
        if released is None:
            released = make()
            kept.put(channel, released)
        content = _content(kept, channel, released)
        if ledger is not None and not ledger.has_paid(channel, content):
            ledger.spend(event, channel, 0, content=content)
        return released


def is_paid(kept: SentRelease | None, ledger: Ledger | None, channel: str) -> bool:
    """Whether the release of a channel can be sent again for nothing."""
    if kept is None or ledger is None:
        return False
    with kept.held():
        released = kept.get(channel)
        return released is not None and ledger.is_free(channel, _content(kept, channel, released))


def _content(kept: SentRelease, channel: str, released: Tensor) -> str:
    """What the ledger knows a release by: its draw, or its bytes where it was kept without a name of one."""
    return kept.draw(channel) or fingerprint(released)


def fingerprint(released: Tensor) -> str:
    """SHA-256 of the released values: of what the others are given, and of nothing more."""
    digest = hashlib.sha256(f"{released.dtype}/{tuple(released.shape)}/".encode())
    for part in parts(released):
        digest.update(part.detach().contiguous().numpy().data)
    return digest.hexdigest()


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that a tensor is made of: itself, or the three of sparse_csr."""
    if not tensor.is_sparse_csr:
        return (tensor,)
    return tensor.crow_indices(), tensor.col_indices(), tensor.values()


def digest_of(about: str, data: Sequence[Tensor | None]) -> str:
    """SHA-256 of tensors of any layout, and of what they are about."""
    digest = hashlib.sha256(about.encode())
    for given in data:
        for tensor in (None,) if given is None else parts(given):
            digest.update(b"none" if tensor is None else f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            if tensor is not None:
                digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()
