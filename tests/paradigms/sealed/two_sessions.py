"""What a holder can make of two recorded sessions of one run."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.paradigms.cutting import CutError, cut_at
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import Seen, read_view
from veilgraph.mpc.sealed.dealer import DealerMachine
from veilgraph.mpc.sealed.drawing import Stream
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.run.jobs import resume, train
from veilgraph.run.run_directory import RunDirectory

LOW_BITS = 16
ALL = -1
"""In place of nodes, where openings have the same low bits at all of them."""


def cut_and_resumed(job: SealedJob, run: Path, epoch: int = 3) -> Path:
    """A run that was cut after an epoch and then resumed, with the views of both sessions."""
    with cut_at(epoch), pytest.raises(CutError):
        train(job, run, record_views=True)
    resume(run)
    return run


def sessions(run: Path, party: PartyId) -> list[list[Seen]]:
    """The messages of a party's sessions."""
    paths = RunDirectory.open(run).party(party).views()
    return [read_view(path, number) for number, path in enumerate(paths)]


def opened(messages: list[Seen], holders: int) -> list[Tensor]:
    """What all holders opened together, as the sum of their messages."""
    parts: dict[object, dict[PartyId, Tensor]] = {}
    for seen in messages:
        if seen.tag.kind == Kind.MASKED_WIRE and SERVER not in (seen.sender, seen.receiver):
            parts.setdefault(seen.tag, {})[seen.sender] = seen.tensor()
    whole = [list(found.values()) for found in parts.values() if len(found) == holders]
    return [sum(found[1:], start=found[0]) for found in whole]


def nodes_with_equal_low_bits(run: Path, party: PartyId) -> set[int]:
    """The nodes at which two openings of different sessions, of a row for each node, have the same low bits."""
    directory = RunDirectory.open(run)
    holders = len(directory.settings.data.names)
    before, *later = ([each for each in opened(some, holders) if each.dim() == 2] for some in sessions(run, party))
    return low_bits_in_common(before, [each for some in later for each in some])


def low_bits_in_common(before: list[Tensor], later: list[Tensor]) -> set[int]:
    """The rows in which an opening of one session has the same low bits as one of another; all are int64 [rows, d]."""
    found = set[int]()
    for one in before:
        for other in (each for each in later if each.shape == one.shape and each.shape[1] > 1):
            equal = ((one - other) & ((1 << LOW_BITS) - 1) == 0).all(1)
            found |= {ALL} if bool(equal.all()) else set(torch.nonzero(equal)[:, 0].tolist())
    return found


def repeated_messages(run: Path, party: PartyId) -> int:
    """How many messages of a later session agree with one of an earlier session in the low bits of several words."""
    seen, count = dict[object, int](), 0
    for number, messages in enumerate(sessions(run, party)):
        for each in messages:
            if each.tag.kind in (Kind.MASKED_WIRE, Kind.MASKED_BITS, Kind.MASKED_ROWS, Kind.CORRELATION, Kind.SEED):
                count += seen.setdefault(_fingerprint(each), number) != number
    return count


def _fingerprint(seen: Seen) -> object:
    octets = seen.tensor().contiguous().view(-1).view(torch.uint8).numpy()
    return seen.tag.kind, tuple(seen.shape), np.ascontiguousarray(octets[:16]).tobytes()


def draws_of_the_place(patch: pytest.MonkeyPatch) -> None:
    """The dealer's own draws follow from the place in the program, in every session alike."""

    def at(self: DealerMachine, place: str) -> None:
        self._own = Stream(sha256(place.encode()).digest())

    patch.setattr(DealerMachine, "at", at)
