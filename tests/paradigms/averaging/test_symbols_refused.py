"""What jobs of symbols refuse: settings, data, what a hostile bank sends; and what is said beforehand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.symbols.exchange import NONE, check_symbols_of, pairs_across
from veilgraph_averaging.symbols.roles import law_of
from veilgraph_averaging.symbols.worth import trained_counterparts, worth

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.symbol_jobs import (
    ALL,
    publisher_for,
    session,
    symbol_content,
    symbol_job,
    symbols_sent,
)
from tests.paradigms.union.banks import Banks, banks, by_name, unlabelled
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.costs import PartySizes, size_of
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.limits import LimitSettings, refusal, revelations
from veilgraph.protocol.paradigm import paradigm_of

# Refused


def wholly_apart(graph: PartyGraph) -> PartyGraph:
    """Where no edge joins others' nodes."""
    return graph.with_edges((graph.edge_index < graph.common).all(0))


def refuses(*changes: Settings) -> str:
    with pytest.raises(ConfigError) as caught:
        symbol_job(*changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"averaging": {"privacy": {"epsilon_total": 2}}}, "averaging.privacy"),
        ({"label_privacy": None}, "label_privacy.epsilon"),
        ({"label_privacy": {"epsilon": 0.49}}, "label_privacy.epsilon=0.49"),
        ({"averaging": {"symbols": {"untrained": 1}}}, "averaging.symbols.untrained=1"),
        ({"averaging": {"task": {"name": "links"}}}, "averaging.task.name"),
        ({"data": {"feature_scaling": "standard"}}, "data.feature_scaling"),
        ({"model": {"dim": 8}}, "model with"),
        ({"train": {"epochs": 2}}, "train with"),
        ({"train": {"weight_decay": 0.1}}, "train with"),
        ({"averaging": {"rule": {"name": "fedsgd"}}}, "averaging.rule"),
        ({"averaging": {"threshold": 2}}, "averaging.threshold"),
        ({"averaging": {"patience_s": 7}}, "averaging.patience_s"),
        ({"averaging": {"local_epochs": 2}}, "averaging.local_epochs"),
        ({"averaging": {"personal": ["input"]}}, "averaging.personal"),
        ({"averaging": {"at_home": {}}}, "averaging.at_home"),
    ],
    ids=str,
)
def test_what_would_be_ignored_or_does_not_go_together_is_refused_in_one_error(change: Settings, named: str) -> None:
    assert named in refuses(change)


def test_a_short_timeout_is_taken_where_nobody_waits_for_a_sum() -> None:
    assert symbol_job({"timeout_s": 30}).timeout_s == 30


def test_half_an_epsilon_is_taken() -> None:
    assert symbol_job({"label_privacy": {"epsilon": 0.5}}).label_privacy is not None


def relabelled(found: Banks, classes: int) -> Banks:
    return [replace(graph, num_classes=classes) for graph in found[0]], found[1]


def test_more_than_two_classes_are_for_training_nodes_alone() -> None:
    found = relabelled(banks(2, accounts=12), 3)
    job = symbol_job(holders=("A", "B"))
    session(job, found)
    with refused(ConfigError, code="classes", key="averaging.symbols", value=3):
        session(symbol_job(ALL, holders=("A", "B")), found)
    sizes = {graph.party: size_of(graph, job.inputs, found[1][graph.party]) for graph in found[0]}
    assert paradigm_of(job).session.costs(job, 0, sizes) is not None
    with refused(ConfigError, code="classes", key="averaging.symbols", value=3):  # veilgraph check, beforehand
        paradigm_of(job).session.costs(symbol_job(ALL, holders=("A", "B")), 0, sizes)
    with refused(ConfigError, code="classes", value=256):
        law_of(job, 256)


def test_a_bank_without_edges_across_or_labels_takes_no_part() -> None:
    found = banks(2, accounts=12)
    job = symbol_job(holders=("A", "B"))
    apart = [wholly_apart(graph) if graph.party == "A" else graph for graph in found[0]], found[1]
    with refused(ConfigError, code="refused") as caught:
        session(job, apart)
    assert "A refuses the job: averaging.symbols: it has no edge" in str(caught.value)
    no_labels = unlabelled(found, "B")
    with refused(ConfigError, code="refused") as caught:
        session(job, no_labels, {"B": publisher_for(job, found, "B")})
    assert "B refuses the job: averaging.symbols: it has no labels" in str(caught.value)


