"""A union with a holder of edges alone, and with holders without labels: the same model, and nobody learns more."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.chance import fixed_chance
from tests.errors import refused
from tests.paradigms.union.banks import (
    ALMOST,
    JOINT,
    JUDGED,
    NET,
    Banks,
    banks,
    by_name,
    job_of,
    of_twin,
    predicted,
    small_job,
    trained,
    unlabelled,
    with_network,
)
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.core.errors import DataError, ProtocolError
from veilgraph.core.types import Kind, PartyId
from veilgraph.paradigms.horizontal.node_lists import HASH_BYTES
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.paradigms.union.inputs import Places
from veilgraph.paradigms.union.roles import UnionHolder, UnionNetwork
from veilgraph.paradigms.union.twin import joint_context
from veilgraph.runtime.launch.jobs import predict


def test_a_network_brings_what_both_ends_books_would() -> None:
    """Whether the banks have these payments as well or not: none counts twice."""
    found = banks()
    expected = of_twin(job_of(found, JOINT), found)
    for brought in (with_network(found, knows=True), with_network(found)):
        for party, own in of_twin(job_of(brought, JOINT), brought).items():
            assert (own - expected[party]).abs().max() < 1e-5
    lacking = [graph for graph in brought[0] if graph.party != NET]
    less = of_twin(job_of((lacking, brought[1]), JOINT), (lacking, brought[1]))
    assert max(float((less[party] - expected[party]).abs().max()) for party in "ABC") > ALMOST


def test_payments_that_join_no_two_banks_of_the_job_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those within a bank, which has them itself, and those with accounts that nobody has."""
    found = with_network(banks())
    graphs, ids = found
    own, names = graphs[-1], ids[NET]
    inside = [place for place, name in enumerate(names) if name.startswith("A/")]
    strange = [f"A/{text}" for text in ("4711", "0815")]
    more = torch.tensor([inside[:5], inside[1:6]])
    unknown = torch.tensor([[len(names), 0], [3, len(names) + 1]])
    edges = torch.cat([own.edge_index, more, unknown], 1)
    longer = replace(own, features=torch.zeros(len(names) + 2, 1), edge_index=edges)
    wider: Banks = [*graphs[:-1], longer], {**ids, NET: [*names, *strange]}
    job = job_of(found, JOINT)
    run = trained(job, wider, tmp_path / "run")
    assert f"N: 7 of its {edges.shape[1]} edges do not join" in caplog.text
    assert "of these 2 have an id that its holder does not have" in caplog.text
    for party, expected in of_twin(job, found).items():
        assert (predicted(run, party) - expected).abs().max() < ALMOST
        assert (of_twin(job, wider)[party] - expected).abs().max() < 1e-5


def test_a_bank_lists_all_of_its_rows_to_the_network_alone(tmp_path: Path) -> None:
    """As many as it says that it has, each once, in the order of the hashes; others' data change none of the sizes."""
    found = with_network(banks())
    run = trained(job_of(found), found, tmp_path / "run", record_views=True)
    view, start = load_view(run, NET), 0
    for party in "ABC":
        (hashes,), (rows,) = (view.received(kind, party) for kind in (Kind.NODE_LIST, Kind.NODE_PLACES))
        size = padded(by_name(found)[party].common)
        told = hashes.tensor().numpy().view("V16").ravel()
        assert hashes.shape == (size, HASH_BYTES)
        assert sorted(map(bytes, told)) == list(map(bytes, told))
        assert sorted(rows.tensor().tolist()) == list(range(start, start + size))
        start += size
        assert not load_view(run, party).received(Kind.NODE_LIST, "A")
    predict(run.path)
    view = load_view(run, NET)
    for party in "ABC":
        both = torch.cat([seen.tensor() for seen in view.received(Kind.NODE_LIST, party)])
        assert len(torch.unique(both, dim=0)) == 2 * padded(by_name(found)[party].common)
        first, second = (seen.tensor() for seen in view.received(Kind.NODE_PLACES, party))
        assert (first == second).float().mean() < 0.2


