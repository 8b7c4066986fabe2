"""The horizontal job - threads, hashes, masks, secure maxima - is the plaintext network, and that is the pooled one."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.paradigms.cutting import CutError, cut_at
from tests.reference.horizontal import federate, job, parts_of
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Kind, Link, PartyId
from veilgraph.graph.pooling import HorizontalPart, pool_parts
from veilgraph.link.view import Message
from veilgraph.paradigms.horizontal.roles import HorizontalHolder, HorizontalServer
from veilgraph.paradigms.horizontal.settings import horizontal as horizontal_of
from veilgraph.paradigms.horizontal.twin import LayeredNetwork, counted_parts
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.launch.processes import run_threads
from veilgraph.runtime.session.training import infer
from veilgraph.runtime.store.run_directory import load_tensors

STEPS = 50 if "VEILGRAPH_NIGHTLY" in os.environ else 8
Settings = Mapping[str, Any]


def twin_of(settings: JobSettings, parts: list[HorizontalPart], steps: int) -> LayeredNetwork:
    network = LayeredNetwork(
        horizontal_of(settings).model,
        settings.train,
        parts,
        seed=settings.seed,
        dtype=torch.float64,
        task=horizontal_of(settings).horizontal.task,
    )
    for epoch in range(1, steps + 1):
        network.train_step(epoch)
    return network


def assert_equal(roles: Mapping[PartyId, Role], network: LayeredNetwork, parts: list[HorizontalPart]) -> None:
    holders = [roles[part.graph.party].model.weights() for part in parts]
    for weights in holders[1:]:
        assert all(torch.equal(weights[name], holders[0][name]) for name in weights), "holders' weights differ"
    expected = {f"holder.{name}": weight for name, weight in network.holder.state_dict().items()}
    server = {f"server.{name}": weight for name, weight in network.server.state_dict().items()}
    for ours, wanted in ((holders[0], expected), (roles[SERVER].model.weights(), server)):
        assert ours.keys() == wanted.keys()
        for name, weight in wanted.items():
            assert float((ours[name] - weight).abs().max()) < 1e-5, name
    logits = network.infer()
    ids = torch.unique(torch.cat([part.ids for part in parts]))
    for part in parts:
        role = roles[part.graph.party]
        assert isinstance(role, HorizontalHolder)
        assert_close(role.logits, logits[torch.searchsorted(ids, part.ids)])


def assert_close(ours: Tensor, wanted: Tensor) -> None:
    """To 1e-5, of the largest where that is above 1: logits of a gated network reach hundreds."""
    assert float((ours - wanted).abs().max()) < 1e-5 * max(1.0, float(wanted.abs().max()))


CASES = [
    (2, {}),
    (3, {"update": "concat"}),
    (4, {"update": "gated", "layers": 3}),
    (5, {"message": "none"}),
    pytest.param(2, {"message": "none", "update": "gated"}, marks=nightly),
    (3, {"message": "none", "aggregate": "mean", "edges": "deduplicate", "layers": 3}),
    pytest.param(3, {"message": "none", "combine": "secure-max", "update": "concat"}, marks=nightly),
    pytest.param(2, {"message": "none", "layers": 1}, marks=nightly),
    (2, {"aggregate": "min", "server": {"batch_norm": True}, "message": "full"}),
    (3, {"message": "full", "combine": "secure-max"}),
    pytest.param(3, {"aggregate": "mean", "edges": "deduplicate", "message": "full"}, marks=nightly),
    (4, {"aggregate": "sum", "edges": "deduplicate", "update": "difference"}),
    pytest.param(2, {"combine": "secure-max"}, marks=nightly),
    (3, {"combine": "secure-max", "update": "concat"}),
    pytest.param(4, {"combine": "secure-max", "layers": 1}, marks=nightly),
    (3, {"task": {"name": "values"}}),
    (2, {"task": {"name": "values", "low": -50.0, "high": 90.0}, "message": "full", "combine": "secure-max"}),
    pytest.param(3, {"task": {"name": "values"}, "aggregate": "mean", "edges": "deduplicate"}, marks=nightly),
    pytest.param(2, {"task": {"name": "values"}, "message": "none", "combine": "secure-max"}, marks=nightly),
]


@pytest.mark.cases(5)
@pytest.mark.parametrize(("holders", "horizontal"), CASES, ids=str)
def test_weights_and_embeddings_equal_the_pooled_models(holders: int, horizontal: Settings) -> None:
    settings = job(holders, **horizontal)
    parts = parts_of(settings)
    roles, _ = federate(settings, parts, STEPS)
    assert_equal(roles, twin_of(settings, parts, STEPS), parts)
    whole = [pool_parts(counted_parts(horizontal_of(settings).model, parts))]
    pooled = twin_of(settings, whole, STEPS)
    logits = pooled.infer()
    for part in parts:
        role = roles[part.graph.party]
        assert isinstance(role, HorizontalHolder)
        at = torch.searchsorted(whole[0].ids, part.ids)
        assert_close(role.logits, logits[at])


@pytest.mark.parametrize("task", ["classes", "values"])
def test_scores_are_those_of_all_labels_together(task: str) -> None:
    settings = job(3, task={"name": task})
    parts = parts_of(settings)

    def program(link: Link) -> Any:
        session = RoleContext(settings, link, LearningStreams(settings.seed, link.party), system_secrets)
        if link.party == SERVER:
            server = HorizontalServer(session)
            server.setup([])
            infer(server, 0)
            return None
        part = next(part for part in parts if part.graph.party == link.party)
        role = HorizontalHolder(session, part.graph, [str(node) for node in part.ids.tolist()])
        role.setup([])
        infer(role, 0)
        return role.scores(everything=True)

    found = run_threads(dict.fromkeys([*settings.data.names, SERVER], program), 30, lambda: None)
    network = twin_of(settings, parts, 0)
    expected = network.score(network.infer(), everything=True)
    assert expected.values["val_accuracy" if task == "classes" else "val_rmse"] is not None
    for party in settings.data.names:
        for name, value in expected.record().items():
            if not name.endswith("_auc"):
                assert found[party].record()[name] == pytest.approx(value, abs=1e-5), name


@pytest.mark.parametrize("combine", ["max", "secure-max"])
def test_messages(combine: str) -> None:
    """What goes where; the server is sent no id, and with a secure maximum no embedding."""
    settings = job(3, combine=combine)
    parts = parts_of(settings)
    _, seen = federate(settings, parts, 2)
    to_server = {message.tag.kind for message in seen[SERVER] if message.receiver == SERVER}
    secure = {Kind.MASKED} if combine == "secure-max" else {Kind.EMBEDDING}
    assert to_server == {Kind.HELLO, Kind.NODE_LIST, Kind.GRADIENT} | secure
    holders = {m.tag.kind for p in settings.data.names for m in seen[p] if SERVER not in (m.sender, m.receiver)}
    bits = {Kind.MASKED_BITS, Kind.WIN_SHARE} if combine == "secure-max" else set()
    assert holders == {Kind.HELLO, Kind.KEY, Kind.NODE_KEY, Kind.MASKED, Kind.MASKED_GRADIENT} | bits
    again = [
        message.tensor for message in federate(settings, parts, 0)[1][SERVER] if message.tag.kind is Kind.NODE_LIST
    ]
    lists = [message.tensor for message in seen[SERVER] if message.tag.kind is Kind.NODE_LIST]
    assert len(lists) == len(again) == 3
    assert not any(torch.equal(one, other) for one, other in zip(lists, again, strict=True)), "the key is not fresh"


def messages_by_step_and_round(seen: tuple[Message, ...], kind: Kind, sender: PartyId, receiver: PartyId) -> list[str]:
    """As step/round, sorted; set-up's left out."""
    tags = [m.tag for m in seen if (m.tag.kind, m.sender, m.receiver) == (kind, sender, receiver) and m.tag.round]
    return sorted(f"{tag.step}/{tag.round}" for tag in tags)


