"""Jobs of symbols: as their twin, what is sent, sent again and paid for, and what is refused."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.symbols.exchange import NONE, Confirmed, exchange_symbols, pairs_across
from veilgraph_averaging.symbols.home import AtHome, own_job, own_model
from veilgraph_averaging.symbols.twin import PlainSymbols

from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.symbol_jobs import (
    ALL,
    publisher_for,
    session,
    symbol_job,
    symbols_sent,
)
from tests.paradigms.perturbed import paid
from tests.paradigms.union.banks import Banks, banks, by_name, predicted, without
from tests.privacy.lifetime.ledgers import RUN, ledger
from tests.roles.federation import Settings
from veilgraph.core.errors import RunError
from veilgraph.core.types import Kind
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.privacy.label_publisher import LabelPublisher
from veilgraph.privacy.ledger_files import Marks
from veilgraph.privacy.lifetime_ledger import Account, Budget, Lifetime
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import LifetimeCache
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store import ALONE
from veilgraph.runtime.store.run_directory import RunDirectory

KINDS = {"node_list", "perturbed_labels", "hello"}


def released(run: RunDirectory, found: Banks) -> dict[str, Tensor]:
    kept = {graph.party: run.party(graph.party).keeper.get("own_release") for graph in found[0]}
    return {party: record.tensors["labels"] for party, record in kept.items() if record is not None}


def forgetful(found: Banks, holder: str) -> Banks:
    """Where one holder lacks a third of its edges."""
    graphs, ids = found
    kept = [
        graph.with_edges(torch.arange(graph.num_edges) % 3 > 0) if graph.party == holder else graph for graph in graphs
    ]
    return kept, ids


# Whole jobs


@pytest.mark.usefixtures("from_memory", "few_trees", "short_own_models")
@pytest.mark.parametrize("changes", [(), (ALL,)], ids=["trained", "all"])
def test_a_job_is_its_twin_to_the_bit_and_later_predictions_cost_and_send_nothing(
    tmp_path: Path, changes: Sequence[Settings]
) -> None:
    found = without(banks(accounts=60), "B", "C")
    job = symbol_job(*changes)
    run = RunDirectory.open(train(job, tmp_path / "run", parties=found[0], ids=found[1]).path)
    twin = PlainSymbols(job, *found, released(run, found))
    for party in job.data.names:
        assert torch.equal(predicted(run, party), twin.logits(party).softmax(1)), party
        (entry,) = paid(run.path, party)
        assert entry["channel"] == "labels"
        rows = json.loads((run.party(party).path / "traffic.json").read_text())
        assert {row["kind"] for row in rows} == KINDS, "and nothing of features, edges, weights or scores"
        assert json.loads((run.party(party).path / ALONE).read_text())["judged_by"] == "auc"
    before = {party: predicted(run, party) for party in job.data.names}
    predict(run.path)
    resume(run.path)
    for party in job.data.names:
        assert torch.equal(predicted(run, party), before[party])
        assert len(paid(run.path, party)) == 1
        rows = json.loads((run.party(party).path / "prediction_traffic.json").read_text())
        assert {row["kind"] for row in rows} == {"hello"}


@pytest.mark.parametrize("answers", ["trained", "all"])
@pytest.mark.parametrize("seed", range(4))
def test_holders_count_what_the_twin_counts(answers: str, seed: int) -> None:
    """Over random books that differ, with edges one way and both ways, and nodes without any."""
    found = forgetful(banks(2 + seed % 2, accounts=4 + 9 * seed, directed=bool(seed % 2), seed=seed), "A")
    names = tuple(graph.party for graph in found[0])
    job = symbol_job({"averaging": {"symbols": {"answers": answers}}}, holders=names)
    symbols = {name: publisher_for(job, found, name).perturbed() for name in names}
    twin = PlainSymbols(job, *found, symbols)
    counts, messages = session(job, found)
    for party in names:
        assert torch.equal(counts[party], twin.counts(party))
    for sender, receiver in permutations(names, 2):
        told = symbols_sent(messages, sender, receiver)
        assert told.dtype == torch.uint8
        assert told.shape == symbols_sent(messages, receiver, sender).shape, "one for each edge that both have"
        pairs = pairs_across(by_name(found)[sender], found[1][sender], names)[receiver].shape[1]
        (listed,) = (one for one in messages if (one.sender, one.receiver, one.tag.kind) == (
            sender, receiver, Kind.NODE_LIST))  # fmt: skip
        assert len(listed.tensor) == padded(pairs)
        assert len(told) <= pairs
        assert bool((told != NONE).all()) or answers == "trained"
    assert {one.tag.kind for one in messages} == {Kind.HELLO, Kind.NODE_LIST, Kind.PERTURBED_LABELS}


def test_own_labels_stay_true_and_only_training_nodes_have_a_symbol() -> None:
    found = banks(2, accounts=40)
    job = symbol_job(holders=("A", "B"))
    _, messages = session(job, found)
    graph = by_name(found)["A"]
    names = {name: row for row, name in enumerate(found[1]["A"][: graph.common])}
    own, symbols = by_name(found)["A"].common_part(), publisher_for(job, found, "A").perturbed()
    assert own.train_mask is not None
    given = torch.full((graph.common,), NONE)
    given[own.train_mask] = symbols
    told = symbols_sent(messages, "A", "B")
    assert sorted(told.tolist()) == sorted(
        int(given[names[name.split("/")[1]]])
        for name in (
            f"A/{found[1]['A'][row]}"
            for pairs in [pairs_across(graph, found[1]["A"], ["A", "B"])["B"]]
            for row in pairs[0].tolist()
        )
    )


def test_symbols_that_say_nothing_are_left_out_and_others_help() -> None:
    """At a holder whose neighbours across are of its own class, and at one that is told chance."""
    (graph, *_), _ = banks(2, accounts=300, seed=3)
    own = graph.common_part()
    assert own.labels is not None
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(own.num_nodes, 2, generator=generator, dtype=torch.float64) * 0.1
    logits[:, 1] += 0.4 * own.labels
    home, law = AtHome.of(own, logits, 5), LabelResponse(2.0, 2).transition()
    test = own.test_mask
    assert test is not None

    def accuracy(found: Tensor) -> float:
        assert own.labels is not None
        return float((found.argmax(1) == own.labels)[test].double().mean())

    told = torch.nn.functional.one_hot(own.labels, 2).double() * 3
    without_symbols, with_symbols = home.mixed(told, law)
    assert accuracy(with_symbols) > accuracy(without_symbols) + 0.02
    noise = torch.zeros_like(told)
    alone, left_out = home.mixed(noise, law)
    assert torch.equal(alone, left_out)
    counted, _ = home.mixed(told, None)
    assert torch.equal(counted, without_symbols), "what the holder has by itself hangs on no symbol"


@pytest.mark.usefixtures("short_own_models")
def test_own_models_hang_on_nothing_of_others() -> None:
    (graph, *_), ids = banks(2, accounts=40)
    other = replace(graph, features=graph.features.clone())
    other.features[graph.common :] = 7.0
    assert torch.equal(own_model(graph, ids["A"], 5).output, own_model(other, ids["A"], 5).output)


@pytest.mark.parametrize("directed", [True, False])
def test_own_models_are_of_the_seed_and_of_edges_as_they_go(directed: bool) -> None:
    graph = banks(2, accounts=20, directed=directed)[0][0]
    job = own_job(graph, 17)
    assert (job.seed, job.model.directed) == (17, directed)
    assert own_job(replace(graph, party="others"), 17).data.label_party == "others"


# What is kept, and paid for


def test_symbols_for_life_are_sent_again_and_those_of_all_are_another_release(tmp_path: Path) -> None:
    lifetime, ids, label = ledger(tmp_path / "ledger", Budget(100.0, 1e-4)), ["c1", "c2", "c3"], torch.tensor([0, 1, 0])

    def told(labels: Tensor, others: int | None, snapshot: str = "") -> Tensor:
        cache = LifetimeCache(
            Account(lifetime, lifetime.keys(ids), None, RUN, "job"), lifetime.each_key(ids), snapshot=snapshot
        )
        source = fixed_secrets("life", others, snapshot)
        return LabelPublisher(LabelResponse(2.0, 2), labels, None, source, cache, others).perturbed()

    first = told(label, None)
    assert torch.equal(told(1 - label, None), first), "whatever has become of the labels"
    assert lifetime.total() == pytest.approx(2.0)
    told(label, 0)
    assert lifetime.total() == pytest.approx(4.0), "the label of a node, and its label or the frequent class"
    told(label, 0)
    told(label, 1)
    assert lifetime.total() == pytest.approx(6.0)
    told(label, None, "later")
    assert lifetime.total() == pytest.approx(8.0)


def test_lists_of_two_sessions_have_no_hash_in_common() -> None:
    found, job = banks(2, accounts=30), symbol_job(holders=("A", "B"))

    def listed(number: int) -> set[bytes]:
        _, messages = session(job, found, number=number)
        return {bytes(row) for one in messages if one.tag.kind == Kind.NODE_LIST for row in one.tensor.numpy()}

    first, second = listed(0), listed(1)
    assert first == listed(0)
    assert not first & second


def test_symbols_are_counted_by_edge_and_none_counts_nowhere() -> None:
    class Echo:
        """A peer whose message is there already."""

        party = "A"

        def send(self, *_: object) -> None: ...

        def receive(self, sender: str, tag: Any) -> Tensor:
            return torch.tensor([1, NONE, 1, 0], dtype=torch.uint8)

    edges = Confirmed(torch.tensor([0, 0, 2, 2]), torch.tensor([9, 8, 9, 7]))
    link: Any = Echo()
    found = exchange_symbols(link, {"B": edges}, torch.zeros(3, dtype=torch.uint8), 2, all_answer=False)
    assert found.tolist() == [[0, 1], [0, 0], [1, 1]]


@pytest.mark.usefixtures("few_trees", "short_own_models")
def test_two_whole_jobs_of_one_ledger_send_the_same_and_pay_once_for_own_accounts(tmp_path: Path) -> None:
    """A's ledger in another folder, of other people with the same counterparties, is not taken for the same people."""
    graphs, ids = banks(2, accounts=40)
    job = symbol_job(holders=("A", "B"))
    places = {name: tmp_path / f"{name}-ledger" for name in "AB"}
    totals, sent = list[float](), list[Tensor]()
    for number in range(2):
        run = RunDirectory.open(train(job, tmp_path / f"{number}", parties=graphs, ids=ids, ledgers=places).path)
        sent.append(predicted(run, "B"))
        lifetime = Lifetime(places["A"], "A", Budget(), Marks(tmp_path / f"marks {number}"))
        totals.append(lifetime.total())
        trained = graphs[0].common_part().train_mask
        assert trained is not None
        assert lifetime.nodes == int(trained.sum()), "and none of B's accounts, which its edges name"
    assert totals == [pytest.approx(2.0)] * 2
    assert torch.equal(*sent)
    names = [f"x{name}" if "/" not in name else name for name in ids["A"]]
    others = [name.replace("A/", "A/x") for name in ids["B"]]
    elsewhere = {"A": tmp_path / "of others", "B": places["B"]}
    train(job, tmp_path / "others", parties=graphs, ids={"A": names, "B": others}, ledgers=elsewhere)
    again = {**places, "A": tmp_path / "of the same"}
    with refused(RunError, code="same-people", key=places["A"]):
        train(job, tmp_path / "refused", parties=graphs, ids=ids, ledgers=again)
    assert not (tmp_path / "refused").exists(), "nothing was sent, and the folder is free for the job that is mended"
