"""A union with a holder of edges alone, and with holders without labels: the same model, and nobody learns more."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import refused
from tests.paradigms.union.banks import (
    ALMOST,
    BOOSTED,
    JOINT,
    JUDGED,
    NET,
    UNDIRECTED,
    Banks,
    banks,
    by_name,
    of_twin,
    predicted,
    small_job,
    trained,
    unlabelled,
    with_network,
)
from tests.roles.federation import Settings
from veilgraph.audit.attack import load_view
from veilgraph.audit.audit import AuditPlan, audit
from veilgraph.core.errors import ConfigError, DataError, ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.view import RecordedLink
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.paradigms.union.addresses import HASH_BYTES
from veilgraph.paradigms.union.inputs import Places
from veilgraph.paradigms.union.roles import UnionHolder, UnionNetwork
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.paradigms.union.twin import pooled, together
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch.jobs import predict, resume
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

ACROSS: Settings = {"across": NET}
CASES: dict[str, tuple[tuple[Settings, ...], bool, bool, str | None]] = {
    "network": ((), True, False, None),
    "network, judged": ((JUDGED,), True, False, None),
    "network, whose payments the banks have too": ((), True, True, None),
    "network, undirected": ((UNDIRECTED,), True, False, None),
    "network, a bank without labels": ((BOOSTED, JUDGED), True, False, "B"),
    "a bank without labels": ((JUDGED,), False, True, "C"),
    "a bank without labels, boosted": ((BOOSTED, {"output": "classes"}), False, True, "B"),
}
"""Changes of the job, whether there is a network, whether banks have the payments across, and who has no labels."""


def job_of(found: Banks, *changes: Settings) -> UnionJob:
    """With the holders that there are, which a job of graphs from Python does not name."""
    names = [graph.party for graph in found[0]]
    named: Settings = {"data": {"dataset": None, "graphs": {name: f"{name}.safetensors" for name in names}}}
    return small_job(len(names), named, *([ACROSS] if NET in names else []), *changes)


@pytest.mark.parametrize("case", CASES)
def test_parties_compute_what_the_twin_does_and_banks_learn_of_their_own_nodes(case: str, tmp_path: Path) -> None:
    changes, network, knows, bare = CASES[case]
    found = banks(directed="undirected" not in case)
    found = with_network(found, knows=knows) if network else found
    found = found if bare is None else unlabelled(found, bare)
    job = job_of(found, *changes)
    run, twin = trained(job, found, tmp_path / "run"), of_twin(job, found)
    for party in "ABC":
        own = predicted(run, party)
        assert own.shape == (by_name(found)[party].common, 2)
        assert (own - twin[party]).abs().max() < ALMOST, party
        assert load_predictions(run.party(party)).ids == tuple(found[1][party][: len(own)])
    assert not network or not (run.party_path(NET) / "predictions.safetensors").exists()
    again = predict(run.path)
    assert (again.uncalibrated.double()[: len(twin["A"])] - twin["A"]).abs().max() < ALMOST


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


def test_no_node_has_more_edges_than_its_bank_and_the_network_say_together() -> None:
    """Roots of degrees are computed up to that number, and wrong beyond it."""
    found = with_network(banks())
    job = job_of(found, JOINT)
    context = together(job, *found)
    ways = (False, True)
    degrees = torch.stack([own.degrees(context.sizes.nodes, ways) for own in context.data.values()])
    assert 1 + degrees[:-1].max() < 1 + degrees.sum(0).max() <= context.sizes.max_degree


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
    for party, expected in of_twin(job, found).items():
        assert (predicted(run, party) - expected).abs().max() < ALMOST
        assert (of_twin(job, wider)[party] - expected).abs().max() < 1e-5


def test_a_plan_says_what_is_sent(tmp_path: Path) -> None:
    found = unlabelled(with_network(banks(), knows=True), "C")
    job = job_of(found, JUDGED)
    run = trained(job, found, tmp_path / "run")
    inputs, session = PARADIGMS["union"].data.accept(job, *found), PARADIGMS["union"].session
    costs = session.costs(job, 0, {graph.party: size_of(graph, job.inputs) for graph in inputs.graphs})
    assert costs is not None
    kinds = {"masked_wire", "masked_bits", "placement", "masked_rows", "mask_share", "control"}
    for party in ("A", "B", "C", NET):
        log = json.loads((run.party(party).path / "traffic.json").read_bytes())
        sent = sum(row["bytes"] for row in log if row["direction"] == "sent" and row["kind"] in kinds)
        assert sent == costs.sent()[party], party
        listed = {row["kind"]: row for row in log if row["direction"] == "sent" and row["kind"].startswith("node_")}
        assert {row["peer"] for row in listed.values()} == ({NET} if party != NET else set())


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
    for party in "ABC":
        for kind in (Kind.NODE_LIST, Kind.NODE_PLACES):
            first, second = (seen.tensor() for seen in load_view(run, NET).received(kind, party))
            assert (first == second).float().mean() < 0.2


def test_a_network_and_all_banks_but_one_see_noise_of_the_last(tmp_path: Path) -> None:
    found = with_network(banks(accounts=120))
    run = trained(job_of(found, JUDGED), found, tmp_path / "run", record_views=True)
    told = audit(run.path, AuditPlan(adversaries=(f"B+C+{NET}",))).findings
    uniform = [each for each in told if each.attack == "uniformity"]
    assert {each.target for each in uniform} == {"A"}
    assert len(uniform) > 3
    assert all(each.passed for each in told if not each.permitted), told
    assert not load_view(run, NET).received(Kind.MASK_SHARE, "A")[1:]  # but for the one bit of ranges


def test_a_bank_that_lists_a_row_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    send = RecordedLink.send

    def doubled(link: Any, to: PartyId, tag: Any, tensor: Tensor) -> None:
        twice = tag.kind is Kind.NODE_PLACES and link.party == "B"
        send(link, to, tag, torch.cat([tensor[:1], tensor[:-1]]) if twice else tensor)

    monkeypatch.setattr(RecordedLink, "send", doubled)
    found = with_network(banks())
    with refused(ProtocolError, code="rows", party="B"):
        trained(job_of(found), found, tmp_path / "run")


def test_a_network_that_invents_a_payment_moves_predictions_and_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/union.md says of it: nobody checks what the holder of the edges across puts in."""
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


