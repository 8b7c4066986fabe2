"""Whole unions, with a network of payments and without: as their twin, as planned, cut off, and what is refused."""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from tests import nightly
from tests.errors import refused
from tests.paradigms.cutting import CutError, cut_at
from tests.paradigms.union.banks import (
    ALMOST,
    BOOSTED,
    JOINT,
    JUDGED,
    MAJORITY,
    NET,
    NOBODY,
    UNDIRECTED,
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
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.graph.partition import split_at_home
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import POOLED
from veilgraph.link.view import RecordedLink
from veilgraph.paradigms.union.settings import UnionJob
from veilgraph.paradigms.union.twin import pooled
from veilgraph.protocol.costs import size_of
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch.jobs import predict, resume
from veilgraph.runtime.store.predictions import load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("few_trees")

BATCHES: Settings = {"train": {"batch_size": 8, "select_by": "accuracy", "evaluate_every": 3}}
AT_HOME: Settings = {"model": {"network": "linear", "blocks": ["own"]}, "output": "classes"}
COUNTED = {"masked_wire", "masked_bits", "placement", "masked_rows", "mask_share", "control", "seed", "correlation"}
ADDRESSES = ("node_list", "node_places")


@dataclass(frozen=True)
class Case:
    """A union.

    Attributes:
        changes: of the small job.
        holders: how many banks.
        network: whether a network brings the payments between them.
        knows: whether the banks have these in their books as well.
        bare: the bank without labels.
    """

    changes: tuple[Settings, ...] = ()
    holders: int = 3
    network: bool = False
    knows: bool = False
    bare: PartyId | None = None

    def made(self) -> tuple[UnionJob, Banks]:
        found = banks(self.holders, directed=UNDIRECTED not in self.changes)
        found = with_network(found, knows=self.knows) if self.network else found
        found = found if self.bare is None else unlabelled(found, self.bare)
        return job_of(found, *self.changes), found


CASES = {
    "two, judged": Case((JUDGED,), holders=2),
    "undirected, four": Case((UNDIRECTED,), holders=4),
    "batches": Case((BATCHES,)),
    "boosted, judged": Case((BOOSTED, JUDGED)),
    "at home": Case((AT_HOME,), holders=2),
    "a bank without labels": Case((JUDGED,), bare="C"),
    "a bank without labels, boosted": Case((BOOSTED, {"output": "classes"}), bare="B"),
    "network, judged": Case((JUDGED,), network=True),
    "network, whose payments the banks have too": Case(network=True, knows=True),
    "network, undirected": Case((UNDIRECTED,), network=True),
    "network, a bank without labels": Case((BOOSTED, JUDGED), network=True, bare="B"),
    "dealt by a bank, judged": Case((BOOSTED, JUDGED, MAJORITY)),
    "dealt by a bank, undirected, four": Case((UNDIRECTED, MAJORITY, {"output": "classes"}), holders=4),
    "dealt by a bank without labels": Case((BATCHES, MAJORITY), bare="C"),
    "dealt by the network, judged": Case((JUDGED, MAJORITY), network=True, knows=True),
    "dealt by the network, two banks": Case((UNDIRECTED, MAJORITY), holders=2, network=True),
    "dealt by nobody, judged": Case((JUDGED, NOBODY), holders=2),
    "dealt by nobody, boosted": Case((BOOSTED, UNDIRECTED, NOBODY, {"output": "classes"}), holders=2, bare="B"),
}


PLANNED = [
    Case((JUDGED,)),
    Case((JUDGED,), network=True, knows=True, bare="C"),
    Case((JUDGED, MAJORITY)),
    Case((JUDGED, MAJORITY), network=True),
    Case((JUDGED, NOBODY), holders=2),
]


NIGHTLY = {
    *("two, judged", "undirected, four", "batches", "a bank without labels", "network, judged"),
    "dealt by nobody, boosted",
}
"""Whose every setting another case has as well, beside others."""


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=nightly if name in NIGHTLY else (), id=name) for name, case in CASES.items()]
)
def test_parties_compute_what_the_twin_does_and_banks_learn_of_their_own_nodes(case: Case, tmp_path: Path) -> None:
    job, found = case.made()
    run, twin = trained(job, found, tmp_path / "run"), of_twin(job, found)
    for party, graph in by_name(found).items():
        if party == NET:
            assert not (run.party_path(NET) / "predictions.safetensors").exists()
            continue
        own = predicted(run, party)
        assert own.shape == (graph.common, 2)
        assert (own - twin[party]).abs().max() < ALMOST, party
        assert load_predictions(run.party(party)).ids == tuple(found[1][party][: graph.common])
    again = predict(run.path)
    assert (again.uncalibrated.double()[: len(twin["A"])] - twin["A"]).abs().max() < ALMOST


