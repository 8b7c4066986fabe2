"""What a holder releases a single time: its bytes are kept, paid for, and only then sent; so they can be sent again.

Noise that is drawn anew for the same data is another release, and averages out over enough of them. Whoever asks again,
because a file was lost or on purpose, is given the same bytes, which say nothing new and cost nothing.

What is paid for is a draw, and not the bytes that came of it: a label has few outcomes, and two draws that come out
alike are two releases. The ledger's entry names the draw that it is for, so that a kill at any point leaves nothing
sent that is not paid for, and nothing paid for twice.

A ``ReleaseCache`` keeps nothing, ``RunCache`` what a run released, and ``LifetimeCache``, where the holder has a ledger
for life, what any of its jobs did.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict, override

from veilgraph.core.errors import BudgetSpent, RunError
from veilgraph.core.files import adapter_of, locked, private_folder, run_errors, sync_folder
from veilgraph.core.secrets import random_name
from veilgraph.core.tensor_file import Keeper, load_tensors, save_tensors
from veilgraph.graph.features import choose_rows
from veilgraph.privacy.event import Event, to_json
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.ledger_files import now
from veilgraph.privacy.lifetime_costs import Keys, places_among
from veilgraph.privacy.lifetime_ledger import Account

FOLDER: Final = "released"
OWN_RELEASE: Final = "own_release"
_DIGEST_BYTES: Final = 16

log = logging.getLogger("veilgraph")


@dataclass(frozen=True)
class Release:
    """What is released a single time: a channel, an event, and all that it depends on beside the rows. All public."""

    channel: str
    event: Event
    mechanism: str


class ReleaseCache:
    """Keeps nothing, as a plaintext simulation: every release is new, and is paid for where there is a ledger."""

    is_kept: ClassVar[bool] = False
    """Whether what was released is sent again."""

    def __init__(self, ledger: Ledger | None) -> None:
        self._ledger = ledger

    def release(self, of: Release, rows: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the released rows, drawn and paid for where they were not before.

        ``rows`` are Tensor[C, ...] before noise, sparse_csr as well; ``make`` releases some of them anew. Raises
        ``BudgetSpent``: nothing may be sent; ``RunError``: it could not be kept or paid for.
        """
        if self._ledger is not None:
            self._ledger.spend(of.event, of.channel, 0)
        return make(rows)

    def is_free(self, of: Release) -> bool:
        """Whether ``release`` costs nothing: all of it was paid for before."""
        return False

    def room(self, of: Release) -> int | None:
        """How many more such releases the budgets allow; None without a budget."""
        return None if self._ledger is None else self._ledger.room(of.event)