@pytest.mark.parametrize(("combine", "update"), [("max", "gated"), ("secure-max", "sum")])
def test_a_first_layer_without_weights_is_sent_once_a_session(combine: str, update: str) -> None:
    settings = job(2, message="none", update=update, combine=combine, layers=3)
    parts = parts_of(settings)
    _, transcripts = federate(settings, parts, 2)  # and a pass for inference
    seen = transcripts[SERVER]
    every_pass = [f"{step}/{layer}" for step in (0, 1, 2) for layer in (1, 2, 3)]
    sent, back = every_pass, every_pass[:6]
    if update == "sum":
        sent, back = ["0/1", "0/2", "0/3", "1/2", "1/3", "2/2", "2/3"], ["0/2", "0/3", "1/2", "1/3"]
    kind = Kind.MASKED if combine == "secure-max" else Kind.EMBEDDING
    for holder in settings.data.names:
        assert messages_by_step_and_round(seen, kind, holder, SERVER) == sent
        assert messages_by_step_and_round(seen, Kind.COMBINED, SERVER, holder) == every_pass
        assert messages_by_step_and_round(seen, Kind.GRADIENT, holder, SERVER) == every_pass[:6]
        assert messages_by_step_and_round(seen, Kind.GRADIENT, SERVER, holder) == back
    if combine == "secure-max":
        assert messages_by_step_and_round(transcripts["A"], Kind.WIN_SHARE, "B", "A") == sent
        dealt = [m.tag.step for m in seen if m.tag.kind is Kind.BIT_CORRELATION and m.receiver == "B"]
        assert sum(step <= 2 for step in dealt) == 7 * len(sent)
        ahead = sum(step == 3 for step in dealt)  # a pass that never came: cut short where a holder had left already
        assert ahead <= 7 * (3 if update == "gated" else 2)


@pytest.mark.parametrize("combine", ["secure-max"])
def test_a_resumed_session_sends_a_first_layer_without_weights_once_more(combine: str, tmp_path: Path) -> None:
    settings = parse_job(
        {
            "paradigm": "horizontal",
            "seed": 5,
            "timeout_s": 20,
            "data": {"dataset": "synthetic", "holders": 2},
            "model": {"dim": 8, "message": "none", "combine": combine, "server": {"batch_norm": True}},
            "train": {"epochs": 8, "patience": None, "checkpoint_every": 2},
        }
    )
    whole = train(settings, tmp_path / "whole")
    with cut_at(5), pytest.raises(CutError):
        train(settings, tmp_path / "cut")
    resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == 4
    assert torch.equal(whole.predictions.probabilities, resumed.predictions.probabilities)
    for party in (*settings.data.names, SERVER):
        ours, theirs = (load_tensors(run.path / "parties" / party / "model.safetensors")[0] for run in (whole, resumed))
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
    sent = [
        record["messages"]
        for record in map(json.loads, (resumed.path / "parties/B/disclosures.jsonl").read_text().splitlines())
        if (record["kind"], record["to"]) == ("masked" if combine == "secure-max" else "embedding", SERVER)
    ]
    assert sent[-1] == 1 + 9, "four epochs with an evaluation each, and a last inference: 9 passes"
