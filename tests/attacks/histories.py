"""What an observer of two jobs of one ledger for life sees, of labels and of rows of every unit."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilgraph.core.secrets import system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.aggregation import pair_matrix
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
    return LabelPublisher(LabelResponse(epsilon, 2), labels, None, system_secrets, sent).perturbed()


def outcomes(snapshots: tuple[str, str], history: tuple[int, int], folder: Path) -> Counter[tuple[int, int]]:
    """How often two jobs give which labels, for a label of that history: customers draw apart, so each is a trial."""
    lifetime = lifetime_in(folder)
    first, second = (
        learned(lifetime, torch.full((20_000,), label), name, 1.0)
        for label, name in zip(history, snapshots, strict=True)
    )
    return Counter(zip(first.tolist(), second.tolist(), strict=True))


UNITS: dict[str, dict[str, Any]] = {
    "row": {"unit": "row"},
    "node": {"unit": "node", "degree_bound": 4, "neighbours": "replacement"},
    "edge": {"unit": "edge", "degree_bound": 4, "neighbours": "replacement"},
    "edge in hops": {"unit": "edge", "aggregation": {"hops": 1, "dim": 6}},
    "node in hops": {"unit": "node", "degree_bound": 60, "aggregation": {"hops": 1, "dim": 6}},
    "node-edges": {"unit": "node-edges", "degree_bound": 60, "aggregation": {"hops": 1, "dim": 6}},
}


def seen(
    settings: JobSettings, graph: PartyGraph, folder: Path, job: str, entering: Sequence[int] = ()
) -> tuple[Tensor, int | None, int]:
    """What other parties see of a job: the release, whether one more fits, and how long the ledger is."""
    ids = [f"new{node}" if node in entering else f"c{node}" for node in range(graph.num_nodes)]
    lasting = LifetimeAccount(lifetime_in(folder), ids)
    store = PartyStore(folder / job)
    store.path.mkdir(parents=True, exist_ok=True)
    with publisher_of(store, settings, graph, 1000.0, begun=False, lasting=lasting) as door:
        room = door.affordable_releases()
        rows = graph.features.to(torch.float64)[:, :6]
        pairs = pair_matrix(graph.edge_index, graph.edge_weight, graph.num_nodes)
        if settings.privacy is not None and settings.privacy.aggregation is not None:
            released = door.aggregated(rows, pairs, graph.common)
        else:
            mixed = torch.from_numpy(pairs @ rows.numpy()) + rows
            released = door.embeddings(mixed[: graph.common], 0)
    return released, room, lasting.ledger.lines.count
