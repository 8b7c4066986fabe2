"""What a holder learns at home after a private training: from its own data, kept there, and never worse there."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.network import AtHomeSettings, Own, Personalised
from veilgraph_averaging.settings import AveragingJob

from tests.errors import refused
from tests.paradigms.averaging.jobs import close, graphs, predicts_as_twin
from tests.paradigms.averaging.private_jobs import job, known_noise, local, twin_of
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import LearningStreams
from veilgraph.graph.party import PartyGraph
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

NO_EDGES: Settings = {**local("gin", 0), "averaging": {"privacy": {"degree_bound": None}}}
AT_HOME: Settings = {"averaging": {"at_home": {"epochs": 30, "dim": 4}}}


@pytest.fixture(autouse=True)
def _known_noise() -> Iterator[None]:
    with known_noise():
        yield


def weights(run: Path, party: str) -> dict[str, Tensor]:
    return load_tensors(RunDirectory.open(run).party(party).model_path)[0]


def sent(run: Path) -> list[object]:
    return [each for each in json.loads((run / "traffic.json").read_text("utf-8")) if each["direction"] == "sent"]


def test_a_run_is_its_twin_and_predicts_again_what_it_has_learnt(tmp_path: Path) -> None:
    settings = job(NO_EDGES, AT_HOME)
    run, twin = train(settings, tmp_path / "run"), twin_of(settings)
    before = twin.infer("A")
    twin.finish()
    assert not close(twin.infer("A"), before)
    predicts_as_twin(run, settings, twin, graphs(settings)[0])
    assert bool(weights(run.path, "A")["at_home.learnt"])
    again = predict(run.path)
    for found in (again, resume(run.path).predictions):
        assert close(found.probabilities, run.predictions.probabilities)
        assert close(found.uncalibrated, run.predictions.uncalibrated)


def test_nothing_of_it_is_sent_and_the_weights_that_all_have_are_those_without(tmp_path: Path) -> None:
    with_it, without_it = (
        train(job(NO_EDGES, *more), tmp_path / name).path for name, more in (("with", [AT_HOME]), ("without", []))
    )
    assert sent(with_it) == sent(without_it)
    for party in ("A", "B", "C"):
        mine, other = weights(with_it, party), weights(without_it, party)
        assert {name for name in mine if not name.startswith("at_home.")} == set(other)
        assert all(torch.equal(mine[name], tensor) for name, tensor in other.items())
    assert set(weights(with_it, "server")) == set(weights(without_it, "server"))


def released(given: list[PartyGraph], settings: AveragingJob) -> Tensor:
    """The weights that all have at the end, with the same noise."""
    twin = twin_of(settings, given)
    twin.finish()
    return twin.network.vector()


def test_without_hops_no_edge_is_in_what_is_released_and_with_them_each_is() -> None:
    """An attack on edges: who compares what is released with what every guess at A's edges would give."""
    plain, edged = job(NO_EDGES, AT_HOME), job({"averaging": {"at_home": {"epochs": 1}}})
    for settings, shows in ((plain, False), (edged, True)):
        given = graphs(settings)
        fewer = [given[0].with_edges(torch.arange(given[0].num_edges) % 2 == 0), *given[1:]]
        assert torch.equal(released(given, settings), released(fewer, settings)) == (not shows)


def own_of(seed: int = 0) -> Own:
    """A graph whose classes show in the neighbours alone."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(80) % 2
    source_ = torch.arange(80).repeat_interleave(4)
    target = (source_ + 2 * torch.randint(1, 40, (320,), generator=generator)) % 80
    part = torch.arange(80) % 3
    features = torch.randn(80, 3, generator=generator)
    return Own.of(
        PartyGraph(
            party="A",
            features=features + 0.7 * labels[:, None],
            edge_index=torch.stack([source_, target]),
            labels=labels,
            train_mask=part == 0,
            val_mask=part == 1,
            test_mask=part == 2,
            num_classes=2,
        ),
        torch.float32,
    )


def home(own: Own, epochs: int = 60, hops: int = 1) -> Personalised:
    settings = AtHomeSettings(epochs=epochs, hops=hops)
    return Personalised(settings, own, 2, LearningStreams(0, "A"), torch.float32)


def right(logits: Tensor, own: Own, mask: Tensor | None) -> float:
    assert mask is not None
    assert own.graph.labels is not None
    return float((logits[mask].argmax(dim=1) == own.graph.labels[mask]).float().mean())


def test_it_begins_as_the_averaged_network_and_learns_from_edges() -> None:
    own = own_of()
    averaged = torch.randn(80, 2, generator=torch.Generator().manual_seed(1))
    over, rows = home(own), home(own, hops=0)
    with torch.no_grad():
        assert torch.equal(over(averaged), averaged)
        over.learn(averaged)
        found = over(averaged)
        assert right(found, own, own.graph.test_mask) > right(averaged, own, own.graph.test_mask) + 0.2
        over.learn(-averaged)  # once
        assert torch.equal(over(averaged), found)
        rows.learn(averaged)
        assert right(found, own, own.graph.test_mask) > right(rows(averaged), own, own.graph.test_mask)


def test_what_would_be_worse_on_validation_nodes_is_not_kept() -> None:
    own = own_of()
    assert own.graph.labels is not None
    perfect = 4.0 * torch.eye(2)[own.graph.labels]
    misled = replace(own.graph, labels=torch.where(own.graph.train_mask, 1 - own.graph.labels, own.graph.labels))  # type: ignore[arg-type]
    found = home(Own.of(misled, torch.float32))
    with torch.no_grad():
        found.learn(perfect)
        assert torch.equal(found(perfect), perfect)
    blind = home(Own.of(replace(misled, val_mask=torch.zeros(80, dtype=torch.bool)), torch.float32))
    with torch.no_grad():
        blind.learn(perfect)
        assert bool(blind.learnt)
        assert not torch.equal(blind(perfect), perfect)  # nothing to judge by: the last is taken


def test_it_is_for_private_training_alone_and_a_job_without_is_what_it_was() -> None:
    with refused(ConfigError, key="averaging.at_home"):
        job(AT_HOME, {"averaging": {"privacy": None}, **local("gin", 1)})
    assert job(NO_EDGES).hash() != job(NO_EDGES, AT_HOME).hash()
    assert job(NO_EDGES, {"averaging": {"at_home": None}}).hash() == job(NO_EDGES).hash()
