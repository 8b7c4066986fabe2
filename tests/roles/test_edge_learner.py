"""Paradigm node-dp with ``privacy``: all that a learner makes of its edges is noisy sums, which move as counted."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional
from typing_extensions import override
from veilgraph_node_dp import publisher
from veilgraph_node_dp.choosing import opinion_of
from veilgraph_node_dp.learner import EdgePrivateLearner, LocalLearner, own_features
from veilgraph_node_dp.mechanisms import AffineFeatures
from veilgraph_node_dp.publisher import SumPublisher
from veilgraph_node_dp.settings import node_dp, release_plan
from veilgraph_node_dp.sums import NoisySums, Then

from tests.mpc.sessions import fixed_secrets
from tests.roles.federation import CLASSES, NODES, Settings, with_own_nodes
from tests.roles.local_parties import local_job, local_parties
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.privacy.release_cache import ReleaseCache
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.role import RoleContext
from veilgraph.runtime.session.training import infer, train_step

HOPS = 2
EDGE: Mapping[str, Any] = {"unit": "edge", "hops": HOPS}
NODE: Mapping[str, Any] = {"unit": "node-edges", "degree_bound": 59, "hops": HOPS}
QUIET = 1e12
"""An ε with hardly any noise."""


def job(privacy: Mapping[str, Any] | None = EDGE, *changes: Settings, **noise: Any) -> JobSettings:
    given = {"privacy": {**privacy, "epsilon_total": 4.0, **noise}} if privacy is not None else {}
    return local_job(2, {"model": {"hops": "auto"}, "train": {"epochs": 4}}, *changes, given)


def released(seed: int = 0) -> list[AffineFeatures]:
    """What other holders' nodes released."""
    generator = torch.Generator().manual_seed(seed)
    return [AffineFeatures(torch.randn(NODES, 16, generator=generator))]


def learner_graph(*, own: bool = True) -> PartyGraph:
    return local_parties(job(), own=own)[0]


def trained(settings: JobSettings, graph: PartyGraph, at: Publisher) -> EdgePrivateLearner:
    """The learner at the end of its training."""
    link = MemoryHub(["A", "B"], 1).link("A")
    session = RoleContext(settings, link, LearningStreams(settings.seed, "A"), system_secrets, publisher=at)
    own = [own_features(graph)] if node_dp(settings).uses_own_columns else []
    learner = EdgePrivateLearner(session, graph, [*own, *released()])
    for epoch in range(1, settings.train.epochs + 1):
        train_step(learner, epoch, epoch)
    learner.finish()
    learner.infer_only()
    infer(learner, 99)
    return learner


def door(settings: JobSettings) -> SumPublisher:
    found = release_plan(node_dp(settings), "A", NODES)
    assert found is not None
    return found.paid_by(None, None, ReleaseCache(None))


class Door(SumPublisher):
    """Gives out what it is told to, and notes what it was given."""

    def __init__(self, given: Tensor | None = None, order: Tensor | None = None) -> None:
        self.given, self.order = given, order
        self.asked: list[tuple[Tensor, csr_array, Then]] = []

    @override
    def sums(self, rows: Tensor, pairs: csr_array, then: Then) -> Tensor:
        self.asked.append((rows, pairs, then))
        if self.given is None:
            self.given = torch.randn(NODES, HOPS * CLASSES, generator=torch.Generator().manual_seed(1)).double()
        for hop in range(1, HOPS):
            then(self.given[:, : hop * CLASSES])
        return self.given


class Silent(Gaussian):
    """On the grid of its noise, and without any."""

    @override
    def draw(self, shape: tuple[int, ...], source: SecretSource) -> Tensor:
        return torch.zeros(shape, dtype=torch.float64)


def other_edges(graph: PartyGraph, seed: int = 3) -> PartyGraph:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, graph.num_nodes, (2, 150), generator=generator)
    return replace(graph, edge_index=edges, edge_weight=torch.rand(150, generator=generator))


def all_that_leaves(learner: EdgePrivateLearner) -> dict[str, Tensor]:
    scores = {name: torch.tensor(value) for name, value in learner.scores().record().items() if value is not None}
    return {**learner.model.weights(), "predictions": learner.probabilities(), **scores}


