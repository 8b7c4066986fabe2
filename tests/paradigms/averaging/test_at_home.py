"""What a holder learns at home after a private training: from its own data, kept there, and never worse there."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from veilgraph_averaging.at_home import AtHomeSettings, ClassSums, Personalised, at_home
from veilgraph_averaging.network import LinearNetwork, Own
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
SUMS: Settings = {
    **local("gin", 0),
    "averaging": {"privacy": {"degree_bound": None, "batch": None}},
    "train": {"epochs": 1},
}
SUMS["model"]["dim"] = 0


@pytest.fixture(autouse=True)
def _known_noise() -> Iterator[None]:
    with known_noise():
        yield


def weights(run: Path, party: str) -> dict[str, Tensor]:
    return load_tensors(RunDirectory.open(run).party(party).model_path)[0]


def sent(run: Path) -> list[object]:
    return [each for each in json.loads((run / "traffic.json").read_text("utf-8")) if each["direction"] == "sent"]


@pytest.mark.parametrize("shared", [NO_EDGES, SUMS], ids=["rounds", "sums"])
def test_a_run_is_its_twin_and_predicts_again_what_it_has_learnt(shared: Settings, tmp_path: Path) -> None:
    settings = job(shared, AT_HOME)
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


@pytest.mark.parametrize("shared", [NO_EDGES, SUMS], ids=["rounds", "sums"])
def test_nothing_of_it_is_sent_and_the_weights_that_all_have_are_those_without(
    shared: Settings, tmp_path: Path
) -> None:
    with_it, without_it = (
        train(job(shared, *more), tmp_path / name).path for name, more in (("with", [AT_HOME]), ("without", []))
    )
    assert sent(with_it) == sent(without_it)
    for party in ("A", "B", "C"):
        mine, other = weights(with_it, party), weights(without_it, party)
        assert {name for name in mine if not name.startswith("at_home.")} == set(other)
        assert all(torch.equal(mine[name], tensor) for name, tensor in other.items())
    assert set(weights(with_it, "server")) == set(weights(without_it, "server"))


def test_what_class_sums_are_divided_by_changes_no_prediction() -> None:
    found = []
    for batch, delta in ((8, None), (None, 1e-5)):
        twin = twin_of(job(SUMS, AT_HOME, {"averaging": {"privacy": {"batch": batch, "delta": delta}}}))
        twin.finish()
        found.append((twin.network.vector(), twin.infer("A")))
    (divided, before), (whole, after) = found
    assert close(8 * divided, whole)
    assert float((before - after).abs().max()) < 1e-6


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
    return labelled(features + 0.7 * labels[:, None], torch.stack([source_, target]), labels, part)


def labelled(features: Tensor, edges: Tensor, labels: Tensor, part: Tensor) -> Own:
    """A holder's graph: nodes of part 0 are for training, of 1 for validation and of 2 for tests."""
    graph = PartyGraph("A", features, edges, labels=labels, num_classes=2)
    parted = replace(graph, train_mask=part == 0, val_mask=part == 1, test_mask=part == 2)
    return Own.of(parted, torch.float32)


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


def class_sums(own: Own, sums: Tensor) -> ClassSums:
    made = at_home(AtHomeSettings(epochs=40), own, 2, LearningStreams(0, "A"), torch.float32, shared(sums))
    assert isinstance(made, ClassSums)
    return made


def shared(sums: Tensor) -> LinearNetwork:
    found = LinearNetwork(sums.shape[1], 2, torch.float32)
    found.take(sums.flatten())
    return found


def rows_of(seed: int, count: int = 4000) -> tuple[Tensor, Tensor]:
    """Rows of ten columns whose classes show in three of small variance, beside one of large that says nothing."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    rows = 0.3 * torch.randn(count, 10, generator=generator)
    rows[:, 0] *= 10
    rows[:, 1:4] += 0.4 * labels[:, None]
    return rows, labels


def few_labels(seed: int = 0) -> Own:
    """A holder with a few labels of such rows, and edges that say nothing."""
    rows, labels = rows_of(seed, 600)
    part = torch.where(torch.arange(600) < 20, 0, torch.where(torch.arange(600) < 120, 1, 2))
    ends = torch.randint(600, (2, 50), generator=torch.Generator().manual_seed(seed))
    return labelled(rows - rows.mean(0) + 0.1, ends, labels, part)


def others_sums() -> Tensor:
    """Of other holders' rows, each class's less the mean of both."""
    rows, labels = rows_of(1)
    sums = torch.eye(2)[labels].T @ (rows - rows.mean(0))
    return sums - sums.mean(0)


def test_sums_of_others_rows_add_to_few_labels_and_noise_alone_does_not_harm() -> None:
    """The column that says nothing varies most: without the holder's own second moments it would hide the other."""
    own = few_labels()
    found, noise = (
        class_sums(own, others_sums()),
        class_sums(own, 1e5 * torch.randn(2, 10, generator=torch.Generator().manual_seed(2))),
    )
    averaged = own.features.times(others_sums().T)
    with torch.no_grad():
        found.learn(averaged)
        noise.learn(averaged)
        by_itself = noise.network(own.features, own.adjacency, None)
        figures = [right(logits, own, own.graph.test_mask) for logits in (found(averaged), noise(averaged), by_itself)]
        assert figures[2] > 0.7
        assert figures[0] > figures[2] + 0.03
        assert figures[1] > figures[2] - 0.02
        assert figures[0] > right(averaged, own, own.graph.test_mask) + 0.05
        assert torch.allclose(found(averaged), mixed(found, own), atol=1e-5)
        least = class_sums(own, others_sums())
        least.use_sums_alone(0.3)
        assert float(torch.cosine_similarity(found.solved, least.solved, dim=0).min()) < 0.999


