"""``privacy.aggregation``: what is released with noise in every hop equals its plaintext twin, and rules are kept."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests import about
from tests.errors import refused
from tests.roles.federation import NODES, fixed_secrets, small_parties, with_own_nodes
from tests.roles.once import LOCAL, work
from tests.roles.once import job as once_job
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.tensor_file import MemoryKeeper
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.paradigms.vertical.once import noise_variance, random_projection
from veilgraph.paradigms.vertical.paradigm import VERTICAL
from veilgraph.paradigms.vertical.settings import plan, vertical
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.aggregation import bound_degrees
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.limits import LimitSettings, refusal

DIM, HOPS = 6, 2
UNITS: Mapping[str, Mapping[str, Any]] = {
    "edge": {"unit": "edge"},
    "edge, own rows in the clear": {"unit": "edge", "aggregation": {"hops": HOPS, "dim": DIM, "own_rows": "clear"}},
    "node": {"unit": "node", "degree_bound": 2},
    "node-edges": {"unit": "node-edges", "degree_bound": 40},
    "node-edges, replaced": {"unit": "node-edges", "degree_bound": 40, "neighbours": "replacement"},
    "node-edges, half for own rows": {
        "unit": "node-edges",
        "degree_bound": 40,
        "aggregation": {"hops": HOPS, "dim": DIM, "own_share": 0.5},
    },
}
LENGTHS: Final[Mapping[str, float]] = {
    "edge": 1.0,
    "node": math.sqrt(9 * 8 / 4),
    "node-edges": math.sqrt(9 * 160),
    "node-edges, replaced": math.sqrt(9 * 560 / 4),
    "node-edges, half for own rows": math.sqrt(160),
}
"""λ of each unit: λ², times 4 where features are replaced, is s/(1 − s) of what the sums move by, squared; s is 0.9."""


def job(holders: int, *changes: Mapping[str, Any], **privacy: Any) -> JobSettings:
    return once_job(holders, *changes, **{"aggregation": {"hops": HOPS, "dim": DIM}, **UNITS["edge"], **privacy})


def weighted(graph: PartyGraph) -> PartyGraph:
    """Every pair with the same weight both ways, some above 1."""
    source, target = graph.edge_index.double()
    return replace(graph, edge_weight=((source + target) % 7 / 4).float())


def by_hand(settings: JobSettings, graph: PartyGraph, length: float) -> Tensor:
    """What the holder must have released, with dense matrices and the same secrets; own rows as long as the others."""
    planned, privacy = plan(settings, graph.party, NODES), settings.privacy
    assert planned is not None
    assert privacy is not None
    kept = torch.ones(graph.num_edges, dtype=torch.bool)
    if privacy.unit == "node" and privacy.degree_bound is not None:
        kept = bound_degrees(graph.edge_index, graph.num_nodes, privacy.degree_bound)
    weight = torch.ones(graph.num_edges) if graph.edge_weight is None else graph.edge_weight
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    source, target = graph.edge_index[:, kept]
    matrix.index_put_((target, source), weight[kept].double(), accumulate=True)
    matrix = matrix.clamp_max(1).fill_diagonal_(0)
    streams, mechanism = LearningStreams(settings.seed, graph.party), planned.mechanism("embeddings")
    rows = graph.features.to_dense().double()
    rows = functional.normalize(rows @ random_projection(graph.num_features, DIM, streams, torch.float64))
    source_of_noise, released = fixed_secrets(f"noise of {graph.party}"), []
    clear = privacy.aggregation is not None and privacy.aggregation.own_rows == "clear"
    for hop in range(HOPS + 1):
        if clear and not hop:
            continue
        clean = rows if hop == 0 else matrix @ rows
        if hop and privacy.sum_clip is not None:
            clean = clean * (privacy.sum_clip / clean.norm(dim=1, keepdim=True).clamp_min(privacy.sum_clip))
        if hop == 0:
            clean = clean * length
        released.append(clean + mechanism.draw(tuple(clean.shape), source_of_noise))
        if hop == 0:
            released[0] /= length
        else:
            rows = functional.normalize(released[-1])
    return torch.cat(released, dim=1)[: graph.common]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("holders", "strategy"), [(2, "mean"), (3, "mean"), (3, "concat")])
def test_what_the_label_holder_gets_is_the_twins(holders: int, strategy: str, unit: str) -> None:
    settings = job(holders, {"model": {"combine": {"strategy": strategy}}}, **UNITS[unit])
    graphs = with_own_nodes(small_parties(holders), (5, 4, 0)[:holders])
    graphs[-1] = weighted(graphs[-1])
    learner = work(settings, graphs, {}).learner
    got, clear = learner.released, vertical(settings).gives_columns
    pieces = [by_hand(settings, graph, LENGTHS.get(unit, 1.0)) for graph in graphs[1:]]
    expected = torch.cat(pieces, dim=1) if strategy == "concat" else torch.stack(pieces).mean(dim=0)
    assert got is not None
    matrices = HOPS + (not clear)
    assert got.shape == expected.shape == (NODES, matrices * DIM * (holders - 1 if strategy == "concat" else 1))
    assert float((got - expected).abs().max()) < 1e-4, "but for the grid"
    given = graphs if clear else graphs[:1]
    assert learner.graph.num_features == sum(graph.num_features for graph in given)
    shared = torch.cat([graph.features.to_dense()[:NODES] for graph in given], dim=1)
    assert torch.equal(learner.graph.features.to_dense()[:NODES], shared)
    assert torch.equal(
        learner.graph.features.to_dense()[NODES:, : graphs[0].num_features], graphs[0].features.to_dense()[NODES:]
    )
    assert not bool(learner.graph.features.to_dense()[NODES:, graphs[0].num_features :].any()), "nobody knows these"


@pytest.mark.parametrize(
    ("unit", "strategy"), [("edge", "mean"), ("node", "concat"), ("node-edges, replaced", "concat")]
)
def test_own_rows_have_less_noise_than_sums_and_the_label_holder_reckons_with_it(unit: str, strategy: str) -> None:
    """Of two that release: their mean has half of the noise of one."""
    combined, noise = {"model": {"combine": {"strategy": strategy}}}, list[Tensor]()
    made = [work(job(3, combined, **UNITS[unit], noise_multiplier=at), small_parties(3), {}).learner for at in (0.2, 0)]
    for each in made:
        assert each.released is not None
        noise.append(each.released)
    shared, blocks = (2, 1) if strategy == "mean" else (1, 2)
    of_rows, of_sums = 0.04 / LENGTHS[unit] ** 2 / shared, 0.04 / shared
    expected = blocks * [*[of_rows] * DIM, *[of_sums] * HOPS * DIM]
    assert noise_variance(made[0].session, NODES).tolist() == pytest.approx(expected)
    found = (noise[0] - noise[1]).split(DIM, dim=1)
    assert float(found[0].var()) == pytest.approx(of_rows, rel=0.3)
    assert float(found[1].var()) == pytest.approx(of_sums, rel=0.3)


CLEAR = UNITS["edge, own rows in the clear"]


def test_columns_go_to_the_label_holder_alone_and_say_the_same_whatever_the_edges_are() -> None:
    settings, found = job(3, **CLEAR), []
    for edges in (slice(None), slice(0, 2), slice(0, 0)):
        graphs = [replace(graph, edge_index=graph.edge_index[:, edges]) for graph in small_parties(3)]
        worked = work(settings, graphs, {})
        sent = {
            name: [one for one in told if one.tag.kind is Kind.COLUMNS] for name, told in worked.transcripts.items()
        }
        assert [len(sent[name]) for name in ("A", "B", "C", SERVER)] == [6, 3, 3, 0]
        kinds = {name: {one.tag.kind for one in told} - {Kind.HELLO} for name, told in worked.transcripts.items()}
        assert kinds["B"] == {Kind.KEY, Kind.MASKED, Kind.COLUMNS}, "and nothing else is sent"
        assert kinds["A"] == {Kind.COLUMNS, Kind.COMBINED}
        found.append([one.tensor for one in sent["B"]])
    for other in found[1:]:
        assert all(torch.equal(one, again) for one, again in zip(found[0], other, strict=True))


def test_columns_that_were_given_are_kept_and_not_sent_again() -> None:
    settings, graphs = job(2, **CLEAR), small_parties(2)
    keepers = {party: MemoryKeeper() for party in ("A", "B")}
    first, again = (work(settings, graphs, {}, keepers=keepers) for _ in range(2))
    kinds = {one.tag.kind for one in again.transcripts["B"]}
    assert kinds == {Kind.HELLO}
    assert torch.equal(first.learner.graph.features, again.learner.graph.features)
    assert torch.equal(first.learner.logits, again.learner.logits)
    moved = [graphs[0], replace(graphs[1], features=graphs[1].features.to_dense() + 1)]
    later = work(settings, moved, {}, keepers=keepers)
    assert {one.tag.kind for one in later.transcripts["B"]} == {Kind.HELLO}
    assert torch.equal(first.learner.graph.features, later.learner.graph.features)


def test_who_releases_own_rows_in_the_clear_has_to_accept_it_by_name() -> None:
    noised, clear = (job(2, **UNITS[name], epsilon_total=4, delta=1e-5) for name in list(UNITS)[:2])
    for settings, needed in ((noised, False), (clear, True)):
        limits = LimitSettings(max_epsilon=8, **about.EDGES, leakage=())
        assert ("own-columns" in (refusal(limits, settings, "B", NODES, epsilon=4) or "")) == needed
        accepting = limits.model_copy(update={"leakage": ("own-columns",)})
        assert refusal(accepting, settings, "B", NODES, epsilon=4) is None
    costs = [plan(each, "B", NODES) for each in (noised, clear)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert costs[0].multiplier == costs[1].multiplier, "of an edge they say nothing, so nothing is saved or paid"


def test_a_sum_clip_that_is_given_is_what_sums_are_shortened_to_and_cost() -> None:
    given = {**UNITS["node-edges"], "aggregation": {"hops": HOPS, "dim": DIM, "sum_clip": 0.5}}
    planned = plan(job(2, **given, noise_multiplier=1.0), "B", NODES)
    assert planned is not None
    assert planned.clips == pytest.approx(math.sqrt(10 * HOPS * (40 + 0.25)))
    assert list(planned.longest) == pytest.approx([math.sqrt(9 * HOPS * (40 + 0.25)), 0.5, 0.5])
    released = work(job(2, **given, noise_multiplier=0), small_parties(2), {}).learner.released
    assert released is not None
    assert float(released[:, DIM : 2 * DIM].norm(dim=1).max()) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("unit", "clips"),
    [
        ("edge", 4),
        ("node", 80),
        ("node-edges", 1600),
        ("node-edges, replaced", 5600),
        ("node-edges, half for own rows", 320),
    ],
)
def test_the_plan_costs_what_the_hops_cost_together(unit: str, clips: float) -> None:
    """μ² = (sensitivity/σ)²: 2K; 4D, K(D + B²) with B² = D, or 4(D + B²) + (K − 1)(2D + 4B²), and own rows' share."""
    fixed = plan(job(2, **UNITS[unit], noise_multiplier=3.0), "B", NODES)
    assert fixed is not None
    assert fixed.event is not None
    assert (fixed.releases, fixed.event.unit) == (1, UNITS[unit]["unit"])
    assert fixed.event.mu(1) == pytest.approx(math.sqrt(clips) / 3)
    assert fixed.epsilon_total == pytest.approx(gaussian_epsilon(math.sqrt(clips) / 3, fixed.delta))
    wanted = plan(job(2, **UNITS[unit], epsilon_total=4), "B", NODES)
    assert wanted is not None
    assert 3.99 < wanted.epsilon_total <= 4
    label_holder = plan(job(2, **UNITS[unit], epsilon_total=4), "A", NODES)
    assert label_holder is not None
    assert label_holder.epsilon_total == 0