def test_a_bank_whose_budget_is_used_up_says_so_before_anything_is_listed() -> None:
    found, job = banks(2, accounts=12), symbol_job(holders=("A", "B"))

    class Spent(LabelPublisher):
        def refusal(self) -> str:
            return "its budget is used up"

    graph = by_name(found)["A"].common_part()
    assert graph.labels is not None
    assert graph.train_mask is not None
    door = Spent(LabelResponse(2.0, 2), graph.labels[graph.train_mask], None, fixed_secrets("a"))
    with refused(ConfigError, code="refused") as caught:
        session(job, found, {"A": door})
    assert "A refuses the job: its budget is used up" in str(caught.value)


def test_nobody_pays_before_edges_are_compared() -> None:
    """A list that is too long ends the session, and no symbol was drawn."""
    found, job, drawn = banks(2, accounts=12), symbol_job(holders=("A", "B")), list[int]()

    class Counting(LabelPublisher):
        def perturbed(self) -> Tensor:
            drawn.append(1)
            return super().perturbed()

    graph = by_name(found)["A"].common_part()
    assert graph.labels is not None
    assert graph.train_mask is not None
    door = Counting(LabelResponse(2.0, 2), graph.labels[graph.train_mask], None, fixed_secrets("a"))

    def longer(to: str, tag: Any, tensor: Tensor) -> Tensor:
        return tensor.repeat(9, 1) if tag.kind == Kind.NODE_LIST else tensor

    with refused(ProtocolError, code="edges", party="B"):
        session(job, found, {"A": door}, {"B": longer})
    assert not drawn


@pytest.mark.parametrize(
    ("answers", "change"),
    [
        ("trained", lambda told: torch.full_like(told, 2)),
        ("trained", lambda told: torch.full_like(told, 254)),
        ("all", lambda told: torch.full_like(told, NONE)),
    ],
    ids=["no class", "no class, large", "no symbol where all answer"],
)
def test_a_byte_that_is_no_symbol_is_refused(answers: str, change: Any) -> None:
    found = banks(2, accounts=30)
    job = symbol_job({"averaging": {"symbols": {"answers": answers}}}, holders=("A", "B"))

    def hostile(to: str, tag: Any, tensor: Tensor) -> Tensor:
        return change(tensor) if tag.kind == Kind.PERTURBED_LABELS else tensor

    with refused(ProtocolError, code="symbols", party="B"):
        session(job, found, hostile={"B": hostile})


@pytest.mark.parametrize(
    "change", [lambda told: told[1:], lambda told: torch.cat([told, told[:1]])], ids=["less", "more"]
)
def test_one_symbol_for_each_edge_is_taken_and_no_other_number(change: Any) -> None:
    found, job = banks(2, accounts=30), symbol_job(holders=("A", "B"))

    def hostile(to: str, tag: Any, tensor: Tensor) -> Tensor:
        return change(tensor) if tag.kind == Kind.PERTURBED_LABELS else tensor

    with refused(ProtocolError, code="shape", party="B"):
        session(job, found, hostile={"B": hostile})


def test_two_symbols_of_one_node_are_refused() -> None:
    nodes = torch.tensor([4, 5, 4])
    check_symbols_of("B", torch.tensor([1, 0, 1], dtype=torch.uint8), nodes, 2, all_answer=True)
    with refused(ProtocolError, code="symbols", party="B"):
        check_symbols_of("B", torch.tensor([1, 0, 0], dtype=torch.uint8), nodes, 2, all_answer=True)


def test_a_peer_that_lists_edges_that_it_guesses_is_sent_no_symbol_for_them() -> None:
    """B claims an edge to each of A's accounts: A sends bytes for those that it has as well."""
    found = banks(2, accounts=20)
    graphs, ids = found
    honest = by_name(found)["B"]
    others = [f"A/{name}" for name in ids["A"][: by_name(found)["A"].common]]
    names = [*ids["B"][: honest.common], *others]
    own = torch.arange(honest.common)
    every = torch.stack(
        [own.repeat(len(others)), honest.common + torch.arange(len(others)).repeat_interleave(len(own))]
    )
    assert honest.labels is not None
    unknown = -torch.ones(len(others), dtype=torch.int64)
    nowhere = torch.zeros(len(others), dtype=torch.bool)
    whole = replace(
        honest,
        features=torch.cat([honest.features[: honest.common], torch.zeros(len(others), honest.num_features)]),
        edge_index=every,
        labels=torch.cat([honest.labels[: honest.common], unknown]),
        train_mask=torch.cat([own % 2 == 0, nowhere]),
        val_mask=torch.cat([own % 2 == 1, nowhere]),
        test_mask=None,
    )
    liar = ([graph if graph.party == "A" else whole for graph in graphs], {**ids, "B": names})
    job = symbol_job(holders=("A", "B"))
    _, honestly = session(job, found)
    _, messages = session(job, liar)
    pairs = pairs_across(by_name(found)["A"], ids["A"], ["A", "B"])["B"].shape[1]
    assert len(symbols_sent(messages, "A", "B")) == len(symbols_sent(honestly, "A", "B")) == pairs
    assert len(every[0]) > 4 * pairs


