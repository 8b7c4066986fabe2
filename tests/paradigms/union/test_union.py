"""A union computes what one place would, tells every holder of its own nodes alone, and finds edges that one side
invents."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import nightly
from tests.errors import refused
from tests.paradigms.union.banks import (
    ALMOST,
    JOINT,
    JUDGED,
    NOBODY,
    UNDIRECTED,
    banks,
    by_name,
    of_twin,
    predicted,
    small_job,
    trained,
    without,
)
from tests.roles.federation import Settings
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import DataError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import Kind
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.paradigms.sealed.plan import Block
from veilgraph.paradigms.union.addresses import draw_rows
from veilgraph.paradigms.union.inputs import Places
from veilgraph.paradigms.union.twin import alone, begin_program, joint_context
from veilgraph.runtime.launch.jobs import predict


def test_a_step_is_judged_by_pairs_of_all_holders_nodes() -> None:
    job, (graphs, ids) = small_job(3, JUDGED), banks()
    program = begin_program(job, graphs, ids)
    program.step(0)
    found = program.score(1)
    assert found is not None
    data = joint_context(job, graphs, ids).data.values()
    labels = [own.judged_labels for own in data if own.judged_labels is not None]
    order = torch.cat([(torch.arange(len(own)) + 0.5) / len(own) for own in labels]).argsort(stable=True)
    truth = torch.cat(labels)[order]
    logits = program.network.judged(program.weights).known
    margins = logits - logits.mean(1, keepdim=True)
    first = min(64, len(truth))
    own = margins[torch.arange(first), truth[:first]]
    apart = truth[:first, None] != truth[None]
    right = apart & (own[:, None] > margins[:, truth[:first]].T)
    assert found.tolist() == [[float(right.sum()), float(apart.sum())]]
    assert 0 < right.sum() < apart.sum()


def test_edges_that_one_holder_lacks_are_used_by_neither(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job, whole = small_job(3, JOINT), banks()
    less = without(whole, "B", "A")
    both = without(less, "A", "B")
    first, second = (trained(job, each, tmp_path / str(place)) for place, each in enumerate((less, both)))
    assert "A: B lacks" in caplog.text
    for party in "ABC":
        assert (predicted(first, party) - predicted(second, party)).abs().max() < ALMOST
        assert (predicted(first, party) - of_twin(job, less)[party]).abs().max() < ALMOST
    assert (predicted(first, "A") - of_twin(job, whole)["A"]).abs().max() > 2 * ALMOST


def test_a_bank_that_lists_nothing_is_used_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.paradigms.union.addresses.padded", lambda count: count)
    job, less = small_job(3, JOINT), without(banks(), "B", "A")
    run = trained(job, less, tmp_path / "run")
    assert (predicted(run, "A") - of_twin(job, less)["A"]).abs().max() < ALMOST


@nightly
def test_a_bank_s_name_may_begin_with_another_s(tmp_path: Path) -> None:
    graphs, ids = banks()
    names = {"A": "A", "B": "AB", "C": "C"}
    told = [replace(graph, party=names[graph.party]) for graph in graphs]
    called = {names[party]: [text.replace("B/", "AB/") for text in own] for party, own in ids.items()}
    data = {"dataset": None, "holders": 3, "graphs": {name: f"{name}.safetensors" for name in called}}
    job = small_job(3, JOINT, {"data": data})
    run, expected = trained(job, (told, called), tmp_path / "run"), of_twin(job, (told, called))
    for party, own in expected.items():
        assert (predicted(run, party) - own).abs().max() < ALMOST, party


@pytest.mark.parametrize("changes", [(), (NOBODY,)], ids=["three", "dealt by nobody"])
def test_an_invented_edge_ends_the_job_and_names_whose_tables_differ(
    changes: Sequence[Settings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Places.of

    def cheating(places: Places, own: Any) -> Any:
        found = of(places, own)
        others = places.rows[places.rows >= places.block.rows.stop]
        if places.block.rows.start or not len(others):  # not A, or a bank by itself
            return found
        own_rows = places.rows[:4]  # as many as the padding has room for
        invented = torch.stack([others.max().expand_as(own_rows), own_rows])  # from one node of the last holder
        return replace(found, edges=torch.unique(torch.cat([found.edges, invented], 1), dim=1))

    job = small_job(2 if changes else 3, *changes)
    graphs, ids = banks(len(job.data.names))
    a = by_name((graphs, ids))["A"]
    joined = (a.edge_index[0] >= a.common) & (a.edge_index[1] == 0)
    graphs[0] = a.with_edges(~joined)  # it has no edge into its node 0 from others, so that the one it adds is new
    honest = trained(job, (graphs, ids), tmp_path / "honest")
    monkeypatch.setattr(Places, "of", cheating)
    with monkeypatch.context() as without:  # the attack, where nothing is checked
        without.setattr("veilgraph.paradigms.sealed.networks.rows.check_double_entry", lambda *_: None)
        fooled = trained(job, (graphs, ids), tmp_path / "unchecked")
    moved = (predicted(fooled, "A") - predicted(honest, "A")).abs()
    assert moved.max() > ALMOST / 2  # rounding moves probabilities by 0.001
    with refused(DataError, code="double-entry", party="A") as raised:
        trained(job, (graphs, ids), tmp_path / "run")
    assert {pair for pair in ("A and B", "A and C") if pair in str(raised.value)} == {f"A and {job.data.names[-1]}"}


def test_what_a_holder_tells_of_its_edges_is_padded_and_of_shared_ones_alone(tmp_path: Path) -> None:
    """Nodes without an edge to the receiver's are in none of its messages."""
    job, (graphs, ids) = small_job(), banks()
    run = trained(job, (graphs, ids), tmp_path / "run", record_views=True)
    for graph in graphs:
        for other in (name for name in "ABC" if name != graph.party):
            there = torch.tensor([name.startswith(f"{other}/") for name in ids[graph.party]])
            shared = graph.edge_index[:, there[graph.edge_index].any(0)].shape[1]
            view = load_view(run, other)
            (hashes,), (rows,) = (view.received(kind, graph.party) for kind in (Kind.NODE_LIST, Kind.NODE_PLACES))
            assert hashes.shape == (padded(shared), HASH_BYTES)
            assert rows.shape == (padded(shared),)
            told = hashes.tensor().numpy().view("V16").ravel()
            assert (told[1:] != told[:-1]).all()  # each once, in the order of the hashes: none of the sender's
            assert sorted(map(bytes, told)) == list(map(bytes, told))