@pytest.mark.parametrize("case", PLANNED, ids=repr)
def test_a_plan_says_what_is_sent(case: Case, tmp_path: Path) -> None:
    job, found = case.made()
    run = trained(job, found, tmp_path / "run")
    inputs, session = PARADIGMS["union"].data.accept(job, *found), PARADIGMS["union"].session
    sizes = {graph.party: size_of(graph, job.inputs, inputs.ids[graph.party]) for graph in inputs.graphs}
    costs = session.costs(job, 0, sizes)
    assert costs is not None
    for party in by_name(found):
        log = json.loads((run.party(party).path / "traffic.json").read_bytes())
        sent = [row for row in log if row["direction"] == "sent"]
        assert sum(row["bytes"] for row in sent if row["kind"] in {*COUNTED, *ADDRESSES}) == costs.sent()[party], party
        if case.network:
            listed = {row["peer"] for row in sent if row["kind"].startswith("node_")}
            assert listed == ({NET} if party != NET else set())


def sizes(job: UnionJob, found: Banks, folder: Path) -> Counter[tuple[str, str, str, int]]:
    """How many messages of which kind and length go from whom to whom."""
    run = trained(job, found, folder)
    counted = Counter[tuple[str, str, str, int]]()
    for party in (*by_name(found), SERVER):
        for row in json.loads((run.party(party).path / "traffic.json").read_bytes()):
            if row["kind"] not in ("hello", "audit_question"):
                counted[party, row["peer"], row["kind"], row["bytes"]] += row["messages"]
    return counted


def other(graph: PartyGraph, names: list[str]) -> PartyGraph:
    """Alike in sizes alone: a bank with other columns and labels, a network with other payments between the banks."""
    if graph.common:
        labels = graph.labels
        flipped = None if labels is None else torch.where(labels < 0, labels, 1 - labels)
        return replace(graph, features=graph.features.flip(0), labels=flipped)
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(1))
    bank_of = torch.tensor(["ABC".index(name[0]) for name in names])
    mixed = torch.empty_like(order)
    for bank in range(3):
        mixed[bank_of == bank] = order[bank_of[order] == bank]
    return replace(graph, edge_index=mixed[graph.edge_index])


@pytest.mark.parametrize(
    "case",
    [
        Case(holders=2),
        Case((JUDGED,), network=True),
        Case((JUDGED, MAJORITY)),
        Case((JUDGED, MAJORITY), network=True),
        Case((JUDGED, NOBODY), holders=2),
    ],
    ids=repr,
)
def test_messages_have_the_same_sizes_whatever_the_others_data_are(case: Case, tmp_path: Path) -> None:
    job, (graphs, ids) = replace(case, changes=({"model": {"blocks": ["own", "each.1"]}}, *case.changes)).made()
    others = [other(graph, ids[graph.party]) for graph in graphs]
    assert sizes(job, (graphs, ids), tmp_path / "one") == sizes(job, (others, ids), tmp_path / "other")


@pytest.mark.parametrize(
    "case",
    [
        Case(({"model": {"blocks": ["own", "boosting", "each.1"]}},)),
        Case(({"model": {"blocks": ["own", "boosting", "pooled.1"]}},), network=True, bare="B"),
        Case(({"model": {"blocks": ["own", "each.1"]}}, MAJORITY)),
        Case(({"model": {"blocks": ["own", "pooled.1"]}}, MAJORITY), network=True),
        Case(({"model": {"blocks": ["own", "each.1"]}}, NOBODY), holders=2),
    ],
    ids=repr,
)
def test_a_run_that_was_cut_off_goes_on_to_what_it_would_have_been(case: Case, tmp_path: Path) -> None:
    job, found = replace(case, changes=(JUDGED, {"train": {"epochs": 5}}, *case.changes)).made()
    with cut_at(3), pytest.raises(CutError):
        trained(job, found, tmp_path / "run")
    assert resume(tmp_path / "run").summary["started_at"] > 0
    run, twin = RunDirectory.open(tmp_path / "run"), of_twin(job, found)
    for party in twin:
        assert (predicted(run, party) - twin[party]).abs().max() < ALMOST