def test_messages_have_the_same_sizes_whatever_the_others_data_are(tmp_path: Path) -> None:
    """Of two worlds that are alike in sizes alone: other columns and labels, and other payments across."""
    found = with_network(banks())
    job = job_of(found, {"model": {"blocks": ["own", "each.1"]}}, JUDGED)
    graphs, ids = found
    others = [
        replace(graph, features=graph.features.flip(0), labels=None if graph.labels is None else 1 - graph.labels)
        for graph in graphs[:-1]
    ]
    order = torch.randperm(graphs[-1].num_nodes, generator=torch.Generator().manual_seed(1))
    same_bank = torch.tensor(["ABC".index(name[0]) for name in ids[NET]])
    mixed = torch.empty_like(order)
    for bank in range(3):
        mixed[same_bank == bank] = order[same_bank[order] == bank]
    other = [*others, replace(graphs[-1], edge_index=mixed[graphs[-1].edge_index])]

    def sizes(found: Banks, name: str) -> Counter[tuple[str, str, str, int]]:
        run = trained(job, found, tmp_path / name)
        counted = Counter[tuple[str, str, str, int]]()
        for party in ("A", "B", "C", NET, SERVER):
            for row in json.loads((run.party(party).path / "traffic.json").read_bytes()):
                if row["kind"] not in ("hello", "audit_question"):
                    counted[party, row["peer"], row["kind"], row["bytes"]] += row["messages"]
        return counted

    assert sizes(found, "one") == sizes((other, ids), "other")


def test_a_run_that_was_cut_off_goes_on_to_what_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = unlabelled(with_network(banks()), "B")
    job = job_of(found, JUDGED, {"train": {"epochs": 5}, "model": {"blocks": ["own", "boosting", "pooled.1"]}})
    append = RunDirectory.append_metrics

    def append_and_die(run: RunDirectory, record: Any) -> None:
        append(run, record)
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", append_and_die)
        with pytest.raises(KeyboardInterrupt):
            trained(job, found, tmp_path / "run")
    assert resume(tmp_path / "run").summary["started_at"] > 0
    run, twin = RunDirectory.open(tmp_path / "run"), of_twin(job, found)
    for party in "ABC":
        assert (predicted(run, party) - twin[party]).abs().max() < ALMOST


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


def test_in_one_place_a_network_s_payments_count_and_banks_without_labels_learn_nothing() -> None:
    found = unlabelled(with_network(banks()), "B")
    job = job_of(found, JOINT)
    inputs = PARADIGMS["union"].data.accept(job, *found)
    whole = pooled(job, inputs.graphs, inputs.ids, lambda _: None).output.softmax(1)
    assert (whole - torch.cat(list(of_twin(job, found).values()))).abs().max() < ALMOST
    baselines = PARADIGMS["union"].baselines
    assert [baselines.alone(inputs, name, lambda _: None) is None for name in ("A", "B", "C", NET)] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"across": "D"}, "across"),
        ({"across": "A"}, "across"),
        ({"across": "B", "data": {"holders": 2}}, "across"),
    ],
)
def test_a_network_that_is_none_is_refused(change: Settings, key: str) -> None:
    with refused(ConfigError, key=key):
        small_job(3, change)


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