# The rule that unit node-edges rests on


def test_a_holder_that_breaks_the_rule_refuses_before_any_release() -> None:
    graphs = small_parties(3)
    most = int(torch.bincount(torch.unique(graphs[2].edge_index, dim=1)[1]).max())
    settings = job(3, unit="node-edges", degree_bound=most - 1, noise_multiplier=1.0)
    with pytest.raises(ConfigError) as error:
        work(settings, graphs, {})
    for words in ("C refuses the job: ", f"degree_bound={most - 1} neighbours", "raise degree_bound", "export"):
        assert words in str(error.value)
    with refused(ConfigError, key="privacy.degree_bound"):
        VERTICAL.data.check_graphs(vertical(settings), graphs)
    allowed = job(3, unit="node-edges", degree_bound=40, noise_multiplier=1.0)
    VERTICAL.data.check_graphs(vertical(allowed), graphs)
    hub = torch.stack([torch.zeros(50, dtype=torch.int64), torch.arange(1, 51)])
    crowded = replace(graphs[0], edge_index=torch.cat([graphs[0].edge_index, hub], dim=1))
    VERTICAL.data.check_graphs(vertical(allowed), [crowded, *graphs[1:]])  # the label holder releases nothing
    work(allowed, [crowded, *graphs[1:]], {})


