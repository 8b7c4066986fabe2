"""``privacy.schedule: once``: what is released equals its plaintext twin, and nothing leaves the label holder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.roles.federation import (
    DIM,
    NODES,
    fixed_secrets,
    small_parties,
    with_own_nodes,
)
from tests.roles.once import job, work
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.paradigms.vertical.once import noise_variance, random_projection
from veilgraph.paradigms.vertical.settings import plan
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Budget, Lifetime
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.session import publishers as ledgers
from veilgraph.runtime.session.publishers import LifetimeAccount
from veilgraph.runtime.store.run_directory import PartyStore


def by_hand(settings: JobSettings, graph: PartyGraph) -> Tensor:
    """The rows before noise, with dense matrices."""
    streams = LearningStreams(settings.seed, graph.party)
    start = graph.features.to_dense().double() @ random_projection(graph.num_features, DIM, streams, torch.float64)
    matrix = torch.eye(graph.num_nodes, dtype=torch.float64)
    bound = None if settings.privacy is None else settings.privacy.degree_bound
    kept = torch.ones(graph.num_edges, dtype=torch.bool)
    if bound is not None:
        kept = bound_degrees(graph.edge_index, graph.num_nodes, bound)
    source, target = graph.edge_index[:, kept]
    matrix.index_put_((target, source), torch.ones(1).double(), accumulate=True)
    matrix /= matrix.sum(dim=1, keepdim=True)
    rows: Tensor = start
    for _ in range(2):
        rows = 0.8 * matrix @ rows + 0.2 * start
    lengths: Tensor = rows.norm(dim=1, keepdim=True)
    return rows / lengths.clamp_min(1e-12)


def noised(settings: JobSettings, graph: PartyGraph) -> Tensor:
    """What the holder must have released, with the same secrets."""
    planned = plan(settings, graph.party, NODES)
    assert planned is not None
    rows = by_hand(settings, graph)[: graph.common]
    return planned.mechanism("embeddings").release(rows, fixed_secrets(f"noise of {graph.party}"))


@pytest.mark.parametrize(
    "privacy",
    [
        *({"mechanism": name, "clip": 0.7} for name in ("gaussian", "james-stein-plus", "laplace")),
        *({"unit": unit, "degree_bound": 2, "epsilon_total": 5} for unit in ("edge", "node")),
    ],
    ids=["gaussian", "james-stein-plus", "laplace", "edge", "node"],
)
@pytest.mark.parametrize(("holders", "strategy"), [(2, "mean"), (3, "mean"), (4, "mean"), (2, "concat"), (3, "concat")])
def test_what_the_label_holder_gets_is_the_twins(holders: int, strategy: str, privacy: dict[str, Any]) -> None:
    settings = job(holders, {"model": {"combine": {"strategy": strategy}}}, **privacy)
    graphs = with_own_nodes(small_parties(holders), (5, 4, 0, 3)[:holders])
    got = work(settings, graphs, {}).learner.released
    pieces = [noised(settings, graph) for graph in graphs[1:]]
    expected = torch.cat(pieces, dim=1) if strategy == "concat" else torch.stack(pieces).mean(dim=0)
    assert got is not None
    assert got.shape == (NODES, DIM * (holders - 1) if strategy == "concat" else DIM)
    planned = plan(settings, "B", NODES)
    assert planned is not None
    moved = planned.mechanism("embeddings").cell / 2 if settings.passes.is_masked else 0.0  # off the noise's grid
    assert float((got - expected).abs().max()) < moved + 1e-8


def test_a_release_that_all_still_have_is_used_again() -> None:
    settings, graphs = job(3), small_parties(3)
    first = work(settings, graphs, {})
    assert first.learner.is_new
    assert first.learner.release_number == 1
    again = work(settings, graphs, dict.fromkeys("ABC", 1), first.learner.released)
    assert not again.learner.is_new
    assert {message.tag.kind for view in again.transcripts.values() for message in view} == {Kind.HELLO}
    assert torch.equal(again.learner.logits, first.learner.logits)


@pytest.mark.parametrize("held", [{"A": 2, "B": 2}, {"A": 2, "B": 2, "C": -2}, {"A": 0, "B": 2, "C": 2}])
def test_a_release_that_one_has_not_or_whose_data_have_changed_is_made_anew(held: dict[str, int]) -> None:
    settings, graphs = job(3), small_parties(3)
    rows = torch.zeros(NODES, DIM, dtype=torch.float64)
    session = work(settings, graphs, held, rows if held["A"] else None)
    assert all(role.is_new and role.release_number == 3 for role in session.roles.values())
    assert session.learner.released is not None
    assert bool(session.learner.released.any())


def test_what_nodes_paid_in_other_jobs_is_not_told(tmp_path: Path) -> None:
    """How often one more release fits says who of another job is in the table; that one does is all others need."""
    settings, graphs, told = job(2, epsilon_step=0.5, delta=1e-5), small_parties(2), set()
    ids, rooms = [f"c{node}" for node in range(graphs[1].num_nodes)], list[int | None]()
    for place, others in enumerate((ids[:1], ["somebody else"])):
        life = Lifetime(tmp_path / f"{place}", "B", Budget(4.0), Marks(tmp_path / f"marks {place}"))
        life.charge(GaussianEvent(1.5), "embeddings", 1, life.keys(others), delta=1e-5, run="0" * 64, job="other")
        store = PartyStore(tmp_path / f"run {place}")
        lasting = LifetimeAccount(life, ids)
        with ledgers.publisher_of(store, settings, graphs[1], 4.0, begun=False, lasting=lasting) as publisher:
            rooms.append(publisher.affordable_releases())
            seen = work(settings, graphs, {}, publishers={"B": publisher}).transcripts["B"]
        told |= {bytes(one.tensor.tolist()) for one in seen if (one.sender, one.tag.kind) == ("B", Kind.HELLO)}
    assert rooms == [42, 42]
    assert len(told) == 1


# Noise that is made jointly


@pytest.mark.parametrize(("holders", "colluding"), [(3, 0), (4, 1), (6, 2)])
def test_what_is_noised_jointly_is_the_twins(holders: int, colluding: int) -> None:
    """Rows with a share each, summed as they are, and divided by the server."""
    settings = job(holders, clip=0.7, joint_noise={"colluding": colluding})
    graphs = with_own_nodes(small_parties(holders), (5, 4, 0, 3, 1, 0)[:holders])
    session = work(settings, graphs, {})
    pieces = [noised(settings, graph) for graph in graphs[1:]]
    assert session.learner.released is not None
    assert float((session.learner.released - torch.stack(pieces).mean(dim=0)).abs().max()) < 1e-14
    share = (0.5 * 0.7) ** 2 / (holders - 1 - colluding)
    assert noise_variance(session.learner.session, NODES).tolist() == pytest.approx([share / (holders - 1)] * DIM)


def test_what_is_noised_jointly_stays_on_the_grid_of_its_noise() -> None:
    """Where numbers are so large that others would be moved by secret rounding, and their low bits not be 0."""
    settings = job(3, {"model": {"combine": {"bits": 44}}}, clip=400.0, joint_noise={"colluding": 0})
    planned, got = plan(settings, "B", NODES), work(settings, small_parties(3), {}).learner.released
    assert planned is not None
    assert got is not None
    cells = 2 * got / planned.mechanism("embeddings").cell
    assert float(got.abs().max()) > 64
    assert torch.equal(cells, cells.round())


@pytest.mark.parametrize(("bits", "privacy"), [(20, {}), (32, {"clip": 1e-5}), (44, {"clip": 1e4}), (8, {})])
def test_noise_that_the_ring_cannot_hold_exactly_is_refused_before_anything_is_sent(
    bits: int, privacy: dict[str, Any]
) -> None:
    settings = job(4, {"model": {"combine": {"bits": bits}}}, joint_noise={"colluding": 1}, **privacy)
    with refused(ConfigError, code="refused", key="model.combine.bits", value=bits):
        work(settings, small_parties(4), {})
    with refused(ConfigError, key="model.combine.bits"):
        paradigm_of(settings).data.check_graphs(settings, small_parties(4))