def test_a_network_and_all_banks_but_one_see_noise_of_the_last(tmp_path: Path) -> None:
    found = with_network(banks(accounts=120))
    with fixed_chance("noise"):  # one honest audit in a hundred raises an alarm
        run = trained(job_of(found, JUDGED), found, tmp_path / "run", record_views=True)
    told = audit(run.path, AuditPlan(adversaries=(f"B+C+{NET}",))).findings
    uniform = [each for each in told if each.attack == "uniformity"]
    assert {each.target for each in uniform} == {"A"}
    assert len(uniform) > 3
    assert all(each.passed for each in told if not each.permitted), told
    assert not load_view(run, NET).received(Kind.MASK_SHARE, "A")[1:]  # but for the one bit of ranges


def test_a_network_that_invents_a_payment_moves_predictions_and_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/explanation/union.md says of it: nobody checks what the holder of the edges across puts in."""
    of = Places.of

    def cheating(places: Places, own: Any) -> Any:
        found = of(places, own)
        if places.nodes:
            return found
        edges = found.edges.clone()
        edges[0, :8] = places.rows.max()  # others' payments become one account's
        return replace(found, edges=torch.unique(edges, dim=1))

    found = with_network(banks())
    job = job_of(found, JOINT)
    honest = trained(job, found, tmp_path / "honest")
    monkeypatch.setattr(Places, "of", cheating)
    fooled = trained(job, found, tmp_path / "fooled")
    assert (predicted(fooled, "A") - predicted(honest, "A")).abs().max() > ALMOST / 2


@nightly
@pytest.mark.parametrize("stated", [{"rows": 4}, {"features": 3}, {"training": 1}, {"classes": 2}, {"validation": 1}])
def test_a_network_that_states_nodes_is_refused(
    stated: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = UnionNetwork.hello

    def lying(role: Any) -> Any:
        found = hello(role)
        return found.model_copy(update=stated) if role.session.link.party == NET else found

    monkeypatch.setattr(UnionNetwork, "hello", lying)
    found = with_network(banks())
    with refused(ProtocolError, code="stated", party=NET):
        trained(job_of(found), found, tmp_path / "run")


def test_a_bank_without_labels_judges_none_of_its_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn, judged = UnionHolder.learn, dict[PartyId, Mapping[str, float | None]]()

    def recorded(role: UnionHolder, told: Tensor | None) -> None:
        learn(role, told)
        judged[role.session.link.party] = role.scores(everything=True).values

    monkeypatch.setattr(UnionHolder, "learn", recorded)
    found = unlabelled(banks(), "B")
    trained(job_of(found), found, tmp_path / "run")
    assert set(judged["B"].values()) == {None}
    assert judged["A"].keys() == judged["B"].keys()
    assert None not in judged["A"].values()


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    found = with_network(banks())
    job = job_of(found)
    with refused(DataError, key="across", party=NET):
        trained(small_job(4), found, tmp_path / "unnamed")
    graphs, ids = banks(4)
    with refused(DataError, key="across", party="D"):
        trained(small_job(4, {"across": "D"}), (graphs, ids), tmp_path / "nodes")
    reports = unlabelled(found, "A")
    with refused(DataError, key="data.label_holder", party="A"):
        trained(job_of(reports, {"data": {"label_holder": "A"}}), reports, tmp_path / "labels")
    nobody = unlabelled(unlabelled(reports, "B"), "C")
    with refused(DataError, key="data.label_holder", party="A"):
        trained(job, nobody, tmp_path / "nobody")


def test_no_node_has_more_edges_than_its_bank_and_the_network_say_together() -> None:
    """Roots of degrees are computed up to that number, and wrong beyond it."""
    found = with_network(banks())
    job = job_of(found, JOINT)
    context = joint_context(job, *found)
    ways = (False, True)
    degrees = torch.stack([own.degrees(context.sizes.nodes, ways) for own in context.data.values()])
    assert 1 + degrees[:-1].max() < 1 + degrees.sum(0).max() <= context.sizes.max_degree
