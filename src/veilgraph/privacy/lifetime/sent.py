"""What a party ever released and may send again: the same bytes for a row that is the same, whichever job asks.

A row is the same where its node is, by its id, and every bit of it before the noise, with the same mechanism. So what
was released is neither drawn anew, which would average out, nor paid for twice, and where some rows have changed those
alone are noised and paid for, by the nodes whose data they depend on. A draw is paid for, and not the bytes that came
of it: a label has few outcomes, and two draws that come out alike are two releases. **Which rows have changed shows**:
the others are byte for byte what they were. Of data without ids a row's place is no node's name: all rows are sent
again where all are the same, and else all are released anew.

Of two jobs that would release the same at one moment the second waits, and sends what the first one did.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.files import locked, private_folder, sync_folder
from veilgraph.core.secrets import new_name
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.privacy.event import Event, to_json
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.lifetime.costs import Keys

FOLDER: Final = "released"
_DIGEST_BYTES: Final = 16
Payers = Callable[[Tensor], Keys]
"""Tensor[c] int64, rows that are new → keys of the nodes whose data they depend on."""


@dataclass
class _Kept:
    """Rows that were released with one mechanism.

    Attributes:
        keys: uint64[n], of their nodes, sorted.
        digests: uint8[n, 16], of the rows before noise.
        rows: Tensor[n, d], as they were released.
        batch: int64[n], with which of ``batches`` each was.
        batches: what was drawn together: ``content`` and ``cohort`` of its entry, the first a name of the draw.
        of: what tells the data of the newest release.
    """

    keys: Keys
    digests: NDArray[np.uint8]
    rows: Tensor
    batch: NDArray[np.int64]
    batches: list[dict[str, str]] = field(default_factory=list)
    of: str = ""


@contextmanager
def releasing(account: Account) -> Iterator[None]:
    """Holds all that an account's ledger ever released, from the look at what is kept to the payment.

    Else two jobs at one moment would draw twice, keep the later draw and pay for the earlier.

    Raises:
        RunError: it cannot be read, written or held; nothing may be sent.
    """
    folder = account.lifetime.lines.folder / FOLDER
    try:
        with locked(private_folder(folder), f"{folder} is in use", wait_s=math.inf):
            yield
    except OSError as error:
        raise RunError(
            f"{folder}: cannot be read and written ({error}), and nothing is released that cannot be sent again; make "
            "it readable and writable, with room on its disk"
        ) from error


class SentRows:
    """One holder's, in one job.

    Args:
        account: what it pays from.
        each: key of the node of every row that is released, in the job's order.
        payers: whose data new rows depend on.
        of: what tells the holder's data as they are now from all others.
        whole: all rows are made anew where one has changed: everybody pays in any case, and which have changed would
            show at which nodes an edge did.
        by_place: ``each`` are places and no nodes' names, so that other numbers of rows are other data.

    Raises:
        RunError: what was kept is damaged.
    """

    def __init__(
        self,
        account: Account,
        each: Keys,
        payers: Payers,
        of: str,
        *,
        whole: bool = False,
        by_place: bool = False,
    ) -> None:
        self._account, self._each, self._payers, self._of = account, each, payers, of
        self._whole, self._by_place = whole or by_place, by_place
        self._folder = account.lifetime.lines.folder / FOLDER
        self._secret = account.lifetime.secret("rows")

    def release(
        self,
        channel: str,
        rows: Tensor,
        event: Event,
        mechanism: str,
        make: Callable[[Tensor], Tensor],
        pay: Callable[[str], None],
    ) -> Tensor:
        """Rows as they were released, or as they are now, kept and paid for.

        A kill at any point leaves nothing sent that is not paid for, and nothing paid for twice.

        Args:
            channel: what is released to whom.
            rows: Tensor[C, d] before clipping and noise.
            event: of one release.
            mechanism: all that ``make`` depends on beside its rows.
            make: Tensor[c, d] → Tensor[c, d], released anew, every row by itself.
            pay: from the ledger of the run, for all rows, by a name of the draws that they came of; before the lifetime
                ledger is asked.

        Returns:
            Tensor[C, d].

        Raises:
            BudgetSpent: a budget does not allow it; nothing may be sent.
            RunError: it could not be kept or paid for.
        """
        path, digests = self._path(channel, event, mechanism), self._digests(rows)
        with releasing(self._account):
            kept = self._load(path)
            if kept.rows.shape[1] != rows.shape[1]:
                kept = _nothing(rows.shape[1])
            places, same = self._known(kept, digests)
            if not same.all():
                new = np.flatnonzero(~same)
                made = make(rows[torch.from_numpy(new)])
                kept = self._with(kept, new, digests[new], made)
            if kept.of != self._of or not same.all():
                kept.of = self._of
                self._save(path, kept)
                places, _ = self._known(kept, digests)
            released = kept.rows[torch.from_numpy(places)]
            used = [kept.batches[number] for number in np.unique(kept.batch[places])]
            pay(hashlib.sha256("".join(sorted(batch["content"] for batch in used)).encode()).hexdigest())
            for batch in used:
                keys = self._account.lifetime.lines.cohort(batch["cohort"])
                self._account.charge(event, channel, keys=keys, content=batch["content"])
            return released

    def holds(self, channel: str, event: Event, mechanism: str) -> bool:
        """Whether the data as they are now were released and paid for: they are sent again for nothing."""
        with releasing(self._account):
            kept = self._load(self._path(channel, event, mechanism))
        if kept.of != self._of:
            return False
        lifetime = self._account.lifetime
        used = [kept.batches[number] for number in np.unique(kept.batch[np.isin(kept.keys, self._each)])]
        return all(lifetime.has_paid(channel, one["content"], lifetime.lines.cohort(one["cohort"])) for one in used)

    def fits(self, channel: str, rows: Tensor, event: Event, mechanism: str) -> bool:
        """Whether the budget of all jobs has room for ``release`` of these rows, made anew where they must be."""
        with releasing(self._account):
            kept = self._load(self._path(channel, event, mechanism))
        if kept.rows.shape[1] != rows.shape[1]:
            kept = _nothing(rows.shape[1])
        places, same = self._known(kept, self._digests(rows))
        lifetime = self._account.lifetime
        owing = [] if same.all() else [self._payers(torch.from_numpy(np.flatnonzero(~same)))]
        for number in np.unique(kept.batch[places[same]]):
            keys = lifetime.lines.cohort(kept.batches[number]["cohort"])
            if not lifetime.has_paid(channel, kept.batches[number]["content"], keys):
                owing.append(keys)
        return not owing or lifetime.room(event, np.unique(np.concatenate(owing)), 1) != 0

    def _known(self, kept: _Kept, digests: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where each row's node is among those kept, and whether the row is sent again as it was."""
        places = np.searchsorted(kept.keys, self._each)
        same = places < len(kept.keys)
        found = places[same]
        same[same] = (kept.keys[found] == self._each[same]) & (kept.digests[found] == digests[same]).all(axis=1)
        if self._by_place and len(kept.keys) != len(same):
            same[:] = False
        return places, same & (same.all() or not self._whole)

    def _with(self, kept: _Kept, new: NDArray[np.int64], digests: NDArray[np.uint8], made: Tensor) -> _Kept:
        """With rows that were made now in the place of those nodes' earlier ones."""
        keys, first = np.unique(self._each[new], return_index=True)
        cohort = self._account.lifetime.lines.keep_cohort(self._payers(torch.from_numpy(new)))
        stays = ~np.isin(kept.keys, keys) & (not self._whole)
        all_keys = np.concatenate([kept.keys[stays], keys])
        order = np.argsort(all_keys, kind="stable")
        batch = np.concatenate([kept.batch[stays], np.full(len(keys), len(kept.batches))])[order]
        used, batch = np.unique(batch, return_inverse=True)
        batches = [*kept.batches, {"content": new_name(), "cohort": cohort}]
        return _Kept(
            all_keys[order],
            np.concatenate([kept.digests[stays], digests[first]])[order],
            torch.cat([kept.rows[torch.from_numpy(stays)], made[torch.from_numpy(first)]])[torch.from_numpy(order)],
            batch,
            [batches[number] for number in used],
        )

    def _digests(self, rows: Tensor) -> NDArray[np.uint8]:
        content = rows.detach().contiguous().numpy()
        found = b"".join(
            hashlib.blake2b(row.tobytes(), digest_size=_DIGEST_BYTES, key=self._secret).digest() for row in content
        )
        return np.frombuffer(found, np.uint8).reshape(len(content), _DIGEST_BYTES)

    def _path(self, channel: str, event: Event, mechanism: str) -> Path:
        about = json.dumps([channel, to_json(event), mechanism, *(["whole"] if self._whole else [])])
        return self._folder / f"{hashlib.sha256(about.encode()).hexdigest()}.safetensors"

    def _load(self, path: Path) -> _Kept:
        if not path.is_file():
            return _nothing(0)
        tensors, facts = load_tensors(path)
        try:
            return _Kept(
                tensors["keys"].numpy().view(np.uint64),
                tensors["digests"].numpy(),
                tensors["rows"],
                tensors["batch"].numpy(),
                _batches(facts),
                str(facts["of"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{path}: damaged ({error}); restore it, or delete it, and the holder releases anew and pays"
            ) from error

    def _save(self, path: Path, kept: _Kept) -> None:
        private_folder(self._folder)
        tensors = {
            "keys": torch.from_numpy(kept.keys.view(np.int64).copy()),
            "digests": torch.from_numpy(kept.digests.copy()),
            "rows": kept.rows,
            "batch": torch.from_numpy(kept.batch.copy()),
        }
        save_tensors(path, tensors, {"batches": kept.batches, "of": kept.of})
        sync_folder(self._folder)


def _nothing(columns: int) -> _Kept:
    empty = np.empty(0, np.int64)
    digests = np.empty((0, _DIGEST_BYTES), np.uint8)
    return _Kept(empty.astype(np.uint64), digests, torch.empty(0, columns, dtype=torch.float64), empty)


def _batches(facts: dict[str, Any]) -> list[dict[str, str]]:
    return [{"content": str(each["content"]), "cohort": str(each["cohort"])} for each in facts["batches"]]