@pytest.mark.parametrize("network", [False, True])
def test_rows_that_are_not_the_senders_or_are_listed_twice_are_refused(
    network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = RecordedLink.send

    def wrong(link: Any, to: PartyId, tag: Any, tensor: Tensor) -> None:
        if tag.kind is Kind.NODE_PLACES and link.party == "B":
            tensor = torch.cat([tensor[:1], tensor[:-1]]) if network else tensor + 10_000
        send(link, to, tag, tensor)

    monkeypatch.setattr(RecordedLink, "send", wrong)
    job, found = Case(network=network).made()
    with refused(ProtocolError, code="rows", party="B"):
        trained(job, found, tmp_path / "run")


@pytest.mark.parametrize("case", [Case((JOINT,)), Case((JOINT,), network=True, bare="B")], ids=repr)
def test_baselines_are_the_same_network_at_home_and_in_one_place(case: Case) -> None:
    job, found = case.made()
    inputs, baselines = PARADIGMS["union"].data.accept(job, *found), PARADIGMS["union"].baselines
    whole = pooled(job, inputs.graphs, inputs.ids, lambda _: None).output.softmax(1)
    assert (whole - torch.cat(list(of_twin(job, found).values()))).abs().max() < ALMOST
    for graph in inputs.graphs:
        home = baselines.alone(inputs, graph.party, lambda _: None)
        assert (home is None) == (graph.party in (case.bare, NET))
        if home is None or case.network:
            continue
        assert home.output.shape == (graph.common, 2)
        inside = graph.with_edges((graph.edge_index < graph.common).all(0))
        fewer = replace(inputs, graphs=[inside if each is graph else each for each in inputs.graphs])
        without = baselines.alone(fewer, graph.party, lambda _: None)
        assert without is not None
        assert not torch.allclose(home.output, without.output)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"privacy": {"unit": "edge", "epsilon_total": 1}}, "privacy"),
        ({"named_nodes": 0}, "named_nodes"),
        ({"release": "holders"}, "release"),
        ({"model": {"edge_weights": True}}, "model.edge_weights"),
        ({"model": {"blocks": ["quantiles"]}}, "model.blocks.0"),
        ({"across": "D"}, "across"),
        ({"across": "A"}, "across"),
        ({"across": "B", "data": {"holders": 2}}, "across"),
    ],
)
def test_what_a_union_does_not_have_is_refused_by_name(change: Settings, key: str) -> None:
    with refused(ConfigError, key=key):
        small_job(3, change)


def test_a_hub_trains_as_in_one_place(tmp_path: Path) -> None:
    """A's first account is paid by more of B's than half of the range holds, so that A states all of it."""
    payers = 1 << 17
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(payers + 10) % 2
    whole = Data(x=torch.randn(len(labels), 2, generator=generator) + labels[:, None], y=labels)
    whole.edge_index = torch.stack([torch.arange(10, len(labels)), torch.zeros(payers, dtype=torch.int64)])
    place = torch.arange(len(labels)) // 2 % 5
    whole.train_mask, whole.val_mask, whole.test_mask = place < 2, place == 2, place > 2
    found = split_at_home(PartyGraph.from_data(POOLED, whole), "AB", torch.arange(len(labels)) // 10 > 0)
    joint: Banks = [graph for graph, _ in found], {graph.party: ids for graph, ids in found}
    job = job_of(joint, JOINT, {"model": {"network": "linear"}, "train": {"select_by": "last"}})
    run, expected = trained(job, joint, tmp_path / "run"), of_twin(job, joint)
    assert (expected["A"][0] - expected["A"][1:]).abs().min() > ALMOST  # of what it is paid by, which others are not
    for party, own in expected.items():
        assert (predicted(run, party) - own).abs().max() < ALMOST / 10
