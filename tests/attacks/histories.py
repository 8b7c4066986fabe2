"""What an observer of two jobs of one ledger for life sees, of labels and of sums over edges."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from veilgraph_node_dp.publisher import SumPublisher
from veilgraph_node_dp.sums import pair_matrix

from tests.mpc.sessions import fixed_secrets
from tests.paradigms.local import LEARNER, edges
from tests.roles.local_parties import local_job, local_parties
from veilgraph.graph.features import reorder_nodes
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Account, Budget, Lifetime
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import LifetimeCache
from veilgraph.protocol.job import JobSettings
from veilgraph.runtime.session.publishers import LifetimeAccount, publisher_of
from veilgraph.runtime.store.run_directory import PartyStore

EPSILON = 0.05


def lifetime_in(folder: Path) -> Lifetime:
    return Lifetime(folder / "ledger", "B", Budget(1000.0, 1e-5), Marks(folder / "marks"))


def learned(lifetime: Lifetime, labels: Tensor, snapshot: str = "", epsilon: float = EPSILON) -> Tensor:
    """What the label holder learns from in the next job."""
    ids = [f"c{customer}" for customer in range(len(labels))]
    account = Account(lifetime, lifetime.keys(ids), None, "ab" * 32, "job")
    sent = LifetimeCache(account, lifetime.each_key(ids), snapshot=snapshot)
    drawn = fixed_secrets("labels", snapshot)  # else one of two hundred runs would differ by more than tests allow
    return LabelPublisher(LabelResponse(epsilon, 2), labels, None, drawn, sent).perturbed()


def outcomes(snapshots: tuple[str, str], history: tuple[int, int], folder: Path) -> Counter[tuple[int, int]]:
    """How often two jobs give which labels, for a label of that history: customers draw apart, so each is a trial."""
    lifetime = lifetime_in(folder)
    first, second = (
        learned(lifetime, torch.full((20_000,), label), name, 1.0)
        for label, name in zip(history, snapshots, strict=True)
    )
    return Counter(zip(first.tolist(), second.tolist(), strict=True))


UNITS: dict[str, dict[str, Any]] = {"edge": {}, "node-edges": {"degree_bound": 59}}


def summing(unit: str, **privacy: Any) -> JobSettings:
    """A job with noise on the learner's sums, about one edge, or one node's edges."""
    return local_job(3, edges(unit, **{"epsilon_total": 1.0, "delta": 1e-5, "hops": 1, **UNITS[unit], **privacy}))


def learners(settings: JobSettings) -> PartyGraph:
    """The learner's graph."""
    return next(graph for graph in local_parties(settings) if graph.party == LEARNER)


def seen(
    settings: JobSettings, graph: PartyGraph, folder: Path, job: str, entering: Sequence[int] = ()
) -> tuple[Tensor, int | None, int]:
    """What follows from a learner's edges in a job: the release, whether one more fits, and how long the ledger is."""
    ids = [f"new{node}" if node in entering else f"c{node}" for node in range(graph.num_nodes)]
    lasting = LifetimeAccount(lifetime_in(folder), ids)
    store = PartyStore(folder / job)
    store.path.mkdir(parents=True, exist_ok=True)
    with publisher_of(store, settings, graph, 1000.0, begun=False, lasting=lasting) as door:
        assert isinstance(door, SumPublisher)
        assert door.order is not None
        room, mine = door.affordable_releases(), reorder_nodes(graph.common_part(), door.order)
        pairs = pair_matrix(mine.edge_index, mine.edge_weight, mine.num_nodes)
        rows = torch.eye(3, dtype=torch.float64)[door.order % 3]
        released = door.sums(rows, pairs, lambda sums: sums[:, -3:])[door.order.argsort()]
    return released, room, lasting.ledger.lines.count
