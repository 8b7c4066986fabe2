"""Whole averaging runs: as the twin has them, whoever drops out when, resumed, and what is refused."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from veilgraph_averaging.plain import PlainAveraging
from veilgraph_averaging.roles import AveragingHolder, AveragingServer

from tests import nightly
from tests.errors import About, refused
from tests.mpc.aggregation.rounds import MOMENTS
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.averaging.jobs import (
    EPOCHS,
    NAMES,
    RULES,
    absent,
    close,
    dropping_out,
    graphs,
    job,
    predicts_as_twin,
    same_as_twin,
    sums_of,
    twin_of,
)
from tests.paradigms.cutting import cut_run
from tests.paradigms.exported import export, over
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, ProtocolError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER
from veilgraph.graph.dataset import load_parts
from veilgraph.graph.party import PartyGraph
from veilgraph.link.factory import MemoryHub
from veilgraph.protocol.role import Role, RoleContext
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.session.training import infer, train_step
from veilgraph.samples.organisations import node_ids


@pytest.mark.cases(1)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_run_is_its_twin(rule: Settings, tmp_path: Path) -> None:
    settings = job(rule, {"train": {"select_by": "last"}})
    same_as_twin(train(settings, tmp_path / "run"), settings)


def test_the_loss_of_a_round_is_of_its_first_local_epoch_with_the_weights_that_all_had() -> None:
    """However many local epochs follow: the twin and the roles share what computes it, so neither checks the other."""
    own = graphs(job())
    once, often = (PlainAveraging(job({"averaging": {"local_epochs": epochs}}), own) for epochs in (1, 3))
    assert once.round(1) == often.round(1)
    assert not torch.equal(once.network.vector(), often.network.vector()), "the later epochs were trained"
    assert once.round(2) != often.round(2)


def test_a_rare_class_weighs_as_much_as_another_over_all_holders() -> None:
    def lopsided(graph: PartyGraph) -> PartyGraph:
        assert graph.labels is not None
        assert graph.train_mask is not None
        few = (graph.labels != 0) | (torch.arange(graph.num_nodes) % 5 == 0)
        return replace(graph, train_mask=graph.train_mask & few)

    own = [lopsided(graph) for graph in graphs(job())]
    plain, alike = (PlainAveraging(job({"train": {"class_weights": weights}}), own) for weights in ("none", "balanced"))
    losses = plain.round(1), alike.round(1)
    counts = torch.stack([graph.labels[graph.train_mask].bincount(minlength=3) for graph in own]).sum(0)  # type: ignore[index]
    assert torch.equal(alike.network.facts.long(), counts)
    assert abs(losses[0] - losses[1]) > 1e-3  # type: ignore[operator]


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("moment", MOMENTS)
def test_who_drops_out_of_weights_or_scores_at_any_moment_is_left_out_of_these_and_is_back(
    moment: int, tmp_path: Path
) -> None:
    settings = job({"train": {"select_by": "last"}})
    dropped = {"B": {sums_of(2)[0]: moment}, "D": {sums_of(3)[1]: moment, sums_of(4)[0]: moment}}
    with dropping_out(dropped):
        run = train(settings, tmp_path / "run")
    same_as_twin(run, settings, dropped)


def test_roles_go_on_without_a_holder_that_is_gone_for_good() -> None:
    """What runs a job ends it for all when a process dies; that is not for want of the roles."""
    settings = job()
    own, hub = {graph.party: graph for graph in graphs(settings)}, MemoryHub([*NAMES, SERVER], 20.0)

    def play(party: str) -> Role | None:
        session = RoleContext(settings, hub.link(party), LearningStreams(settings.seed, party), fixed_secrets(party))
        role = AveragingServer(session) if party == SERVER else AveragingHolder(session, own[party])
        role.setup([])
        for epoch in range(1, EPOCHS + 1):
            if party == "B" and epoch == 3:
                hub.leave(party)
                return None
            train_step(role, 2 * epoch, epoch)
            infer(role, 2 * epoch + 1)
        return role

    with ThreadPoolExecutor(len(NAMES) + 1) as pool:
        roles = dict(zip((*NAMES, SERVER), pool.map(play, (*NAMES, SERVER)), strict=True))
    twin = PlainAveraging(settings, list(own.values()))
    for epoch in range(1, EPOCHS + 1):
        twin.round(epoch, ["B"] if epoch >= 3 else [])
    for party, role in roles.items():
        if role is not None:
            found = nn.utils.parameters_to_vector(role.model.networks["network"].parameters()).detach()
            assert close(found, twin.network.vector()), party


def test_too_few_end_the_job_and_say_so(tmp_path: Path) -> None:
    lost = {"B": {3: 3}, "D": {3: 1}}
    with dropping_out(lost), refused(ProtocolError, code="too-few", key="threshold", value=2):
        train(job(), tmp_path / "run")


@nightly
def test_a_run_that_was_cut_off_has_the_servers_momentum_back(tmp_path: Path) -> None:
    settings = job(RULES["fedadam"], {"train": {"select_by": "last"}})
    path = cut_run(settings, tmp_path / "cut", 2)
    resumed = resume(path)
    assert resumed.summary["started_at"] > 0
    same_as_twin(resumed, settings)


def unlabelled(graph: PartyGraph) -> PartyGraph:
    return replace(graph, labels=None, num_classes=None, train_mask=None, val_mask=None, test_mask=None)


def test_a_holder_without_labels_weighs_nothing_and_a_round_of_such_changes_nothing(tmp_path: Path) -> None:
    settings = job({"train": {"select_by": "last"}, "averaging": {"local_epochs": 1}})
    given = [graph if graph.party == "A" else unlabelled(graph) for graph in graphs(settings)]
    twin = PlainAveraging(settings, given)
    ids = {graph.party: [f"{graph.party}{row}" for row in range(graph.num_nodes)] for graph in given}
    lost = {"A": {sums_of(2)[0]: 1}}
    with dropping_out(lost):
        run = train(settings, tmp_path / "run", parties=given, ids=ids)
    losses = [twin.round(epoch, absent(lost, sums_of(epoch)[0])) for epoch in range(1, EPOCHS + 1)]
    assert losses[1] is None
    assert [each.get("loss") for each in run.metrics] == [each and pytest.approx(each, abs=1e-6) for each in losses]
    predicts_as_twin(run, settings, twin, given[0])


# What is refused

REFUSED: dict[str, tuple[Settings, About]] = {
    "edges": ({"data": {"partition": {"by": "edges"}}}, {"key": "data.partition.by", "value": "edges"}),
    "all nodes": ({"data": {"partition": {"by": "labels", "knows": "all"}}}, {"key": "data.partition.knows"}),
    "half": ({"averaging": {"threshold": 2}}, {"key": "averaging.threshold", "value": 2}),
    "more than all": ({"averaging": {"threshold": 5}}, {"key": "averaging.threshold", "value": 5}),
    "impatient": ({"averaging": {"patience_s": 5.1}}, {"key": "timeout_s", "value": 30}),
    "gradient of later weights": (
        {"averaging": {"rule": {"name": "fedsgd"}}},
        {"key": "averaging.local_epochs", "value": 2},
    ),
    "rule": ({"averaging": {"rule": {"name": "median"}}}, {"key": "averaging.rule.name", "value": "median"}),
    "another rule's": ({"averaging": {"rule": {"name": "fedavg", "mu": 1.0}}}, {"key": "averaging.rule.fedavg.mu"}),
    "fanout": ({"model": {"local": {"fanout": 3}}}, {"key": "local.fanout", "value": 3}),
    "class weights of links": (
        {"train": {"class_weights": "balanced"}, "averaging": {"task": {"name": "links"}}},
        {"key": "train.class_weights"},
    ),
    "class weights of perturbed labels": (
        {"train": {"class_weights": "balanced"}, "label_privacy": {"epsilon": 2.0}},
        {"key": "train.class_weights"},
    ),
    "privacy": ({"privacy": {"unit": "row", "noise_multiplier": 1.0, "delta": 1e-5}}, {"code": "config"}),
}


@pytest.mark.parametrize(("change", "about"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_job_cannot_be(change: Settings, about: About) -> None:
    with refused(ConfigError, **about):
        job(change)


@nightly
def test_tables_are_read_and_scaled_together(tmp_path: Path) -> None:
    """As exported, and with columns standardised over all holders' rows: the twin has the same graphs."""
    settings = job(
        {
            "train": {"select_by": "last"},
            "data": {"feature_scaling": "standard"},
            "model": {"dropout": 0.0},
        }
    )
    run = train(over(export(tmp_path, settings), settings), tmp_path / "run")
    twin, losses, _ = twin_of(settings)
    assert [record["loss"] for record in run.metrics] == pytest.approx(losses, abs=1e-5)
    (own, *_) = load_parts(settings.data, settings.seed)
    ready = twin.task.own(own.graph, LearningStreams(settings.seed, "A"))
    mine = twin.infer("A").softmax(dim=1)
    calibration = twin.task.judging.calibration(twin.network, ready, mine)
    assert calibration is not None
    names = node_ids(own.ids.numpy())
    for rows, told in ((mine, run.predictions.uncalibrated), (calibration.of(mine), run.predictions.probabilities)):
        expected = dict(zip(names, rows, strict=True))
        found = dict(zip(run.predictions.ids or (), told, strict=True))
        assert found.keys() == expected.keys()
        assert all(float((found[name] - row).abs().max()) < 1e-5 for name, row in expected.items())
