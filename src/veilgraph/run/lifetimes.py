"""A party's lifetime ledger in its jobs: who pays for what, and what is sent again.

Whose data come from files, or who names one, has one (``ledger_places``). A node with an id is the same in every job.
Nodes of a graph without ids are nobody's in particular: everybody pays for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, private_folder
from veilgraph.core.keeper import FolderKeeper
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.privacy.canaries import Canaries
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.lifetime.costs import EVERYBODY, Keys
from veilgraph.privacy.lifetime.ledger import Budget, Lifetime
from veilgraph.privacy.lifetime.marks import Marks
from veilgraph.privacy.lifetime.sent import FOLDER, SentRows
from veilgraph.privacy.plan import Plan
from veilgraph.protocol.inputs import LedgerPlace
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.run.ledger_places import LIMITS_FILE, limits_in

_MARKS: Final = Path("veilgraph") / "ledgers"
_TRAINING: Final = "training"
_BUSY: Final = (
    "another training pays from the same ledger for life in every step, and both might end without a model where "
    "limits.max_epsilon is spent: go on with this one (resume) when that has ended"
)


@dataclass(frozen=True)
class Lasting:
    """What a party has beyond a run.

    Attributes:
        ledger: of all its jobs.
        ids: of all rows of its graph; None where nobody told its nodes apart.
    """

    ledger: Lifetime
    ids: Sequence[str] | None

    def each_key(self, nodes: int) -> Keys:
        """What each row goes by: its node's key, or its place; of so many."""
        return np.arange(nodes, dtype=np.uint64) if self.ids is None else self.ledger.each_key(self.ids)

    def account(self, settings: JobSettings, delta: float | None) -> Account:
        """What a job pays from.

        Args:
            settings: the job.
            delta: of the job's ε; None where each is pure.

        Raises:
            RunError: another ledger is about the same people.
        """
        keys = EVERYBODY
        if self.ids is not None:
            self.ledger.lines.check_people(self.ids)
            keys = self.ledger.keys(self.ids)
        return Account(self.ledger, keys, delta, settings.hash(), settings.name)


@contextmanager
def training_alone(lasting: Lasting | None, settings: JobSettings) -> Iterator[str]:
    """Holds the ledger for a training that pays in every step, under a limit; else two would spend it between them.

    Gives why the party refuses the job: another training holds it. Empty where none does, and where none has to.
    """
    privacy = settings.privacy
    with ExitStack() as held:
        busy = ""
        if lasting is not None and math.isfinite(lasting.ledger.budget.epsilon) and privacy and not privacy.once:
            try:
                held.enter_context(locked(private_folder(lasting.ledger.lines.folder / _TRAINING), _BUSY))
            except RunError as error:
                busy = str(error)
        yield busy


def default_marks() -> Path:
    """Where this account keeps what it has seen of ledgers: in XDG_STATE_HOME, or ~/.local/state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / _MARKS


def lifetime_of(organisation: Organisation, marks: Path | None = None) -> Lifetime:
    """The ledger of all that an organisation ever released.

    Args:
        organisation: with its party file.
        marks: folder of what was seen of it; None: this account's.

    Raises:
        RunError: it is damaged, older than it was, gone, another party's, or cannot be read or written.
    """
    settings = organisation.settings
    folder = organisation.folder / settings.ledger
    budget = both(budget_of(settings.limits), limits_in(folder))
    return Lifetime(folder, settings.party, budget, Marks(marks or default_marks()))


def lifetime_at(place: LedgerPlace, marks: Path | None = None) -> Lifetime:
    """The ledger of all that a holder without a party file ever released; ``marks`` and errors as ``lifetime_of``."""
    budget = both(Budget(), limits_in(place.folder) or place.limits)
    return Lifetime(place.folder, place.party, budget, Marks(marks or default_marks()))


def both(budget: Budget, limits: LimitSettings | None) -> Budget:
    """A party's budget within the limits that the ledger's folder says.

    Raises:
        ConfigError: they are about different things.
    """
    if limits is None:
        return budget
    other = budget_of(limits)
    for key, one, two in (
        ("epsilon_unit", budget.unit, other.unit),
        ("epsilon_neighbours", budget.neighbours, other.neighbours),
    ):
        if one is not None and two is not None and one != two:
            raise ConfigError(
                f"limits.{key}={one} and {LIMITS_FILE} in the ledger's folder says {two}; a total is about one thing, "
                "so change one of them",
                key=f"limits.{key}",
                value=one,
            )
    return Budget(
        min(budget.epsilon, other.epsilon),
        min(budget.delta, other.delta),
        budget.unit or other.unit,
        budget.neighbours or other.neighbours,
    )


def budget_of(limits: LimitSettings) -> Budget:
    """What a party's limits let all releases together come to."""
    return Budget(
        float("inf") if limits.max_epsilon is None else limits.max_epsilon,
        limits.max_delta,
        limits.epsilon_unit,
        limits.epsilon_neighbours,
    )


def snapshot_of(settings: JobSettings, canaries: Canaries | None, *follows: object) -> str:
    """Return the name of a release: its snapshot, its canaries, and the settings that released values follow from.

    All are public, or drawn for the run. Of a release with canaries no other run is sent anything, nor the reverse.
    """
    named = [settings.snapshot, "" if canaries is None else canaries.key.hex(), *map(repr, follows)]
    return json.dumps(named) if any(named) else ""


def sent_rows(
    account: Account,
    settings: JobSettings,
    plan: Plan,
    lasting: Lasting,
    each: Keys,
    canaries: Canaries | None,
    classes: int | None = None,
) -> SentRows:
    """Return what a holder ever released of rows, or of sums over neighbours (``privacy.schedule: once``)."""
    privacy = plan.settings
    bounds = (privacy.unit, privacy.degree_bound, privacy.aggregation, privacy.sum_clip, plan.own_length)
    named = snapshot_of(settings, canaries, settings.data.feature_scaling, settings.released_network, classes, *bounds)
    return SentRows(account, each, snapshot=named, whole=privacy.unit != "row", by_place=lasting.ids is None)


def sent_values(
    account: Account, settings: JobSettings, lasting: Lasting, each: Keys, canaries: Canaries | None, *follows: object
) -> SentRows:
    """Return what a holder ever released of labels, or of features that nodes perturb: each is its node's own.

    Args:
        account: what the job pays from.
        settings: the job.
        lasting: what the holder has beyond the run.
        each: of the released nodes, in their order.
        canaries: of the run.
        follows: settings beside the mechanism that released values follow from.
    """
    named = snapshot_of(settings, canaries, *follows)
    return SentRows(account, each, snapshot=named, by_place=lasting.ids is None)


def order_of(each: Keys, common: int) -> Tensor:
    """Return the nodes by their keys, common ones first, which is the same order in every job: Tensor[N] int64."""
    return torch.from_numpy(np.lexsort((each, np.arange(len(each)) >= common)))


def release_streams(lifetime: Lifetime) -> LearningStreams:
    """Of the fixed random weights that rows are made with: the same in every job, so that rows are the same."""
    return LearningStreams(seed_of(lifetime.secret("projection")), lifetime.lines.header.party)


def keeper_of(account: Account, how: str) -> FolderKeeper:
    """Of what was released as a whole in one way, in a folder of its own."""
    folder = account.lifetime.lines.folder / FOLDER / hashlib.sha256(how.encode()).hexdigest()
    return FolderKeeper(private_folder(folder))