def test_lists_of_two_sessions_and_of_two_jobs_have_no_hash_in_common(tmp_path: Path) -> None:
    """Nor rows: who was sent both cannot tell by them which entries are of one edge."""
    job, found = small_job(), banks()
    run = trained(job, found, tmp_path / "run", record_views=True)
    predict(run.path)
    again = trained(job, found, tmp_path / "again", record_views=True)
    for sender, receiver in permutations("ABC", 2):
        views = [load_view(each, receiver) for each in (run, again)]
        lists = [seen.tensor() for view in views for seen in view.received(Kind.NODE_LIST, sender)]
        assert [len(told) for told in lists] == [len(lists[0])] * 3
        assert len(torch.unique(torch.cat(lists), dim=0)) == 3 * len(lists[0])
        rows = [seen.tensor() for view in views for seen in view.received(Kind.NODE_PLACES, sender)]
        assert all((first == second).float().mean() < 0.2 for first, second in combinations(rows, 2))


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    graphs, ids = banks()
    a = graphs[0]
    strange = {**ids, "A": [*ids["A"][: a.common], *(f"D/{row}" for row in range(a.num_nodes - a.common))]}
    with refused(DataError, key="ids", party="A"):
        trained(small_job(), (graphs, strange), tmp_path / "ids")
    with refused(DataError, key="model.directed"):
        trained(small_job(3, UNDIRECTED), (graphs, ids), tmp_path / "directed")


def test_a_bank_whose_validation_nodes_are_of_one_class_trains_alone_to_the_last_step(tmp_path: Path) -> None:
    """The job's AUC is of all banks' validation nodes; by its own this bank cannot choose a step."""
    graphs, ids = banks(2)
    b = graphs[1]
    assert b.val_mask is not None
    assert b.labels is not None
    b = replace(b, val_mask=b.val_mask & (b.labels == 0))
    run = trained(small_job(2, JUDGED), ([graphs[0], b], ids), tmp_path / "run")
    assert torch.isfinite(predicted(run, "B")).all()
    found = alone(small_job(2, JUDGED), b, ids["B"], lambda _: None)
    assert found.summary["best_epoch"] == len(found.metrics) == 3
    assert not any("val_auc" in record for record in found.metrics)


def test_rows_are_drawn_anew_among_more_than_there_are_nodes() -> None:
    block = Block(slice(100, 116), 0, 0)
    drawn = [draw_rows(13, block, system_secrets) for _ in range(200)]
    assert all(len(set(rows.tolist())) == 13 for rows in drawn)
    seen = torch.stack(drawn)
    assert seen.min() == 100
    assert seen.max() == 115
    # Each node is in each row about as often: 12.5 times of 200, and never 40 times but for one chance in 10^9.
    assert max(int((seen[:, node] == row).sum()) for node in range(13) for row in range(100, 116)) < 40