# Said beforehand


def test_what_symbols_are_worth_follows_from_public_sizes() -> None:
    sizes = {
        "A": PartySizes(3, 10, training=50, classes=2, nodes=100, shared={"B": 200}),
        "B": PartySizes(3, 10, training=100, classes=2, nodes=400, shared={"A": 200}),
    }
    assert trained_counterparts(sizes) == pytest.approx((200 * 0.25 + 200 * 0.5) / 500)
    assert trained_counterparts({"A": PartySizes(3, 10)}) is None
    p, q = 1 / (1 + 2.718281828459045**-2), 1 / (1 + 2.718281828459045**2)
    assert worth(1.5, 2.0, 2) == pytest.approx(1.5 * (p - q) ** 2, rel=1e-3)


def test_a_job_whose_symbols_are_too_few_is_refused_unless_told() -> None:
    found = banks(2, accounts=40)
    sparse = []
    for graph in found[0]:
        across = (graph.edge_index >= graph.common).any(0)
        sparse.append(graph.with_edges(~across | (across.cumsum(0) == 1)))
    for job, weak in ((symbol_job(holders=("A", "B")), True), (
        symbol_job({"averaging": {"symbols": {"allow_weak": False}}}, holders=("A", "B")), False)):  # fmt: skip
        paradigm_of(job).data.accept(job, *found)
        if weak:
            paradigm_of(job).data.accept(job, sparse, found[1])
        else:
            with refused(ConfigError, code="too-weak", key="averaging.symbols"):
                paradigm_of(job).data.accept(job, sparse, found[1])
    sizes = {graph.party: size_of(graph, job.inputs, found[1][graph.party]) for graph in sparse}
    (said,) = paradigm_of(job).guarantee.expected_gain(job, None, sizes)
    assert "too few" in said
    assert "averaging.privacy" in said
    assert "too few" in paradigm_of(job).guarantee.too_weak(job, sizes)


def test_costs_are_what_is_sent_where_all_edges_are_confirmed() -> None:
    found = banks(3, accounts=30)
    job = symbol_job()
    sizes = {graph.party: size_of(graph, job.inputs, found[1][graph.party]) for graph in found[0]}
    costs = paradigm_of(job).session.costs(job, 0, sizes)
    _, messages = session(job, found)
    sent = dict.fromkeys(job.data.names, 0)
    for one in messages:
        if one.tag.kind in (Kind.NODE_LIST, Kind.PERTURBED_LABELS):
            sent[one.sender] += one.tensor.numel()
    assert costs is not None
    for party, count in sent.items():
        assert 0 < count < costs.sent()[party]


def test_limits_name_what_is_revealed_and_bound_it() -> None:
    job = symbol_job()
    assert set(revelations(job)) == {"confirmed-edges", "counterpart-symbols", "trained-counterparts"}
    assert set(revelations(symbol_job(ALL))) == {"confirmed-edges", "counterpart-symbols"}
    names = ("confirmed-edges", "trained-counterparts")
    about: Any = {"max_epsilon": 2.0, "epsilon_unit": "label", "epsilon_neighbours": "replacement"}
    by_label = LimitSettings(leakage=names, **about)
    assert refusal(by_label, job, "A") is None, "symbols come within max_epsilon"
    assert refusal(by_label.model_copy(update={"max_epsilon": 1.9}), job, "A") is not None
    assert refusal(LimitSettings(leakage=names), job, "A") is not None
    assert refusal(LimitSettings(leakage=("confirmed-edges",), **about), job, "A")
    assert refusal(LimitSettings(leakage=(*names, "counterpart-symbols")), job, "A") is None


def test_a_stored_job_reads_back_the_same() -> None:
    job = symbol_job()
    assert parse_job(job.model_dump(mode="json")).hash() == job.hash()
    assert parse_job(symbol_content()).hash() == job.hash()
    assert SERVER not in job.data.names
