"""Nodes that only one holder knows: part of its local graph, and of nothing that it sends."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_testing.vertical import weights_of

from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.runs import assert_same_run
from tests.reference.twins import assert_twins, odd_parties
from tests.roles.federation import (
    CLASSES,
    FEATURES,
    NODES,
    Federation,
    OwnModel,
    Settings,
    build_role,
    dropout_everywhere,
    federate,
    small_job,
    small_parties,
    with_own_nodes,
)
from veilgraph.core.types import SERVER, Kind, Link, PartyId
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.partition import split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.link.collectives import tensor_text
from veilgraph.paradigms.vertical.settings import vertical
from veilgraph.paradigms.vertical.twin import PlainNetwork, isolated
from veilgraph.protocol.agreement import Hello
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.plain_fitting import fit
from veilgraph.protocol.role import Role
from veilgraph.runtime.launch.jobs import predict, train
from veilgraph.runtime.launch.jobs import resume as resume_run
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.training import infer

COUNTS = (7, 5, 0)
"""Own nodes per holder; no N is the number of anything else."""
METHODS = ["collaborative", "individual", "secure-sum"]
LOCALS: list[Settings] = [
    {"model": "sage-mean"},
    {"model": "appnp", "hops": 3},
    {"model": "gat", "heads": 2},
    {"model": "sage-lstm"},
]
STRATEGIES = ["mean", "regression", "degree-weighted"]


def parties(holders: int) -> list[PartyGraph]:
    return with_own_nodes(small_parties(holders), COUNTS[:holders])


def job(holders: int, method: str, rounds: int, *changes: Settings) -> JobSettings:
    model = {"model": {"rounds": rounds, "initial": {"method": method}}}
    return small_job(holders, {"precision": "float64"}, model, *changes)


@pytest.mark.cases(1)
@pytest.mark.parametrize("holders", [2, 3])
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_every_weight_equals_the_twins(method: str, rounds: int, holders: int) -> None:
    number = METHODS.index(method) + 2 * rounds + holders
    chosen: Settings = {
        "model": {
            "local": LOCALS[number % len(LOCALS)],
            "combine": {"strategy": STRATEGIES[number % len(STRATEGIES)], "masked": number % 2 == 0},
        },
        "train": {"class_weights": "balanced" if holders == 3 else "none"},
    }
    federation, twin = assert_twins(
        job(holders, method, rounds, dropout_everywhere(), chosen), parties(holders), steps=8
    )
    owners = [] if method == "individual" else ["A/W_own", "B/W_own"]
    assert [name for name in weights_of(twin) if name.endswith("W_own")] == owners
    assert federation.label_holder.logits.shape == (NODES, CLASSES)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("method", "extra"),
    [
        ("secure-sum", {"model": {"rounds": 4, "local": {"hops": 1}, "combine": {"strategy": "degree-weighted"}}}),
        ("collaborative", {"model": {"rounds": 3, "local": {"model": "custom"}}}),
        ("collaborative", {"model": {"combine": {"strategy": "concat"}, "initial": {"weight_decay": 0.1}}}),
        ("individual", {"model": {"rounds": 3, "combine": {"strategy": "regression"}}}),
    ],
)
def test_more_rounds_concat_and_an_own_model(method: str, extra: Settings) -> None:
    settings = job(3, method, 1, dropout_everywhere(), extra)
    custom = OwnModel if vertical(settings).model.local.model == "custom" else None
    assert_twins(settings, parties(3), custom, steps=6)


@pytest.mark.parametrize("method", ["collaborative"])
def test_sparse_features_weights_and_a_holder_with_edges_between_own_nodes_only(method: str) -> None:
    combine: Settings = {"model": {"combine": {"strategy": "degree-weighted"}}}
    graphs = with_own_nodes(odd_parties(), (6, 4, 3))
    assert_twins(job(3, method, 2, dropout_everywhere(), combine), graphs, steps=6)


def test_by_hand_with_dense_matrices() -> None:
    """Two rounds of one appnp hop: common rows go on with the mean, own rows with the holder's t."""
    local = {"model": "appnp", "hops": 1, "normalize": False, "teleport": 0.25}
    settings = job(2, "individual", 2, {"model": {"local": local, "server": {"layers": 0}}})
    graphs = parties(2)
    federation = federate(settings, graphs, 0)
    weights = federation.weights()
    h0 = {graph.party: graph.features.double() @ weights[f"{graph.party}/W"] for graph in graphs}
    inputs = dict(h0)
    for _ in range(2):
        t = {}
        for graph in graphs:
            matrix = torch.eye(graph.num_nodes, dtype=torch.float64) / 2
            source, target = graph.edge_index
            matrix.index_put_((target, source), torch.ones(1).double(), accumulate=True)
            matrix /= matrix.sum(dim=1, keepdim=True)
            t[graph.party] = 0.75 * matrix @ inputs[graph.party] + 0.25 * h0[graph.party]
        mean = (t["A"][:NODES] + t["B"][:NODES]) / 2
        inputs = {party: torch.cat([mean, own[NODES:]]) for party, own in t.items()}
    expected = mean @ weights["A/head.output.weight"].T + weights["A/head.output.bias"]
    assert float((federation.label_holder.logits - expected).abs().max()) < 1e-6


