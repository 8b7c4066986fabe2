"""Weights of a holder's own: never summed, kept at home, and otherwise as in any run."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.network import Averaged, Own
from veilgraph_averaging.node_tasks import Classes
from veilgraph_averaging.training import public, summand

from tests import nightly
from tests.errors import About, refused
from tests.paradigms.averaging.jobs import NAMES, close, dropping_out, graphs, job, sums_of, twin_of
from tests.paradigms.cutting import cut_run
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.core.types import SERVER, Kind
from veilgraph.link.view import read_view
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

LAST: Settings = {"train": {"select_by": "last"}}
OWN: Settings = {"averaging": {"personal": ["input", "local"]}}


def weights_of(run: Path) -> dict[str, dict[str, Tensor]]:
    directory = RunDirectory.open(run)
    return {party: load_tensors(directory.party(party).model_path)[0] for party in (*NAMES, SERVER)}


def test_a_run_is_its_twin_whoever_drops_out(tmp_path: Path) -> None:
    """Who drops out has trained what stays with it."""
    settings = job(LAST, {"averaging": {"personal": ["local", "output"]}})
    dropped = {"B": {sums_of(2)[0]: 1}, "D": {sums_of(3)[1]: 3}}
    with dropping_out(dropped):
        run = train(settings, tmp_path / "run")
    twin, losses, scores = twin_of(settings, dropped)
    assert [record["loss"] for record in run.metrics] == pytest.approx(losses, abs=1e-6)
    assert run.metrics[-1]["val_loss"] == pytest.approx(scores[-1].val_loss, abs=1e-6)
    for name in NAMES:
        found = load_tensors(RunDirectory.open(run.path).party(name).path / "predictions.safetensors")[0]
        assert close(found["probabilities"], twin.infer(name).softmax(dim=1)), name
    assert torch.equal(predict(run.path).probabilities, run.predictions.probabilities)


@nightly
def test_weights_of_ones_own_differ_and_the_others_are_all_alike(tmp_path: Path) -> None:
    settings = job(LAST, OWN)
    found = weights_of(train(settings, tmp_path / "run").path)
    cut = weights_of(resume(cut_run(settings, tmp_path / "cut", 2)).path)
    assert all(close(cut[party][name], weight) for party in found for name, weight in found[party].items())
    for name, weight in found[SERVER].items():
        others = [found[party][name] for party in NAMES]
        alike = [torch.equal(weight, other) for other in others]
        assert all(alike) if name.startswith("network.output.") else not any(alike), name
    twin, *_ = twin_of(settings)
    untouched = twin.task.network(LearningStreams(settings.seed, SERVER)).state_dict()
    assert torch.equal(found[SERVER]["network.input.weight"], untouched["input.weight"])


class OwnWeightsAlone(Classes):
    """Its loss is of the weights at home and of nothing else."""

    def loss(self, network: Averaged, own: Own, generator: torch.Generator) -> Tensor:
        return torch.stack([weight.square().sum() for weight in network.at_home()]).sum()


def test_nothing_of_weights_at_home_is_in_what_is_summed() -> None:
    """They train, and of all that is added up only the loss says so."""
    settings = job(OWN, {"train": {"weight_decay": 0.0}})
    given = graphs(settings)
    known = public(
        settings,
        {graph.party: graph.num_features for graph in given},
        {graph.party: Classes.subject.stated(graph) for graph in given},
    )
    task, streams = OwnWeightsAlone(known), LearningStreams(settings.seed, "A")
    network, own = task.network(streams), task.own(given[0], streams)
    network.keep_home(settings.averaging.personal)
    before = [weight.detach().clone() for weight in network.at_home()]
    found = summand(settings, task, network, own, lambda epoch: streams.generator("dropout", 1, epoch))
    shared = {name: len(each.reshape(-1)) for name, each in network.named_parameters() if name.startswith("output.")}
    assert len(found) == sum(shared.values()) + 2
    assert not bool(found[:-2].any())
    moved = zip(network.at_home(), before, strict=True)
    assert all(torch.equal(now, then) != bool(then.any()) for now, then in moved)  # what begins at 0 has no slope


def test_messages_have_room_for_what_is_shared_alone(tmp_path: Path) -> None:
    settings = job(LAST, OWN)
    run = train(settings, tmp_path / "run", record_views=True, view_passes=0)
    directory = RunDirectory.open(run.path)
    twin, *_ = twin_of(settings)
    shared = len(twin.network.vector())
    assert shared < sum(weight.numel() for weight in twin.network.parameters())
    sizes = {shared, shared + 2, twin.task.judging.tally_size}
    for name in NAMES:
        seen = [each for path in directory.party(name).views() for each in read_view(path)]
        long = [each for each in seen if each.tag.kind in (Kind.MASKED, Kind.AVERAGED)]
        assert {each.shape[0] for each in long} == sizes
        initial = LearningStreams(settings.seed, name)
        own = list(twin.task.network(initial).state_dict().values())
        sent = b"".join(each.tensor().numpy().tobytes() for each in seen if each.sender == name)
        assert not any(weight.numpy().tobytes() in sent for weight in own if bool(weight.any()))


REFUSED: dict[str, tuple[Settings, About]] = {
    "all": ({"personal": ["input", "local", "output"]}, {"key": "averaging.personal"}),
    "twice": ({"personal": ["input", "input"]}, {"key": "averaging.personal"}),
    "none such": ({"personal": ["head"]}, {"key": "averaging.personal.0", "value": "head"}),
    "gradients": (
        {"personal": ["input"], "rule": {"name": "fedsgd"}, "local_epochs": 1},
        {"key": "averaging.personal"},
    ),
}


@pytest.mark.parametrize(("change", "about"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_stay_at_home(change: Settings, about: About) -> None:
    with refused(ConfigError, **about):
        job({"averaging": change})


def test_a_part_without_weights_is_refused(tmp_path: Path) -> None:
    settings = job({"averaging": {"personal": ["local"]}, "model": {"local": {"model": "appnp"}}})
    with refused(ConfigError, key="averaging.personal", value="local"):
        train(settings, tmp_path / "run")
