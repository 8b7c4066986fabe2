"""What nodes perturbed crosses the wire as it was released, once, and nothing else does."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_node_dp.mechanisms import FeatureMechanism, LocalLaplace, MultiBit, to_wire
from veilgraph_node_dp.publisher import LocalPublisher
from veilgraph_node_dp.release import unpacked
from veilgraph_node_dp.released import ReleasedLabels
from veilgraph_node_dp.settings import node_dp

from tests.errors import refused
from tests.roles.federation import CLASSES, fixed_secrets, with_own_nodes
from tests.roles.local_parties import (
    MECHANISMS,
    PRIVATE_LABELS,
    exchange,
    local_job,
    local_parties,
    publisher_for,
)
from veilgraph.core.errors import BudgetSpent, ConfigError, ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.features import is_sparse
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.ledger import Ledger
from veilgraph.protocol.job import JobSettings

SPARSE = MultiBit(4.0, 0.0, 1.0, 40, sampled=2)
DENSE = MultiBit(4.0, 0.0, 1.0, 6, sampled=2)
ALL = MultiBit(4.0, 0.0, 1.0, 6, 6)
NOISE = LocalLaplace(4.0, 0.0, 1.0, 6)


def released(mechanism: FeatureMechanism, nodes: int = 5) -> Tensor:
    x = torch.rand(nodes, mechanism.features, generator=torch.Generator().manual_seed(nodes))
    return mechanism.release(x, fixed_secrets("wire"))


# On the wire


@pytest.mark.parametrize("nodes", [1, 5])
@pytest.mark.parametrize(
    ("mechanism", "shape", "dtype"),
    [
        (SPARSE, (2,), torch.int64),
        (DENSE, (6,), torch.uint8),
        (ALL, (6,), torch.uint8),
        (NOISE, (6,), torch.float32),
        (MultiBit(1.0, 0.0, 1.0, 1), (1,), torch.uint8),
    ],
    ids=["sparse", "dense", "one-bit", "laplace", "one column"],
)
def test_what_is_packed_is_unpacked(
    mechanism: FeatureMechanism, shape: tuple[int, ...], dtype: torch.dtype, nodes: int
) -> None:
    before = released(mechanism, nodes)
    wire = to_wire(before)
    assert (tuple(wire.shape), wire.dtype) == ((nodes, *shape), dtype)
    after = unpacked(wire, nodes, mechanism)
    assert after.dtype == torch.float32
    assert is_sparse(after) == (mechanism is SPARSE)
    assert torch.equal(after.to_dense(), before.to_dense().to(torch.float32))


def changed(mechanism: FeatureMechanism, row: int, column: int, value: float) -> Tensor:
    wire = to_wire(released(mechanism)).clone()
    wire[row, column] = value
    return wire


MALFORMED: dict[str, tuple[FeatureMechanism, Callable[[], Tensor]]] = {
    "a row too few": (SPARSE, lambda: to_wire(released(SPARSE, 4))),
    "one dimension": (SPARSE, lambda: torch.ones(5, dtype=torch.int64)),
    "a feature too many": (SPARSE, lambda: torch.tensor([[1, 2, 3]]).repeat(5, 1)),
    "no feature": (SPARSE, lambda: torch.ones(5, 0, dtype=torch.int64)),
    "column 0": (SPARSE, lambda: changed(SPARSE, 3, 0, 0)),
    "column d + 1": (SPARSE, lambda: changed(SPARSE, 3, 1, -41)),
    "a column twice": (SPARSE, lambda: torch.tensor([[7, -7]]).repeat(5, 1)),
    "falling columns": (SPARSE, lambda: torch.tensor([[7, 3]]).repeat(5, 1)),
    "the least integer": (SPARSE, lambda: changed(SPARSE, 0, 0, -(2**63))),
    "noise for bits": (SPARSE, lambda: torch.rand(5, 40)),
    "doubles for bits": (DENSE, lambda: torch.rand(5, 6).double()),
    "a column too few": (DENSE, lambda: to_wire(released(DENSE))[:, 1:]),
    "a value of 3": (DENSE, lambda: changed(DENSE, 2, 2, 3)),
    "three bits of two": (DENSE, lambda: torch.full((5, 6), 2, dtype=torch.uint8)),
    "a bit that is missing": (ALL, lambda: changed(ALL, 1, 1, 1)),
    "bits for noise": (NOISE, lambda: to_wire(released(ALL))),
    "sampled bits for noise": (NOISE, lambda: to_wire(released(SPARSE))),
    "doubles for noise": (NOISE, lambda: released(NOISE).double()),
    "NaN": (NOISE, lambda: changed(NOISE, 4, 5, float("nan"))),
    "infinity": (NOISE, lambda: changed(NOISE, 0, 0, float("-inf"))),
    "truth values": (ALL, lambda: torch.ones(5, 6, dtype=torch.bool)),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_a_mechanism_cannot_have_released_is_refused(case: str) -> None:
    mechanism, make = MALFORMED[case]
    with refused(ProtocolError, code="released-features"):
        unpacked(make(), 5, mechanism)


IMPOSSIBLE = {
    "a row too few": [[1, 1], [2, 2]],
    "no such class": [[1, 1], [2, 2], [4, 1]],
    "no such split": [[1, 1], [2, 2], [3, 3]],
    "a label in no split": [[1, 1], [2, 2], [3, 0]],
    "a split without label": [[1, 1], [2, 2], [0, 2]],
    "no validation": [[1, 1], [2, 1], [0, 0]],
    "no training": [[1, 2], [2, 2], [0, 0]],
    "nothing": [[0, 0], [0, 0], [0, 0]],
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_labels_that_cannot_have_been_released_are_refused(case: str) -> None:
    with refused(ProtocolError, code="released-labels"):
        ReleasedLabels.unpacked(torch.tensor(IMPOSSIBLE[case], dtype=torch.uint8), 3, 3)
    with refused(ProtocolError, code="released-labels"):
        ReleasedLabels.unpacked(torch.tensor([[1.0, 1], [2, 2], [0, 0]]), 3, 3)


# What is sent


JOBS: dict[str, JobSettings] = {
    **{name: local_job(3, **mechanism) for name, mechanism in MECHANISMS.items()},
    "two holders": local_job(2),
    "private labels": local_job(3, PRIVATE_LABELS),
    "the last holder learns": local_job(3, {"data": {"label_holder": "C"}}, PRIVATE_LABELS),
}


def own_nodes(settings: JobSettings) -> list[PartyGraph]:
    """Every holder knows nodes that the others do not, which no release is of."""
    return with_own_nodes(local_parties(settings, own=True), (5, 4, 3)[: len(settings.data.names)])


@pytest.mark.parametrize("name", JOBS)
def test_what_leaves_a_holder_is_what_its_mechanism_released_and_hellos(name: str) -> None:
    settings = JOBS[name]
    graphs = {graph.party: graph for graph in own_nodes(settings)}
    graphs = {party: in_range(graph) for party, graph in graphs.items()}
    found = exchange(settings, list(graphs.values()))
    learner, private = settings.data.label_party, node_dp(settings).release.labels
    for party in settings.duties.releasing:
        publisher = publisher_for(settings, graphs[party])
        assert publisher is not None
        common = graphs[party].common_part()
        expected = {Kind.PERTURBED_FEATURES: publisher.features(common.features)}
        if private is not None and private.holder == party:
            assert common.labels is not None
            assert common.train_mask is not None
            assert common.val_mask is not None
            known = common.train_mask | common.val_mask
            values = torch.full_like(common.labels, -1)
            values[known] = publisher.labels(common.labels[known])
            expected[Kind.PERTURBED_LABELS] = ReleasedLabels(
                values, common.train_mask, common.val_mask, CLASSES
            ).packed()
        sent = [message for message in found.sent(party) if message.tag.kind is not Kind.HELLO]
        assert {message.tag.kind for message in sent} == expected.keys()
        assert len(sent) == len(expected)
        for message in sent:
            assert message.receiver == learner
            assert torch.equal(message.tensor, expected[message.tag.kind])
    for party in (learner, SERVER):
        assert {message.tag.kind for message in found.sent(party)} == {Kind.HELLO}
    got = found.releases[learner]
    assert got.is_new
    assert got.number == 1
    assert got.columns == {party: graphs[party].num_features for party in settings.duties.releasing}
    assert found.releases[SERVER].tensors == {}


def in_range(graph: PartyGraph) -> PartyGraph:
    return replace(graph, features=graph.features.to_dense().clamp(-10, 10))


def test_a_nodes_true_features_show_in_the_release_alone() -> None:
    """Another value in the range, in a column that was not sampled, changes no byte of any message."""
    settings = JOBS["multi-bit, sparse"]
    graphs = local_parties(settings)
    before = exchange(settings, graphs)
    (wire,) = [one.tensor for one in before.sent("B") if one.tag.kind is Kind.PERTURBED_FEATURES]
    node = 17
    sampled = int(wire[node].abs()) - 1
    features = graphs[1].features.to_dense().clone()
    others = [column for column in range(features.shape[1]) if column != sampled]
    features[node, others] = torch.linspace(-10, 10, len(others))
    after = exchange(settings, [graphs[0], replace(graphs[1], features=features), graphs[2]])
    for party in (*settings.data.names, SERVER):
        ours, theirs = before.sent(party), after.sent(party)
        key = {(one.receiver, one.tag.kind, one.tag.round): one.tensor for one in theirs}
        assert len(ours) == len(theirs)
        for message in ours:
            assert torch.equal(message.tensor, key[message.receiver, message.tag.kind, message.tag.round])


def test_the_learner_states_no_columns_and_nobody_but_who_releases_labels_classes() -> None:
    settings = JOBS["private labels"]
    found = exchange(settings, local_parties(settings, own=True))
    for party in (*settings.data.names, SERVER):
        for message in found.sent(party):
            if message.tag.kind is Kind.HELLO:
                text = bytes(message.tensor.tolist()).decode()
                assert ('"features":0' in text) == (party not in settings.duties.releasing)
                assert ('"classes":0' in text) == (party != "B")


# One release


def test_a_holder_without_room_stops_all_before_anything_is_sent(tmp_path: Path) -> None:
    settings = JOBS["private labels"]
    graphs = local_parties(settings)
    unlimited = publisher_for(settings, graphs[1])
    assert unlimited is not None
    with Ledger.open(tmp_path / "ledger.jsonl", 1e-12, 9.0, job=settings.hash()) as ledger:
        publisher = LocalPublisher(unlimited.mechanism, unlimited.response, ledger, fixed_secrets("limited"))
        assert publisher.room() == 1, "a release is 4 of features and 2 of labels"
        exchange(settings, graphs, publishers={"B": publisher})
        assert publisher.room() == 0
        with refused(BudgetSpent, party="B"):
            exchange(settings, graphs, publishers={"B": publisher})
        assert publisher.spent().releases == {"features": 1, "labels": 1}
        used = exchange(settings, graphs, dict.fromkeys("ABC", 1), {}, {"B": publisher})
        assert not used.releases["B"].is_new, "what was released may be used for ever"


def test_how_much_more_a_budget_has_room_for_is_not_told(tmp_path: Path) -> None:
    settings = JOBS["private labels"]
    graphs, told = local_parties(settings), set()
    unlimited = publisher_for(settings, graphs[1])
    assert unlimited is not None
    for budget, room in ((6.0, 1), (60.0, 10)):
        with Ledger.open(tmp_path / f"{room}.jsonl", 1e-12, budget, job=settings.hash()) as ledger:
            publisher = LocalPublisher(unlimited.mechanism, unlimited.response, ledger, fixed_secrets("limited"))
            assert publisher.room() == room
            sent = exchange(settings, graphs, publishers={"B": publisher}).sent("B")
            told |= {bytes(each.tensor.tolist()) for each in sent if each.tag.kind is Kind.HELLO}
    assert len(told) == 1


# What is refused


def is_refused(settings: JobSettings, graphs: list[PartyGraph], says: str) -> None:
    paid: list[PartyId] = []

    class Paying(LocalPublisher):
        def features(self, x: Tensor) -> Tensor:
            paid.append("somebody")
            return super().features(x)

    publishers: Mapping[PartyId, LocalPublisher] = {
        graph.party: Paying(found.mechanism, found.response, None, fixed_secrets("refused"))
        for graph in graphs
        if (found := publisher_for(settings, graph)) is not None
    }
    with pytest.raises(ConfigError, match=says) as caught:
        exchange(settings, graphs, publishers=publishers)
    assert "\n" not in str(caught.value)
    assert paid == []


@pytest.mark.parametrize(("column", "value"), [(0, 10.5), (3, -10.01), (15, 1e9)])
def test_a_value_outside_the_range_stops_all_before_anybody_pays_and_is_not_told(column: int, value: float) -> None:
    settings = JOBS["laplace"]
    graphs = local_parties(settings)
    features = graphs[2].features.to_dense().clone()
    features[4, column] = value
    graphs[2] = replace(graphs[2], features=features)
    is_refused(settings, graphs, "^C refuses the job: it has a feature outside the range from low=-10 to high=10 of")


def test_jobs_of_one_range_after_another_find_the_largest_value() -> None:
    """A bit each, which no ε counts. Tables withstand it where their party file declares what values there can be:
    ``test_own_row_tables`` has the same jobs."""
    graphs, low, high = local_parties(JOBS["laplace"]), 0.0, 10.0
    for _ in range(12):
        middle = (low + high) / 2
        try:
            exchange(local_job(3, **MECHANISMS["laplace"], high=middle), graphs)
            high = middle
        except ConfigError:
            low = middle
    largest = max(float(graph.features.to_dense().max()) for graph in graphs[1:])
    assert low <= largest <= high < low + 0.003


def unlabelled(graph: PartyGraph) -> PartyGraph:
    return replace(graph, labels=None, train_mask=None, val_mask=None, test_mask=None)


def test_labels_that_are_not_where_the_job_says() -> None:
    nowhere, privately, learner = local_job(3), local_job(3, PRIVATE_LABELS), r"data\.label_holder=A"
    without = [[unlabelled(graph) for graph in local_parties(job)] for job in (nowhere, privately)]
    is_refused(nowhere, without[0], rf"^A refuses the job: it has no labels, and {learner}")
    is_refused(privately, without[1], r"^B refuses the job: it has no labels, and release\.labels\.holder=B")
    at_both = [local_parties(nowhere)[0], *local_parties(privately)[1:]]
    is_refused(privately, at_both, "^A refuses the job: it has labels itself, and .* releases those")
