"""Named nodes in a union: each holder learns of those of its own that it names, and of no more than the job says."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.errors import refused
from tests.paradigms.union.banks import (
    ALMOST,
    BOOSTED,
    JUDGED,
    NET,
    NOBODY,
    Banks,
    banks,
    by_name,
    job_of,
    of_twin,
    trained,
    unlabelled,
    with_network,
)
from tests.roles.federation import Settings
from veilgraph.api.runs import load_run
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.tensor_file import FolderKeeper
from veilgraph.core.types import SERVER, Kind, PartyId
from veilgraph.link.codec import HEADER_BYTES
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.inputs import padded
from veilgraph.paradigms.sealed.named_nodes import NamedNodes
from veilgraph.paradigms.sealed.plan import Context, Sizes
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram
from veilgraph.paradigms.sealed.roles import SealedRole
from veilgraph.paradigms.union.inputs import blocks_of
from veilgraph.paradigms.union.roles import UnionNetwork
from veilgraph.paradigms.union.twin import joint_context
from veilgraph.protocol.messages import revelation_causes
from veilgraph.protocol.paradigm import PARADIGMS
from veilgraph.runtime.launch.jobs import predict
from veilgraph.runtime.store.predictions import Predictions, load_predictions
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

pytestmark = pytest.mark.usefixtures("few_trees")

MOST = 5
NAMED: Settings = {"named_nodes": MOST}
ALL: Settings = {"named_nodes": None}
COUNTED = {"masked_wire", "masked_bits", "placement", "masked_rows", "mask_share"}


def named(run: RunDirectory, found: Banks, places: Mapping[PartyId, Sequence[int]]) -> dict[PartyId, Predictions]:
    """What each bank learns of those of its nodes that are named."""
    predict(run.path, ids=[found[1][party][place] for party, own in places.items() for place in own])
    return {party: load_predictions(run.party(party)) for party in by_name(found) if party != NET}


@pytest.mark.parametrize(
    ("found", "changes"),
    [
        (banks(2), (JUDGED,)),
        (banks(), (BOOSTED, {"output": "classes"})),
        (with_network(unlabelled(banks(), "B")), (JUDGED,)),
        pytest.param(banks(2), (NOBODY,), marks=nightly),
    ],
    ids=["two, judged", "three, classes", "network, a bank without labels", "dealt by nobody"],
)
def test_each_bank_learns_of_the_nodes_that_it_names_what_the_twin_says(
    found: Banks, changes: Sequence[Settings], tmp_path: Path
) -> None:
    run = trained(job_of(found, NAMED, *changes), found, tmp_path / "run")
    before = load_predictions(run.party("A"))
    assert len(before.nodes) == 0
    assert run.result()["test_accuracy"] is None
    twin = of_twin(job_of(found, *changes), found)
    places = {"A": [7, 2], "B": [11]}
    told = named(run, found, places)
    for party, own in told.items():
        named_here = places.get(party, [])
        assert sorted(own.nodes.tolist()) == sorted(named_here)
        assert own.ids == tuple(found[1][party][place] for place in own.nodes.tolist())
        expected = twin[party][own.nodes]
        found_here = own.probabilities.argmax(1) if own.classes_alone else own.uncalibrated.double()
        wanted = expected.argmax(1) if own.classes_alone else expected
        assert len(wanted) == 0 or float((found_here - wanted).abs().max()) < ALMOST
    again = predict(run.path, [3])  # of the label holder's, where rows are given
    assert again.nodes.tolist() == [3]
    assert len(load_predictions(run.party("B")).nodes) == 0
    load_run(run.path).report()


def of_asked(context: Context, asked: Mapping[PartyId, int]) -> Sizes:
    """Sizes of a prediction of so many nodes of each."""
    told = {party: (0, 0, asked.get(party, 0)) for party in context.sizes.blocks}
    blocks = blocks_of({party: block.size for party, block in context.sizes.blocks.items()}, told)
    return replace(context.sizes, training=0, validation=0, asked=sum(asked.values()), blocks=blocks)


def predicting(machine: Any, context: Context, weights: Mapping[str, Tensor]) -> Tensor | None:
    program = SealedProgram(machine, context)
    program.enter(trains=False)
    program.restore(weights, training=False)
    return program.predict()


def test_a_prediction_opens_what_was_named_and_sends_what_a_plan_counts(tmp_path: Path) -> None:
    found = with_network(banks())
    job = job_of(found, NAMED)
    run = trained(job, found, tmp_path / "run")
    inputs = PARADIGMS["union"].data.accept(job, *found)
    context = joint_context(job, inputs.graphs, inputs.ids)
    asked = {"A": torch.tensor([7, 2]), "C": torch.tensor([4])}
    named(run, found, {party: rows.tolist() for party, rows in asked.items()})
    sizes = of_asked(context, {party: len(rows) for party, rows in asked.items()})
    rounded = {party: padded(block.size) if block.size else 0 for party, block in sizes.blocks.items()}
    blocks = blocks_of(rounded, {party: (0, 0, block.asked) for party, block in sizes.blocks.items()})
    sizes = replace(sizes, nodes=sum(rounded.values()), blocks=blocks)
    counting = CountingMachine(list(by_name(found)), SERVER)
    predicting(counting, replace(context, sizes=sizes, data={}), {TRIAL: torch.tensor([0])})
    for party in by_name(found):
        log = json.loads((run.party(party).path / "prediction_traffic.json").read_text())
        sent = sum(row["bytes"] for row in log if row["direction"] == "sent" and row["kind"] in COUNTED)
        assert sent == sum(cost.sent.get(party, 0) for cost in counting.costs.values()), party
    bit = 8 + HEADER_BYTES
    opened = {"A": 2 * 8 + HEADER_BYTES + bit, "B": bit, "C": 8 + HEADER_BYTES + bit, NET: bit}
    for party, expected in opened.items():
        log = json.loads((run.party(party).path / "prediction_traffic.json").read_text())
        got = [row["bytes"] for row in log if (row["direction"], row["kind"]) == ("received", "mask_share")]
        assert set(got) == {expected}, party


def test_the_twin_opens_the_named_rows_of_what_it_would_open_of_all() -> None:
    found = banks()
    job = job_of(found)
    inputs = PARADIGMS["union"].data.accept(job, *found)
    context = joint_context(job, inputs.graphs, inputs.ids)
    machine = PlainMachine(list(by_name(found)))
    trained_program = SealedProgram(machine, context)
    trained_program.enter(trains=True)
    trained_program.begin()
    trained_program.step(0)
    shares, whole = trained_program.shares(), trained_program.predict()
    assert whole is not None
    asked = {"A": torch.tensor([7, 2]), "C": torch.tensor([4])}
    data = {party: replace(own, asked=asked.get(party)) for party, own in context.data.items()}
    sizes = of_asked(context, {party: len(rows) for party, rows in asked.items()})
    told = predicting(PlainMachine(list(by_name(found))), replace(context, sizes=sizes, data=data), shares)
    assert told is not None
    start = context.sizes.blocks["C"].rows.start
    assert torch.allclose(told, whole[[7, 2, start + 4]], atol=1e-6)


def exchanged(run: RunDirectory, party: PartyId) -> list[dict[str, Any]]:
    """What a party sent and got in a prediction, but for hellos, which have numbers drawn at random."""
    log = json.loads((run.party(party).path / "prediction_traffic.json").read_bytes())
    return [row for row in log if row["kind"] != "hello"]


def test_others_learn_how_many_a_bank_names_and_not_which(tmp_path: Path) -> None:
    found = banks()
    run = trained(job_of(found, NAMED), found, tmp_path / "run", record_views=True)
    named(run, found, {"A": [0, 1]})
    traffic = {party: exchanged(run, party) for party in "BC"}
    orders = [load_view(run, "B").received(Kind.PLACEMENT, "A")[-1].tensor()]
    named(run, found, {"A": [29, 3]})
    assert traffic == {party: exchanged(run, party) for party in "BC"}
    orders.append(load_view(run, "B").received(Kind.PLACEMENT, "A")[-1].tensor())
    assert [len(order) for order in orders] == [2, 2]
    for party in ("B", "C", SERVER):
        assert load_tensors(run.party(party).path / "named.safetensors") == ({}, {"A": 4, "B": 0, "C": 0})
        assert not (run.party(party).path / "wanted.safetensors").exists()


def test_each_bank_may_name_so_many_and_every_party_counts(tmp_path: Path) -> None:
    found = banks()
    job = job_of(found, NAMED)
    run = trained(job, found, tmp_path / "run")
    with refused(ConfigError, key="nodes"):
        predict(run.path)
    with refused(ConfigError, code="none-named", key="named_nodes"):
        predict(run.path, ids=["nobody"])
    with refused(ConfigError, code="refused"):
        predict(run.path, list(range(MOST + 1)))
    predict(run.path, list(range(MOST)))
    with refused(ConfigError, code="refused"):
        predict(run.path, [0])
    named(run, found, {"B": [1, 2, 3], "C": [0]})  # who has named its own goes on helping
    for party in (*"ABC", SERVER):
        count = NamedNodes(job, FolderKeeper(run.party(party).path))
        assert [count.left(holder) for holder in "ABC"] == [0, MOST - 3, MOST - 1]
    (run.party("A").path / "named.safetensors").unlink()  # a bank that forgets is refused by the others
    with refused(ProtocolError, code="stated", key="asked", value=1, party="A"):
        predict(run.path, [0])


@pytest.mark.parametrize("party", [NET, SERVER])
def test_who_has_no_nodes_names_none(party: PartyId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = UnionNetwork if party == NET else SealedRole
    hello = kind.hello

    def lying(role: Any) -> Any:
        found = hello(role)
        return found.model_copy(update={"asked": 1}) if role.session.link.party == party else found

    found = with_network(banks())
    run = trained(job_of(found, NAMED), found, tmp_path / "run")
    monkeypatch.setattr(kind, "hello", lying)
    with refused(ProtocolError, code="stated", party=party):
        predict(run.path, [0])


def test_a_bank_s_leave_is_asked_by_name() -> None:
    found = with_network(banks())
    told = {"confirmed-edges"} if NET not in by_name(found) else {"listed-nodes"}
    names = {"own-named-classes", "own-named-margins"}
    assert set(revelation_causes(job_of(found, NAMED), "A")) == names | told
    assert set(revelation_causes(job_of(found, NAMED, {"output": "classes"}), "A")) == {"own-named-classes"} | told
    assert set(revelation_causes(job_of(found, ALL), "A")) == {"own-classes", "own-margins"} | told


def test_an_id_that_nobody_has_is_refused_before_any_is_counted(tmp_path: Path) -> None:
    """The known ones can be named again: nothing was counted, and nobody was told of them."""
    found = banks()
    job = job_of(found, NAMED)
    run = trained(job, found, tmp_path / "run")
    known = [found[1]["A"][3], found[1]["B"][4]]
    with refused(ConfigError, key="ids", value="nobody"):
        predict(run.path, ids=[known[0], "nobody", known[1]])
    for party in (*"ABC", SERVER):
        count = NamedNodes(job, FolderKeeper(run.party(party).path))
        assert [count.left(holder) for holder in "ABC"] == [MOST] * 3
    assert all(len(load_predictions(run.party(party)).nodes) == 0 for party in "ABC")
    assert set(predict(run.path, ids=known).ids or ()) == set(known)