class RunCache(ReleaseCache):
    """Keeps a run's releases by channel, and sends them again for the same nodes and order, named by ``depends``.

    Their data do not matter. Raises ``RunError`` where what is kept is damaged.
    """

    is_kept = True

    def __init__(self, ledger: Ledger | None, keeper: Keeper, depends: str) -> None:
        super().__init__(ledger)
        self._keeper, self._depends_on = keeper, depends
        self._tensors: dict[str, Tensor] = {}
        self._draws: dict[str, str] = {}
        if (kept := keeper.get(OWN_RELEASE)) is None:
            return
        with run_errors(keeper.place(OWN_RELEASE), "restore it, or delete it, and the holder releases anew and pays"):
            if kept.facts["depends_on"] == depends:
                self._tensors = dict(kept.tensors)
                draws = adapter_of(dict[str, str]).validate_python(kept.facts["draws"])
                self._draws = {channel: draws[channel] for channel in self._tensors}

    @override
    def release(self, of: Release, rows: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the channel's rows: made and saved the first time, sent again later, and paid for once."""
        if of.channel not in self._tensors:
            self._tensors[of.channel] = make(rows)
            self._draws[of.channel] = random_name()
            self._keeper.put(OWN_RELEASE, self._tensors, {"depends_on": self._depends_on, "draws": self._draws})
        draw = self._draws[of.channel]
        if self._ledger is not None and not self._ledger.has_paid(of.channel, draw):
            self._ledger.spend(of.event, of.channel, 0, content=draw)
        return self._tensors[of.channel]

    @override
    def is_free(self, of: Release) -> bool:
        draw = self._draws.get(of.channel)
        return draw is not None and self._ledger is not None and self._ledger.has_paid(of.channel, draw)


class _Batch(TypedDict):
    """One draw: ``content`` and ``cohort`` of the ledger's entry, and its ``time``."""

    content: str
    cohort: str
    time: str


@dataclass
class _Kept:
    """One release's rows, sorted by the keys of their nodes.

    ``tensors`` are ``keys``, int64 of the same bits as ``Keys``; ``digests``, uint8 [n, 16], of the rows before noise,
    for the owner's log alone; ``rows``; and ``batch``, int64 [n], the index of each row's draw in ``batches``.
    """

    tensors: dict[str, Tensor]
    batches: list[_Batch]

    @property
    def keys(self) -> Keys:
        """The nodes' keys, as uint64."""
        return self.tensors["keys"].numpy().view(np.uint64)

    def draws(self, places: NDArray[np.int64]) -> list[_Batch]:
        """Each draw that rows at these places came of."""
        return [self.batches[number] for number in np.unique(self.tensors["batch"].numpy()[places])]


@contextmanager
def locked_releases(account: Account) -> Iterator[None]:
    """Lock all kept releases of an account's ledger, from the look at them to the payment: else two jobs draw twice.

    Raises ``RunError``: the folder cannot be read, written or locked; nothing may be sent.
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


class LifetimeCache(ReleaseCache):
    """Keeps what a holder ever released, by node: every later job of the same release sends the same bytes again.

    A release is a *snapshot*. What differs between two jobs must not depend on whether a record changed: a row that is
    drawn anew because its record changed names that record. So the following alone decides what is sent again and what
    is drawn: the release's name (channel, mechanism, settings) and the ids of the nodes, both public. Values never do.
    A node that enters is drawn when it enters, and pays from then on. Where a row depends on other nodes' data, one
    node that enters has all rows drawn anew, and every node of the table pays. A new snapshot is a release of another
    name.

    The ledger for life then bounds what all jobs together reveal between two *histories*: all values that one record,
    edge or label ever had, against any others, with the same nodes in every job.

    Of two jobs that make the same release at one moment the second waits, and sends what the first one drew. ``each``
    is the key of the node of every row; ``whole``: rows depend on other nodes' data, and are drawn together;
    ``by_place``: ``each`` are places and name no node, so that another number of rows is another release.
    """

    is_kept = True

    def __init__(
        self,
        account: Account,
        each: Keys,
        ledger: Ledger | None = None,
        *,
        snapshot: str = "",
        whole: bool = False,
        by_place: bool = False,
    ) -> None:
        super().__init__(ledger)
        self._account, self._each, self._snapshot = account, each, snapshot
        self._whole, self._by_place = whole or by_place, by_place
        self._folder = account.lifetime.lines.folder / FOLDER
        self._secret = account.lifetime.secret("rows")

    @override
    def release(self, of: Release, rows: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the rows saved for these nodes; rows of new nodes are made, saved and paid for first."""
        path, digests = self._path(of), self._row_digests(rows)
        with locked_releases(self._account):
            before = kept = self._load(path)
            places, known = self._known(kept)
            self._log_stale(of.channel, kept, places[known], digests[known])
            if not known.all():
                new = np.flatnonzero(~known)
                kept = self._with(kept, new, digests[new], make(choose_rows(rows, torch.from_numpy(new))))
                self._save(path, kept)
                places, _ = self._known(kept)
            try:
                self._pay(of, kept.draws(places))
            except BudgetSpent:
                self._save(path, before)  # what was paid for is not lost for a draw that is not
                raise
            return kept.tensors["rows"][torch.from_numpy(places)]

    def _pay(self, of: Release, draws: list[_Batch]) -> None:
        """Pay for a release: from the run's ledger once for all its draws; for life, each draw by its own nodes."""
        content = hashlib.sha256("".join(sorted(draw["content"] for draw in draws)).encode()).hexdigest()
        if self._ledger is not None and not self._ledger.has_paid(of.channel, content):
            self._ledger.spend(of.event, of.channel, 0, content=content, by_rows=True)
        for draw in draws:
            keys = self._account.lifetime.lines.cohort(draw["cohort"])
            self._account.charge(of.event, of.channel, keys=keys, content=draw["content"])

    @override
    def is_free(self, of: Release) -> bool:
        return self._owing(of) is None

    @override
    def room(self, of: Release) -> int | None:
        owing = self._owing(of)
        if owing is not None and self._account.lifetime.room(of.event, owing, 1) == 0:
            return 0
        return None if self._ledger is None else self._ledger.room(of.event, by_rows=True)

    def _owing(self, of: Release) -> Keys | None:
        """Return the nodes that would pay for a release now; None where it is sent again for nothing."""
        with locked_releases(self._account):
            kept = self._load(self._path(of))
        places, known = self._known(kept)
        lifetime = self._account.lifetime
        owing = [] if known.all() else [self._payers(np.flatnonzero(~known))]
        for draw in kept.draws(places[known]):
            keys = lifetime.lines.cohort(draw["cohort"])
            if not lifetime.has_paid(of.channel, draw["content"], keys):
                owing.append(keys)
        return np.unique(np.concatenate(owing)) if owing else None

    def _known(self, kept: _Kept) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return rows' places among kept nodes, and which are sent again, by ids; all or none if releases are whole."""
        places, known = places_among(kept.keys, self._each)
        if self._whole and (not known.all() or (self._by_place and len(kept.keys) != len(known))):
            known[:] = False
        return places, known

    def _payers(self, new: NDArray[np.int64]) -> Keys:
        return self._account.keys if self._whole else np.unique(self._each[new])

    def _with(self, kept: _Kept, new: NDArray[np.int64], digests: NDArray[np.uint8], made: Tensor) -> _Kept:
        """Add rows drawn now, as one draw; they replace all earlier rows where rows are drawn together."""
        cohort = self._account.lifetime.lines.keep_cohort(self._payers(new))
        batch = _Batch(content=random_name(), cohort=cohort, time=now())
        keys, first = np.unique(self._each[new], return_index=True)
        before = [] if self._whole else kept.batches
        tensors = {
            "keys": torch.from_numpy(keys.view(np.int64)),
            "digests": torch.from_numpy(digests[first]),
            "rows": made[torch.from_numpy(first)],
            "batch": torch.full((len(keys),), len(before)),
        }
        if before:
            tensors = {name: torch.cat([kept.tensors[name], part]) for name, part in tensors.items()}
            order = torch.from_numpy(np.argsort(tensors["keys"].numpy().view(np.uint64), kind="stable"))
            tensors = {name: part[order] for name, part in tensors.items()}
        return _Kept(tensors, [*before, batch])

    def _log_stale(self, channel: str, kept: _Kept, places: NDArray[np.int64], digests: NDArray[np.uint8]) -> None:
        """Tell the owner, and nobody else, that records have changed since they were released."""
        stale = (kept.tensors["digests"].numpy()[places] != digests).any(axis=1)
        if not stale.any():
            return
        drawn = min(draw["time"] for draw in kept.draws(places[stale]))
        log.warning(
            "%s: %s: of %d nodes the data have changed since they were released (%s), and this job sends what was "
            "released; another `snapshot` in the job releases all of them anew, for which every node pays%s",
            self._account.lifetime.lines.header.party,
            channel,
            int(stale.sum()),
            drawn,
            "; without ids they may be other nodes, so give them ids" if self._by_place else "",
        )

    def _row_digests(self, rows: Tensor) -> NDArray[np.uint8]:
        """Hash every row before noise under a secret key: uint8 [n, 16]."""
        found = b"".join(
            hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=self._secret).digest()
            for content in _row_contents(rows)
        )
        return np.frombuffer(found, np.uint8).reshape(len(rows), _DIGEST_BYTES)

    def _path(self, of: Release) -> Path:
        parts = [*(["whole"] if self._whole else []), *([self._snapshot] if self._snapshot else [])]
        about = json.dumps([of.channel, to_json(of.event), of.mechanism, *parts])
        return self._folder / f"{hashlib.sha256(about.encode()).hexdigest()}.safetensors"

    def _load(self, path: Path) -> _Kept:
        if not path.is_file():
            keys, digests = torch.empty(0, dtype=torch.int64), torch.empty(0, _DIGEST_BYTES, dtype=torch.uint8)
            return _Kept({"keys": keys, "digests": digests, "rows": torch.empty(0, 0), "batch": keys}, [])
        tensors, facts = load_tensors(path)
        with run_errors(path, "restore it, or delete it, and the holder releases anew and pays"):
            kept = {name: tensors[name] for name in ("keys", "digests", "rows", "batch")}
            return _Kept(kept, adapter_of(list[_Batch]).validate_python(facts["batches"]))

    def _save(self, path: Path, kept: _Kept) -> None:
        private_folder(self._folder)
        save_tensors(path, kept.tensors, {"batches": kept.batches})
        sync_folder(self._folder)


def fingerprint(released: Tensor) -> str:
    """SHA-256 of released values with their dtype and shape, hexadecimal: of nothing but what others are given."""
    digest = hashlib.sha256(f"{released.dtype}/{tuple(released.shape)}/".encode())
    digest.update(released.detach().contiguous().numpy().data)
    return digest.hexdigest()


def parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The strided tensors that a tensor is made of: itself, or the three of sparse_csr."""
    if not tensor.is_sparse_csr:
        return (tensor,)
    return tensor.crow_indices(), tensor.col_indices(), tensor.values()


def _row_contents(rows: Tensor) -> Iterable[bytes]:
    if not rows.is_sparse_csr:
        return (row.tobytes() for row in rows.detach().contiguous().numpy())
    ends, columns, values = (part.numpy() for part in (rows.crow_indices(), rows.col_indices(), rows.values()))
    between = itertools.pairwise(ends)
    return (columns[first:last].tobytes() + values[first:last].tobytes() for first, last in between)