@pytest.mark.parametrize("privacy", [EDGE, NODE], ids=["edge", "node-edges"])
def test_model_and_predictions_follow_from_the_sums_and_not_from_an_edge(privacy: Mapping[str, Any]) -> None:
    """The door says the same; so everything is the same bits, whatever the edges are."""
    settings, graph = job(privacy), learner_graph()
    found = []
    for each in (graph, other_edges(graph), graph.with_edges(torch.zeros(graph.num_edges, dtype=torch.bool))):
        at = Door()
        found.append((all_that_leaves(trained(settings, each, at)), at.asked))
    (first, asked), *others = found
    assert len(asked) == 1, "sums are made once"
    for leaves, also in others:
        assert leaves.keys() == first.keys()
        assert all(torch.equal(leaves[name], first[name]) for name in first)
        assert torch.equal(also[0][0], asked[0][0]), "rows are the same, to the bit"
        assert (also[0][1] != asked[0][1]).nnz, "and edges go through the door alone"
    plain = [
        LocalLearner(_session(job(None)), each, [own_features(each), *released()], None)
        for each in (graph, other_edges(graph))
    ]
    for learner in plain:
        infer(learner, 0)
    assert not torch.equal(plain[0].logits, plain[1].logits), "without privacy predictions tell of edges"


def _session(settings: JobSettings) -> RoleContext:
    link = MemoryHub(["A", "B"], 1).link("A")
    return RoleContext(settings, link, LearningStreams(settings.seed, "A"), system_secrets, publisher=OPEN)


def test_of_a_node_with_all_its_edges_own_columns_are_not_used_and_of_an_edge_they_are() -> None:
    graph = learner_graph()
    changed = replace(graph, features=graph.features.flip(0))
    for privacy, same in ((NODE, True), (EDGE, False)):
        one, other = (all_that_leaves(trained(job(privacy), each, Door())) for each in (graph, changed))
        assert torch.equal(one["predictions"], other["predictions"]) == same


@pytest.mark.parametrize("privacy", [EDGE, NODE], ids=["edge", "node-edges"])
def test_sums_move_between_neighbouring_edges_as_the_plan_counts(privacy: Mapping[str, Any]) -> None:
    """Through the learner: its own rows, its own networks between the hops, and the same outcomes in both worlds."""
    settings, graph = job(privacy), learner_graph()
    planned = release_plan(node_dp(settings), "A", NODES)
    assert planned is not None
    if privacy is EDGE:
        gone = ((graph.edge_index == graph.edge_index[0, 0]) | (graph.edge_index == graph.edge_index[1, 0])).all(dim=0)
    else:
        hub = int(graph.edge_index[1].bincount().argmax())
        gone = (graph.edge_index == hub).any(dim=0)
    near = graph.with_edges(~gone)
    doors = [Door(), Door()]
    for each, at in zip((graph, near), doors, strict=True):
        trained(settings, each, at)
    (rows, pairs, then), (also, others, _) = (at.asked[0] for at in doors)
    assert torch.equal(rows, also)
    outcomes = doors[0].given
    assert outcomes is not None
    noise, longest = Silent(1.0, planned.multiplier), planned.settings.longest

    def made(of: csr_array) -> Tensor:
        """As ``outcomes`` had come out."""
        return NoisySums(HOPS, noise, longest).release(
            of, rows, system_secrets, lambda sums: then(outcomes[:, : sums.shape[1]])
        )

    assert 0 < float((made(pairs) - made(others)).norm()) <= planned.settings.sensitivity
    assert planned.settings.sensitivity == pytest.approx(math.sqrt(2 * HOPS if privacy is EDGE else HOPS * (59 + 59)))