# Limiting cases


@pytest.mark.parametrize("method", ["secure-sum"])
def test_own_nodes_without_edges_change_nothing(method: str) -> None:
    settings = job(2, method, 2, {"model": {"combine": {"strategy": "degree-weighted"}}})
    plain = small_parties(2)
    lonely = [replace(grown, edge_index=graph.edge_index) for grown, graph in zip(parties(2), plain, strict=True)]
    for one, other in zip(
        shared_weights(federate(settings, plain, 5)), shared_weights(federate(settings, lonely, 5)), strict=True
    ):
        assert float((one - other).abs().max()) < 1e-6


def shared_weights(federation: Federation) -> list[Tensor]:
    found = federation.weights()
    return [found[name] for name in sorted(found) if not name.endswith("W_own")]


# What others learn of them: nothing


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("masked", [True, False])
def test_every_message_is_about_the_common_nodes(method: str, masked: bool) -> None:
    combine: Settings = {"model": {"combine": {"strategy": "degree-weighted", "masked": masked}}}
    settings = job(3, method, 2, combine)
    # Own nodes' features need more fractional bits than any common node's: these are public, so they may not count.
    plain = [replace(graph, features=graph.features.round()) for graph in small_parties(3)]
    grown = with_own_nodes(plain, COUNTS)
    with_them, without = federate(settings, grown, 2), federate(settings, plain, 2)
    for party in ("A", "B", "C", SERVER):
        assert forms(with_them, party) == forms(without, party)
        for message in with_them.transcripts[party]:
            assert message.tensor.shape[:1] not in [(graph.num_nodes,) for graph in grown[:2]]
            if message.tag.kind is Kind.HELLO and message.sender != SERVER:
                assert Hello.model_validate_json(tensor_text(message.tensor)).nodes == NODES


def forms(federation: Federation, party: PartyId) -> Counter[tuple[object, ...]]:
    """All that can be seen of messages but their content; but hellos whole, save for what is drawn in each session.

    The dealer sends correlations ahead; how many of those for products that never came are read before the end is
    chance, so only those count whose product was made.
    """
    seen = federation.transcripts[party]
    made = {(message.tag.step, message.tag.round) for message in seen if message.tag.kind is Kind.MASKED_OPERAND}
    return Counter(
        (
            message.sender,
            message.receiver,
            message.tag,
            message.tensor.dtype,
            tuple(message.tensor.shape),
            re.sub('"nonce":"[0-9a-f]{32}"', "", tensor_text(message.tensor)) if message.tag.kind is Kind.HELLO else "",
        )
        for message in seen
        if message.tag.kind is not Kind.CORRELATION or (message.tag.step, message.tag.round) in made
    )


def test_their_features_and_edges_matter_and_their_labels_do_not() -> None:
    settings = job(2, "collaborative", 2)
    graphs = parties(2)
    logits = federate(settings, graphs, 3).label_holder.logits
    features = graphs[1].features.clone()
    features[NODES + 1] += 1
    other = federate(settings, [graphs[0], replace(graphs[1], features=features)], 3).label_holder.logits
    assert float((other - logits).abs().max()) > 1e-4
    fewer = replace(graphs[1], edge_index=graphs[1].edge_index[:, :-1])
    other = federate(settings, [graphs[0], fewer], 3).label_holder.logits
    assert float((other - logits).abs().max()) > 1e-5
    labels = graphs[0].labels
    assert labels is not None
    changed = torch.cat([labels[:NODES], (labels[NODES:] + 1) % CLASSES])
    same = federate(settings, [replace(graphs[0], labels=changed), graphs[1]], 3).label_holder.logits
    assert float((same - logits).abs().max()) < 1e-6


# Whole runs


def test_a_run_and_its_resumption(tmp_path: Path) -> None:
    settings = small_job(2, dropout_everywhere("float32"), {"model": {"rounds": 2}, "train": {"epochs": 6}})
    whole = train(settings, tmp_path / "whole", parties=parties(2))
    with cut_at(4), pytest.raises(CutError):
        train(settings, tmp_path / "cut", parties=parties(2))
    assert_same_run(whole, resume_run(tmp_path / "cut"))
    assert whole.summary["nodes"] == NODES
    assert len(predict(whole.path).classes) == NODES
    twin = fit(PlainNetwork(settings, parties(2), "A"))
    for name in ("best_epoch", "val_accuracy", "test_accuracy", "test_f1"):
        assert whole.summary[name] == pytest.approx(twin.summary[name]), name


# Baselines