def test_nothing_but_hellos_is_sent_where_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = set[Kind](), RecordedLink.send

    def watched(self: RecordedLink, to: str, tag: Any, tensor: Tensor) -> None:
        sent.add(tag.kind)
        send(self, to, tag, tensor)

    monkeypatch.setattr(RecordedLink, "send", watched)
    with pytest.raises(ConfigError):
        work(job(3, unit="node-edges", degree_bound=1, noise_multiplier=1.0), small_parties(3), {})
    assert sent == {Kind.HELLO}


# Settings


@pytest.mark.parametrize(
    ("privacy", "named"),
    [
        ({"aggregation": None, "unit": "node-edges", "degree_bound": 3}, "unit"),
        ({"unit": "row"}, "unit"),
        ({"unit": "edge", "degree_bound": 3}, "degree_bound"),
        ({"unit": "node"}, "unit"),
        ({"unit": "node-edges"}, "unit"),
        ({"mechanism": "laplace"}, "mechanism"),
        ({"mechanism": "james-stein"}, "mechanism"),
        ({"clip": 0.5}, "clip"),
        ({"schedule": "every-step"}, "schedule"),
        ({"neighbours": "zero-out"}, "unit"),
        ({"unit": "node", "degree_bound": 3, "neighbours": "zero-out"}, "unit"),
        ({"aggregation": {"sum_clip": 1.0}}, "aggregation.sum_clip"),
        ({"unit": "node-edges", "degree_bound": 3, "aggregation": {"sum_clip": 3.5}}, "aggregation.sum_clip"),
        ({"canaries": 5}, "canaries"),
        ({"aggregation": {"hops": 0}}, "privacy.aggregation.hops"),
        ({"unit": "node", "degree_bound": 3, "aggregation": {"own_rows": "clear"}}, "aggregation.own_rows"),
        ({"unit": "node-edges", "degree_bound": 3, "aggregation": {"own_rows": "clear"}}, "aggregation.own_rows"),
        ({"aggregation": {"own_rows": "some"}}, "privacy.aggregation.own_rows"),
        ({"aggregation": {"own_share": 0.5}}, "aggregation.own_share"),
        ({"unit": "node", "degree_bound": 3, "aggregation": {"own_share": 0}}, "privacy.aggregation.own_share"),
        ({"unit": "node", "degree_bound": 3, "aggregation": {"own_share": 1}}, "privacy.aggregation.own_share"),
    ],
)
def test_what_is_not_proven_is_refused(privacy: dict[str, Any], named: str) -> None:
    with refused(ConfigError, key=named):
        job(2, **{"noise_multiplier": 1.0, **privacy})


def test_models_with_weights_and_columns_scaled_together_are_refused() -> None:
    for model in ("sage-mean", "gcn"):
        with refused(ConfigError, key="model.local.model"):
            job(2, {"model": {"local": {**LOCAL, "model": model, "teleport": 0.1}}})
    with refused(ConfigError, key="privacy.unit"):
        job(2, {"data": {"feature_scaling": "standard"}}, **UNITS["node-edges"])
    assert job(2, {"data": {"feature_scaling": "standard"}}).privacy is not None


def test_edges_and_rows_must_be_of_their_own_where_both_are_protected() -> None:
    for unit, of_nodes, of_edges in (("edge", (), ("B",)), ("node", ("B",), ()), ("node-edges", ("B",), ("B",))):
        settings = job(2, **UNITS[unit])
        assert (settings.inputs.per_node, settings.inputs.per_edge) == (of_nodes, of_edges)