@pytest.mark.parametrize("own_nodes", [0, 5])
@pytest.mark.parametrize("privacy", [EDGE, NODE], ids=["edge", "node-edges"])
def test_without_noise_they_are_the_plain_sums_of_what_nodes_are_taken_for(
    privacy: Mapping[str, Any], own_nodes: int
) -> None:
    settings = job(privacy, epsilon_total=QUIET)
    graph = with_own_nodes([learner_graph()], [own_nodes])[0]
    learner = trained(settings, graph, door(settings))
    common = graph.common_part()
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense[common.edge_index[1], common.edge_index[0]] = 1
    dense.fill_diagonal_(0)
    with torch.no_grad():
        LocalLearner.forward(learner, 0, None)
    rows, found = opinion_of(learner._objective, learner.graph, learner.logits)[1], []
    clip = math.sqrt(59) if privacy is NODE else math.inf
    for _ in range(HOPS):
        summed = dense @ functional.normalize(rows.double())
        found.append(summed * (clip / summed.norm(dim=1, keepdim=True).clamp_min(clip)) if clip < math.inf else summed)
        rows = learner._next_opinion(torch.cat(found, dim=1))
    assert learner._sums is not None
    assert learner._sums.shape == (NODES, HOPS * CLASSES)
    torch.testing.assert_close(learner._sums, torch.cat(found, dim=1), rtol=0, atol=1e-4)
    gains = [float(learner.model.weights()[f"hops.networks.{hop}.gain"]) for hop in range(HOPS)]
    assert all(math.isfinite(gain) and abs(gain - 1) > 1e-3 for gain in gains), "each is scaled by its sums"
    train, labels = common.train_mask, common.labels
    assert train is not None
    assert labels is not None
    for hop in range(1, HOPS):
        taken = learner._next_opinion(learner._sums[:, : hop * CLASSES])
        assert torch.equal(taken[train].argmax(dim=1), labels[train]), (
            "labels that it learns from are their nodes' rows"
        )


def test_what_is_the_same_in_another_order_has_the_same_sums() -> None:
    """Aligned anew, rows come in another order; the noise is drawn in an order of the nodes' own."""
    settings, graph = job(), learner_graph(own=False)
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(2))
    at = Door(order=order)
    learner = trained(settings, graph, at)
    rows, pairs, _ = at.asked[0]
    with torch.no_grad():
        LocalLearner.forward(learner, 0, None)
    opinion = opinion_of(learner._objective, learner.graph, learner.logits)[1]
    assert torch.equal(rows, opinion[order])
    dense = torch.zeros(NODES, NODES, dtype=torch.float64)
    dense[graph.edge_index[1], graph.edge_index[0]] = 1
    assert torch.equal(torch.from_numpy(pairs.toarray()), dense[order][:, order])
    assert at.given is not None
    assert torch.equal(learner._sums[order], at.given)  # type: ignore[index]


# An attack: is there an edge between two nodes?


def game(settings: JobSettings, games: int) -> tuple[float, float]:
    """How often an attacker is right who is given the sums, and one who is given the predictions alone.

    A node without any other edge is linked to a training node, or not. The attackers know everything else: the first
    takes the likelihood ratio of the sums in both worlds, the second asks how sure the model is of the other's class.
    """
    graph = learner_graph(own=False)
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.test_mask is not None
    target = int(graph.test_mask.nonzero()[0])
    apart = graph.with_edges(~(graph.edge_index == target).any(dim=0))
    friend = int((graph.train_mask & (graph.labels == 2)).nonzero()[0])
    pair = torch.tensor([[target, friend], [friend, target]])
    linked = replace(apart, edge_index=torch.cat([apart.edge_index, pair], dim=1))
    by_sums, by_predictions = [], []
    for number in range(games):
        scores = []
        for world in (linked, apart):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(publisher, "system_secrets", fixed_secrets(f"{number}{world is linked}"))
                learner = trained(settings, world, door(settings))
            assert learner._sums is not None
            at_target = learner._sums[target].reshape(HOPS, CLASSES)[:, 2]
            scores.append((float(at_target[0]), float(learner.probabilities()[target, 2])))
        by_sums.append(scores[0][0] > scores[1][0])
        by_predictions.append(scores[0][1] > scores[1][1])
    return sum(by_sums) / games, sum(by_predictions) / games


LEARNS: Settings = {"model": {"dropout": 0.0}, "train": {"epochs": 40, "learning_rate": 0.03}}


def test_an_edge_shows_without_noise_and_no_more_than_epsilon_allows_with_it() -> None:
    assert game(job(EDGE, LEARNS, epsilon_total=QUIET), 1) == (1.0, 1.0), "without noise both attackers are right"
    found = game(job(EDGE, LEARNS, epsilon_total=300.0), 3)
    assert found[0] == 1.0
    assert found[1] > 0.5
    private = job(epsilon_total=1.0, delta=1e-3)
    planned = release_plan(node_dp(private), "A", NODES)
    assert planned is not None
    mu, games = planned.settings.sensitivity / planned.multiplier, 12
    most = 0.5 * (1 + math.erf(mu / 2))  # who sees both worlds side by side: Φ(μ/√2)
    assert most < 0.65
    for right in game(private, games):
        assert right <= most + 3 * math.sqrt(0.25 / games)
