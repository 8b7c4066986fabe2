"""What a holder can make of two recorded sessions of one run."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.paradigms.cutting import CutError, cut_at
from veilgraph.audit.sealing import low_bits_in_common, opened_sums
from veilgraph.core.types import NOBODY, Kind, PartyId
from veilgraph.link.view import ViewEntry, read_view
from veilgraph.mpc.sealed.correlations import Stream
from veilgraph.mpc.sealed.linked import DealerMachine
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.store.run_directory import RunDirectory

ALL = -1
"""In place of nodes, where openings have the same low bits at all of them."""


def cut_and_resumed(job: SealedJob, run: Path, epoch: int = 3) -> Path:
    """A run that was cut after an epoch and then resumed, with the views of both sessions."""
    with cut_at(epoch), pytest.raises(CutError):
        train(job, run, record_views=True)
    resume(run)
    return run


def sessions(run: Path, party: PartyId) -> list[list[ViewEntry]]:
    """The messages of a party's sessions."""
    paths = RunDirectory.open(run).party(party).views()
    return [read_view(path, number) for number, path in enumerate(paths)]


def nodes_with_equal_low_bits(run: Path, party: PartyId) -> set[int]:
    """The nodes at which two openings of different sessions, of a row for each node, have the same low bits."""
    directory = RunDirectory.open(run)
    holders = len(sealed(directory.settings).computing)
    before, *later = ([each for each in opened_sums(some, holders) if each.dim() == 2] for some in sessions(run, party))
    return low_bits_in_common(before, [each for some in later for each in some])


def repeated_messages(run: Path, party: PartyId) -> int:
    """How many messages of a later session agree with one of an earlier session in the low bits of several words."""
    seen, count = dict[object, int](), 0
    for number, messages in enumerate(sessions(run, party)):
        for each in messages:
            if each.tag.kind in (Kind.MASKED_WIRE, Kind.MASKED_BITS, Kind.MASKED_ROWS, Kind.CORRELATION, Kind.SEED):
                count += seen.setdefault(_fingerprint(each), number) != number
    return count


def _fingerprint(seen: ViewEntry) -> object:
    octets = seen.tensor().contiguous().view(-1).view(torch.uint8).numpy()
    return seen.tag.kind, tuple(seen.shape), np.ascontiguousarray(octets[:16]).tobytes()


def draws_of_the_place(patch: pytest.MonkeyPatch) -> None:
    """The dealer's own draws follow from the place in the program, in every session alike."""

    def at(self: DealerMachine, place: str) -> None:
        self.dealing.streams[NOBODY] = Stream(sha256(place.encode()).digest())

    patch.setattr(DealerMachine, "at", at)
