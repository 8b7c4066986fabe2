"""A party's lifetime ledger in its jobs: who pays for what, and what is sent again.

Whose data come from files, or who names one, has one (``ledger_places``). A node with an id is the same in every job.
Nodes of a graph without ids are nobody's in particular: everybody pays for them.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.files import locked, private_folder
from veilgraph.core.keeper import FolderKeeper, Keeper
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.graph.ordered import in_order
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.lifetime.costs import EVERYBODY, Keys
from veilgraph.privacy.lifetime.ledger import Budget, Lifetime
from veilgraph.privacy.lifetime.marks import Marks
from veilgraph.privacy.lifetime.sent import FOLDER, Payers, SentRows, releasing
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.single import digest_of
from veilgraph.protocol.inputs import LedgerPlace
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.releases import OwnRelease, released_data, summed_data
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
        """
        keys = EVERYBODY if self.ids is None else self.ledger.keys(self.ids)
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


def sent_rows(account: Account, settings: JobSettings, plan: Plan, graph: PartyGraph, lasting: Lasting) -> SentRows:
    """What a holder ever released of rows of embeddings (``privacy.schedule: once``).

    Args:
        account: what the job pays from.
        settings: the job.
        plan: of the holder.
        graph: of the holder.
        lasting: what it has beyond the run.
    """
    each, by_place = lasting.each_key(graph.num_nodes), lasting.ids is None
    payers: Payers = (lambda _: account.keys) if by_place else partial(_payers, plan, graph, each, account.keys)
    whole = plan.settings.unit == "edge"
    return SentRows(account, each[: graph.common], payers, _of(each, settings, graph), whole=whole, by_place=by_place)


def sent_sums(account: Account, settings: JobSettings, plan: Plan, graph: PartyGraph, lasting: Lasting) -> OwnRelease:
    """What a holder ever released with noise in every hop: again only where all of it is the same.

    The arguments are those of ``sent_rows``.
    """
    return _lasting_release(account, _how(plan), _of(lasting.each_key(graph.num_nodes), settings, graph))


def own_sums(
    account: Account | None, plan: Plan, graph: PartyGraph, lasting: Lasting | None, keeper: Keeper
) -> OwnRelease:
    """What a learner was ever given of its own edges with noise in every hop: again only where all of it is the same.

    Args:
        account: what the job pays from; None without a ledger beyond the run.
        plan: of the learner.
        graph: of the learner.
        lasting: what it has beyond the run.
        keeper: of the run, for what is kept where there is nothing beyond it.
    """
    common, own_columns = graph.common_part(), plan.settings.unit == "edge"
    if account is None or lasting is None:
        return OwnRelease(keeper, digest_of(f"{graph.num_classes}", summed_data(common, own_columns=own_columns)))
    each = lasting.each_key(graph.num_nodes)[: graph.common]
    order = order_of(each)
    whose = f"{graph.num_classes}/{each[order.numpy()].tobytes().hex()}"
    depends = digest_of(whose, summed_data(in_order(common, order), own_columns=own_columns))
    return _lasting_release(account, f"{plan.single} {_how(plan)}", depends)  # apart from what it may publish


def _how(plan: Plan) -> str:
    """All that a release with noise in every hop depends on beside the data."""
    settings = plan.settings
    lengths = f"{settings.sum_clip!r} {plan.own_length!r}"
    return f"{plan.mechanism('embeddings')!r} {plan.event!r} {settings.aggregation!r} {lengths}"


def sent_labels(account: Account, nodes: Tensor, labels: Tensor, lasting: Lasting, rows: int) -> SentRows:
    """What a holder ever perturbed of labels (``label_privacy``): each label is its node's own.

    Args:
        account: what the job pays from.
        nodes: Tensor[n] int64, whose labels these are.
        labels: Tensor[n] int64.
        lasting: what the holder has beyond the run.
        rows: of its graph.
    """
    each, whole = lasting.each_key(rows)[nodes.numpy()], lasting.ids is None
    of = digest_of(each.tobytes().hex(), (labels,))
    payers: Payers = (lambda _: account.keys) if whole else (lambda new: np.unique(each[new.numpy()]))
    return SentRows(account, each, payers, of, by_place=whole)


def order_of(each: Keys) -> Tensor:
    """Nodes by their keys, which is the same order in every job: Tensor[N] int64."""
    return torch.from_numpy(np.argsort(each, kind="stable"))


def own_release(account: Account, settings: JobSettings, graph: PartyGraph, lasting: Lasting, how: str) -> OwnRelease:
    """What a holder ever released of what its nodes perturb: again only where all of it is the same.

    Args:
        account: what the job pays from.
        settings: the job.
        graph: of the holder.
        lasting: what it has beyond the run.
        how: all that the release depends on beside the data.
    """
    each = lasting.each_key(graph.num_nodes)
    depends = digest_of(f"{graph.common}/{each.tobytes().hex()}", released_data(settings, graph))
    return _lasting_release(account, how, depends)


def release_streams(lifetime: Lifetime) -> LearningStreams:
    """Of the fixed random weights that rows are made with: the same in every job, so that rows are the same."""
    return LearningStreams(seed_of(lifetime.secret("projection")), lifetime.lines.header.party)


def _of(each: Keys, settings: JobSettings, graph: PartyGraph) -> str:
    """What tells a holder's data, in whatever order, and which nodes are common, from all others."""
    order = order_of(each)
    whose, common = each[order.numpy()], np.sort(each[: graph.common])
    about = f"{whose.tobytes().hex()}/{common.tobytes().hex()}"
    return digest_of(about, released_data(settings, in_order(graph, order)))


def _lasting_release(account: Account, how: str, depends: str) -> OwnRelease:
    return OwnRelease(keeper_of(account, how), depends, partial(releasing, account))


def keeper_of(account: Account, how: str) -> FolderKeeper:
    """Of what was released as a whole in one way, in a folder of its own.

    Args:
        account: of the party.
        how: what tells that way from all others.
    """
    folder = account.lifetime.lines.folder / FOLDER / hashlib.sha256(how.encode()).hexdigest()
    return FolderKeeper(private_folder(folder))


def _payers(plan: Plan, graph: PartyGraph, each: Keys, everyone: Keys, new: Tensor) -> Keys:
    """Whose data rows depend on: a row's own node, or the features of all within its hops; an edge may be anybody's."""
    unit = plan.settings.unit
    if unit not in ("row", "node") or plan.hops is None:
        return everyone
    reached = torch.zeros(graph.num_nodes, dtype=torch.bool)
    reached[new] = True
    sources, targets = graph.edge_index
    for _ in range(plan.hops if unit == "node" else 0):
        near = reached.clone()
        near[sources[reached[targets]]] = True
        near[targets[reached[sources]]] = True
        reached = near
    return np.sort(each[reached.numpy()])