def test_isolated_trains_on_all_its_nodes_and_is_judged_on_the_common_ones() -> None:
    settings = small_job(2, {"train": {"epochs": 3}})
    graphs = parties(2)
    labels, train_mask, test_mask = graphs[0].labels, graphs[0].train_mask, graphs[0].test_mask
    assert labels is not None
    assert train_mask is not None
    assert test_mask is not None
    assert bool(train_mask[NODES:].any())
    assert bool(test_mask[NODES:].any())

    def outcome(changed: Tensor, party: str = "A") -> list[object]:
        result = isolated(settings, [replace(graphs[0], labels=changed), graphs[1]], party)
        return [result.metrics[-1]["loss"], result.summary["test_accuracy"], result.summary["test_f1"]]

    before = outcome(labels)
    assert outcome(torch.where(train_mask & (torch.arange(len(labels)) >= NODES), 0, labels)) != before
    assert outcome(torch.where(test_mask & (torch.arange(len(labels)) >= NODES), 0, labels)) == before
    lent = outcome(labels, "B")
    assert outcome(torch.cat([labels[:NODES], 0 * labels[NODES:]]), "B") == lent
    without = isolated(settings, [graphs[0], graphs[1].common_part()], "B").metrics[-1]["loss"]
    assert without != lent[0], "B's own nodes took no part"


# Predicting for a grown graph


def grown_parties() -> list[PartyGraph]:
    """More common nodes than the training had, and other own ones, with features in finer steps."""
    data = synthetic_data(NODES + 30, FEATURES, CLASSES, seed=9)
    graphs = split_vertically(data, names=["A", "B"], label_holder="A", seed=0)
    return with_own_nodes(graphs, (11, 3), seed=5)


@pytest.mark.cases(1)
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_a_trained_model_predicts_a_grown_graph(method: str, rounds: int) -> None:
    """The weights do not depend on the number of nodes, nor on how many bits the new features need."""
    settings = job(2, method, rounds, {"model": {"combine": {"strategy": "degree-weighted"}}})
    trained_on = [replace(graph, features=graph.features.round()) for graph in parties(2)]
    twin = PlainNetwork(settings, trained_on, "A")
    for epoch in range(1, 7):
        twin.train_step(epoch)
    weights = {party: role.model.weights() for party, role in federate(settings, trained_on, 6).roles.items()}
    grown = grown_parties()
    roles = predicted(settings, grown, weights)
    logits = roles["A"].logits  # type: ignore[attr-defined]
    assert logits.shape == (NODES + 30, CLASSES)
    on_grown = PlainNetwork(settings, grown, "A")
    with torch.no_grad():
        for name, weight in weights_of(on_grown).items():
            weight.copy_(weights_of(twin)[name])
    assert float((logits - on_grown.infer()).abs().max()) < 1e-4


def predicted(
    settings: JobSettings, graphs: Sequence[PartyGraph], weights: Mapping[PartyId, Mapping[str, Tensor]]
) -> dict[PartyId, Role]:
    """What ``predict`` does at every party."""
    by_name = {graph.party: graph for graph in graphs}

    def program(link: Link) -> Role:
        role = build_role(settings, link, by_name)
        try:
            role.infer_only()
            role.setup([])
            role.model.load_weights(weights[link.party])
            infer(role, 0)
        finally:
            role.close()
        return role

    programs: dict[PartyId, Callable[[Link], Role]] = dict.fromkeys([*settings.data.names, SERVER], program)
    return run_threads(programs, 10, lambda: None)


def test_nodes_that_left_other_holders_have_no_features_in_a_model_of_common_nodes_alone() -> None:
    settings, graphs = small_job(2), parties(2)
    with_some, without = (
        {party: role.model.weights() for party, role in federate(settings, each, 1).roles.items()}
        for each in (graphs, small_parties(2))
    )
    predicted(settings, small_parties(2), with_some)
    zeros = {
        party: {**weights, "initial.own_weight": torch.zeros_like(with_some[party]["initial.own_weight"])}
        for party, weights in without.items()
        if party != SERVER
    }
    found, expected = (
        predicted(settings, graphs, each)["A"].logits  # type: ignore[attr-defined]
        for each in (without, {**without, **zeros})
    )
    assert torch.equal(found, expected)
    assert not torch.equal(found, predicted(settings, graphs, with_some)["A"].logits)  # type: ignore[attr-defined]


def test_scores_are_of_the_common_nodes() -> None:
    graphs = parties(2)
    federation = federate(job(2, "individual", 1), graphs, 2)
    labels, test_mask = graphs[0].labels, graphs[0].test_mask
    assert labels is not None
    assert test_mask is not None
    scores = federation.label_holder.scores()
    correct = federation.label_holder.logits.argmax(dim=1) == labels[:NODES]
    assert scores.values["test_accuracy"] == float(correct[test_mask[:NODES]].double().mean())
