"""A party's lifetime ledger in its jobs: where it is, who pays for what, and what is sent again.

Whose data come from tables has one: tables have ids, by which a node is the same in every job. Saved graphs, data sets
and simulations have the ledger of their run alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from veilgraph.core.files import private_folder
from veilgraph.core.keeper import FolderKeeper
from veilgraph.core.randomness import LearningStreams, seed_of
from veilgraph.graph.ordered import in_order
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.lifetime.account import Account
from veilgraph.privacy.lifetime.costs import Keys
from veilgraph.privacy.lifetime.ledger import Budget, Lifetime
from veilgraph.privacy.lifetime.marks import Marks
from veilgraph.privacy.lifetime.sent import FOLDER, SentRows
from veilgraph.privacy.plan import Plan
from veilgraph.privacy.single import digest_of
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.releases import OwnRelease, released_data

_MARKS: Final = Path("veilgraph") / "ledgers"


@dataclass(frozen=True)
class Lasting:
    """What a party with tables has beyond a run.

    Attributes:
        ledger: of all its jobs.
        ids: of all rows of its graph.
    """

    ledger: Lifetime
    ids: Sequence[str]


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
    return Lifetime(folder, settings.party, budget_of(settings.limits), Marks(marks or default_marks()))


def budget_of(limits: LimitSettings) -> Budget:
    """What a party's limits let all releases together come to."""
    return Budget(
        float("inf") if limits.max_epsilon is None else limits.max_epsilon,
        limits.max_delta,
        limits.epsilon_unit,
        limits.epsilon_neighbours,
    )


def account_of(lifetime: Lifetime, settings: JobSettings, ids: Sequence[str], delta: float | None) -> Account:
    """What a job pays from.

    Args:
        lifetime: the party's.
        settings: the job.
        ids: of all rows of the party's graph.
        delta: of the job's ε; None where each is pure.
    """
    return Account(lifetime, lifetime.keys(ids), delta, settings.hash(), settings.name)


def sent_rows(account: Account, settings: JobSettings, plan: Plan, graph: PartyGraph, ids: Sequence[str]) -> SentRows:
    """What a holder ever released of rows of embeddings (``privacy.schedule: once``).

    Args:
        account: what the job pays from.
        settings: the job.
        plan: of the holder.
        graph: of the holder.
        ids: of its rows.
    """
    each = account.lifetime.each_key(ids)
    payers = partial(_payers, plan, graph, each, account.keys)
    whole = plan.settings.unit == "edge"
    return SentRows(account, each[: graph.common], payers, _of(each, settings, graph), whole=whole)


def sent_sums(account: Account, settings: JobSettings, plan: Plan, graph: PartyGraph, ids: Sequence[str]) -> OwnRelease:
    """What a holder ever released with noise in every hop: again only where all of it is the same.

    The arguments are those of ``sent_rows``.
    """
    how = f"{plan.mechanism('embeddings')!r} {plan.event!r} {plan.settings.aggregation!r} {plan.settings.sum_clip!r}"
    return OwnRelease(keeper_of(account, how), _of(account.lifetime.each_key(ids), settings, graph))


def sent_labels(account: Account, nodes: Tensor, labels: Tensor, ids: Sequence[str]) -> SentRows:
    """What a label holder ever perturbed of labels (``label_privacy``): each label is its node's own.

    Args:
        account: what the job pays from.
        nodes: Tensor[n] int64, whose labels these are.
        labels: Tensor[n] int64.
        ids: of all rows of the holder's graph.
    """
    each = account.lifetime.each_key(ids)[nodes.numpy()]
    of = digest_of(each.tobytes().hex(), (labels,))
    return SentRows(account, each, lambda new: np.unique(each[new.numpy()]), of)


def order_of(each: Keys) -> Tensor:
    """Nodes by their keys, which is the same order in every job: Tensor[N] int64."""
    return torch.from_numpy(np.argsort(each, kind="stable"))


def own_release(account: Account, settings: JobSettings, graph: PartyGraph, ids: Sequence[str], how: str) -> OwnRelease:
    """What a holder ever released of what its nodes perturb: again only where all of it is the same.

    Args:
        account: what the job pays from.
        settings: the job.
        graph: of the holder.
        ids: of its rows.
        how: all that the release depends on beside the data.
    """
    each = account.lifetime.each_key(ids)
    depends = digest_of(f"{graph.common}/{each.tobytes().hex()}", released_data(settings, graph))
    return OwnRelease(keeper_of(account, how), depends)


def release_streams(lifetime: Lifetime) -> LearningStreams:
    """Of the fixed random weights that rows are made with: the same in every job, so that rows are the same."""
    return LearningStreams(seed_of(lifetime.secret("projection")), lifetime.lines.header.party)


def _of(each: Keys, settings: JobSettings, graph: PartyGraph) -> str:
    """What tells a holder's data, in whatever order, and which nodes are common, from all others."""
    order = order_of(each)
    whose, common = each[order.numpy()], np.sort(each[: graph.common])
    about = f"{whose.tobytes().hex()}/{common.tobytes().hex()}"
    return digest_of(about, released_data(settings, in_order(graph, order)))


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