def mixed(made: ClassSums, own: Own) -> Tensor:
    """As the formula has it, by a dense matrix."""
    graph, z = own.graph, own.graph.features @ made.solved - made.shift
    counts = torch.zeros(600, 600).index_put_((graph.edge_index[1], graph.edge_index[0]), torch.ones(50), True)
    means, moved = counts / counts.sum(1, keepdim=True).clamp_min(1), z
    for _ in range(4):
        moved = 0.8 * means @ moved + 0.2 * z
    parts = [made.network(own.features, own.adjacency, None), z, moved]
    return sum((weight * part.log_softmax(1) for weight, part in zip(made.mix, parts, strict=True)), start=made.bias)


def test_a_network_that_does_worse_on_validation_nodes_the_longer_it_learns_is_kept_as_it_began() -> None:
    own = few_labels()
    assert own.graph.labels is not None
    misled = torch.where(own.graph.train_mask, 1 - own.graph.labels, own.graph.labels)  # type: ignore[arg-type]
    made = class_sums(Own.of(replace(own.graph, labels=misled), torch.float32), others_sums())
    with torch.no_grad():
        made.learn(torch.zeros(600, 2))
        assert not made.network(own.features, own.adjacency, None).any()


def test_two_validation_nodes_leave_a_holder_nearly_by_itself() -> None:
    own = few_labels()
    two = replace(own.graph, val_mask=(torch.arange(600) >= 20) & (torch.arange(600) < 22))
    made = class_sums(Own.of(two, torch.float32), others_sums())
    with torch.no_grad():
        made.learn(torch.zeros(600, 2))
    assert float(made.mix[0]) > 0.5
    assert not torch.equal(made.bias, torch.zeros(2))


def test_scores_are_of_ridge_regression_with_the_holders_own_second_moments() -> None:
    own, sums = few_labels(), others_sums()
    made = class_sums(own, sums)
    made.use_sums_alone()
    rows = own.graph.features.double()
    moments = rows.T @ rows / len(rows)
    expected = torch.linalg.solve(moments + 0.01 * moments.trace() * torch.eye(10), sums.double().T)
    assert torch.allclose(made.solved.double() * float(expected.norm() / made.solved.norm()), expected, rtol=1e-3)
    scores = own.features.times(made.solved)
    assert abs(float(scores.std()) - 2) < 0.01
    assert torch.allclose(made.shift, scores.mean(0), atol=1e-5)


def test_a_holder_without_labels_has_what_sums_say_and_one_without_validation_nodes_holds_some_back() -> None:
    own, averaged = few_labels(), torch.zeros(600, 2)
    bare = Own.of(replace(own.graph, labels=None, train_mask=None, val_mask=None, test_mask=None), torch.float32)
    labelled, none = torch.arange(600) < 120, torch.zeros(600, dtype=torch.bool)
    blind = Own.of(replace(own.graph, train_mask=labelled, val_mask=none), torch.float32)
    with torch.no_grad():
        assert torch.equal(class_sums(bare, others_sums())(averaged), averaged)  # before
        for holder in (bare, blind):
            made = class_sums(holder, others_sums())
            made.learn(averaged)
            assert right(made(averaged), own, own.graph.test_mask) > 0.6


def test_no_node_that_is_held_back_is_trained_on() -> None:
    """Labels are drawn: a network that learns some by heart knows nothing of the others."""
    generator = torch.Generator().manual_seed(0)
    labels, features = torch.randint(2, (40,), generator=generator), torch.randn(40, 30, generator=generator)
    own = labelled(features, torch.zeros((2, 0), dtype=torch.int64), labels, torch.zeros(40))
    made = class_sums(own, torch.zeros(2, 30))
    with torch.no_grad():
        made.learn(torch.zeros(40, 2))
        assert right(made.network(own.features, own.adjacency, None), own, own.graph.train_mask) < 1


def test_a_map_without_a_width_is_for_noisy_sums_alone() -> None:
    with refused(ConfigError, key="model.dim"):
        job(SUMS, {"averaging": {"privacy": None}})
    with refused(ConfigError, key="dim"):
        job({"model": {"dim": 0}})
