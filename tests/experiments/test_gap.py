"""GAP as a reference: what its noise costs, and that it learns; measuring goes on where it was cut off."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from research import gap_beside, gap_settings
from research.figures import Figures
from research.gap import Gap, _Classifier, _Encoder, _fit, _noisy_gradients, _serves, encoded, gap_logits
from research.gap_beside import ALONE, CLEAR, CONTROL, FIGURES, GAP, OURS, PAGE
from research.gap_sets import EPSILONS, LEVELS, SETS, Set, bounded, job_of
from tests import nightly
from veilgraph.graph.builtin import synthetic_data
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.accountant import gaussian_epsilon
from veilgraph.privacy.aggregation import most_neighbours
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.runtime.launch.jobs import train

DELTA = 1e-5
SMALL = Gap("edge", math.inf, DELTA, dim=4)


@pytest.fixture(scope="module")
def graph() -> PartyGraph:
    return PartyGraph.from_data("A", synthetic_data(300, 12, 3, 0))


@pytest.mark.parametrize("level", LEVELS)
def test_all_noise_together_costs_what_was_asked(level: str) -> None:
    how = Gap(level, 4.0, DELTA, hops=3, degree_bound=10, steps=50)
    mu = 3 * (2 if level == "edge" else 10) / how.sums_deviation**2
    if level == "node":
        mu += 2 * how.steps / how.gradients_deviation**2
    assert gaussian_epsilon(math.sqrt(mu), DELTA) == pytest.approx(4, rel=1e-6)


def clipped(network: nn.Module, inputs: Sequence[Tensor], labels: Tensor) -> tuple[list[Tensor], list[float]]:
    """The sum of the nodes' gradients, each formed by itself and clipped to length 1, and how long they were."""
    parameters = list(network.parameters())
    total, lengths = [torch.zeros_like(each) for each in parameters], []
    for node in range(len(labels)):
        loss = functional.cross_entropy(network(*(x[node : node + 1] for x in inputs)), labels[node : node + 1])
        found = torch.autograd.grad(loss, parameters)
        lengths.append(float(torch.cat([each.flatten() for each in found]).norm()))
        total = [one + each / max(1.0, lengths[-1]) for one, each in zip(total, found, strict=True)]
    return total, lengths


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_csr])
@pytest.mark.parametrize(
    "network",
    [lambda: nn.Linear(4, 3), lambda: _Encoder(4, SMALL, 3), lambda: _Classifier(SMALL, 3)],
    ids=["layer", "encoder", "classifier"],
)
def test_noise_is_added_to_clipped_gradients_of_single_nodes(
    network: Callable[[], nn.Module], layout: torch.layout
) -> None:
    torch.manual_seed(0)
    learner, labels = network(), torch.randint(0, 3, (40,))
    inputs = [2 * torch.randn(40, 4).relu() for _ in range(3 if isinstance(learner, _Classifier) else 1)]
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.mul_(3)
        labels[:20] = learner(*inputs)[:20].argmax(dim=1)  # whose gradients are short
    expected, lengths = clipped(learner, inputs, labels)
    assert min(lengths) < 1 < max(lengths)
    given = [each.to_sparse_csr() if layout == torch.sparse_csr else each for each in inputs]

    def noise(deviation: float) -> Tensor:
        _noisy_gradients(learner, given, labels, deviation)
        found = [each.grad for each in learner.parameters() if each.grad is not None]
        return torch.cat([(40 * each - one).flatten() for each, one in zip(found, expected, strict=True)])

    assert float(noise(1e-7).abs().max()) < 1e-5
    assert 0.7 < float(torch.cat([noise(70.0) for _ in range(30)]).std()) / 70 < 1.4
    assert not any(each._forward_hooks for each in learner.modules())


def test_it_learns_without_noise_and_nothing_where_all_is_noise(graph: PartyGraph) -> None:
    labels = graph.labels
    assert labels is not None

    def accuracy(how: Gap) -> float:
        found = gap_logits(graph, how, 0).argmax(dim=1)[graph.test_mask]
        return float(found.eq(labels[graph.test_mask]).double().mean())

    free = accuracy(Gap("edge", math.inf, DELTA))
    assert free > 0.7
    assert accuracy(Gap("node", 0.1, DELTA, steps=20)) < free - 0.1


def test_sparse_rows_are_learnt_from_as_the_same_rows_are(graph: PartyGraph) -> None:
    features = graph.features.to_dense() * (graph.features.to_dense() > 0)
    how = Gap("node", math.inf, DELTA, steps=10)
    dense, sparse = (gap_logits(replace(graph, features=each), how, 0) for each in (features, features.to_sparse_csr()))
    torch.testing.assert_close(sparse, dense, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("level", LEVELS)
def test_trainings_are_noised_at_level_node_alone(graph: PartyGraph, level: str) -> None:
    labels, train, val = graph.labels, graph.train_mask, graph.val_mask
    assert labels is not None
    assert train is not None
    assert val is not None

    def logits() -> Tensor:
        torch.manual_seed(0)
        learner = nn.Linear(graph.features.shape[1], 3)
        return _fit(learner, [graph.features.to_dense().float()], labels, train, val, Gap(level, 4.0, DELTA, steps=3))

    assert logits().equal(logits()) is (level == "edge")


def test_the_step_is_kept_that_serves_validation_nodes_best() -> None:
    """These have the training nodes' labels the other way round, as the network has them before it is trained."""
    learner, rows = nn.Linear(1, 2), torch.tensor([[1.0], [-1.0]]).repeat(4, 1)
    with torch.no_grad():
        learner.weight.copy_(torch.tensor([[0.5], [-0.5]]))
        learner.bias.zero_()
    labels, train = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1]), torch.arange(8) < 4
    found = _fit(learner, [rows], labels, train, ~train, Gap("edge", math.inf, DELTA, learning_rate=0.1))
    assert found[~train].argmax(dim=1).equal(labels[~train])


def test_it_learns_in_training_and_is_judged_out_of_it() -> None:
    seen = list[bool]()

    class Watched(nn.Linear):
        def forward(self, rows: Tensor) -> Tensor:
            seen.append(self.training)
            return super().forward(rows)

    rows, first = torch.randn(6, 2), torch.arange(6) < 3
    _fit(Watched(2, 2), [rows], torch.arange(6) % 2, first, ~first, Gap("edge", math.inf, DELTA, steps=3))
    assert seen == [True, False] * 3 + [False]


def test_the_step_is_chosen_by_rank_where_ranks_are_asked_about() -> None:
    """One step ranks the validation nodes rightly and calls all of them one class; by accuracy another is kept."""
    labels = torch.tensor([0, 1, 0, 0, 1])
    right, ranked = torch.tensor([[1.0, 0], [1, 0], [1, 0], [1, 0], [0, 1]]), torch.zeros(5, 2)
    ranked[:, 1] = 5 + labels
    for by_rank, better in ((False, right), (True, ranked)):
        how = Gap("edge", math.inf, DELTA, by_rank=by_rank)
        assert max((right, ranked), key=lambda logits: _serves(logits, labels, how)) is better


def test_what_is_hidden_is_dropped_while_it_learns_and_never_else(graph: PartyGraph) -> None:
    how, halved = (Gap("edge", math.inf, DELTA, steps=3, dropout=each) for each in (0.0, 0.5))
    torch.manual_seed(0)
    for network, rows in (
        (_Encoder(4, halved, 3), [torch.ones(9, 4)]),
        (_Classifier(halved, 3), [torch.ones(9, 16)] * 3),
    ):
        assert not network(*rows).equal(network(*rows))
        assert network.eval()(*rows).equal(network(*rows))
    assert not encoded(graph, halved, 0).equal(encoded(graph, how, 0))
    assert encoded(graph, halved, 0).equal(encoded(graph, halved, 0))


def test_it_is_measured_with_the_settings_that_served_it_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_settings, "FREE", {"learning_rate": (0.01, 0.03), "steps": (2,), "hops": (1, 2)})
    monkeypatch.setattr(gap_settings, "NOISED", {"steps": (1, 2)})
    path, trained = tmp_path / "settings.json", list[float]()

    def encoder(graph: PartyGraph, how: Gap, seed: int) -> Tensor:
        trained.append(how.gradients_deviation)
        return encoded(graph, how, seed)

    monkeypatch.setattr(gap_settings, "encoded", encoder)
    gap_settings.measure(TINY, LEVELS, range(2), Figures(path))
    # Without noise one for each rate and seed, whatever hops and ε are; with noise one for every figure.
    assert sum(not noise for noise in trained) == 2 * 2
    assert sum(noise > 0 for noise in trained) == 2 * 3 * 2
    found = Figures(path).found
    assert len(found) == 2 * (4 * 4 + 3 * 2)
    assert gap_settings.best("synthetic", "node", math.inf, Figures(path)) == gap_settings.best(
        "synthetic", "edge", math.inf, Figures(path)
    )
    for level, epsilon in itertools.product(LEVELS, gap_settings.EPSILONS):
        if (level, epsilon) == ("node", math.inf):
            continue
        chosen = gap_settings.best("synthetic", level, epsilon, Figures(path))
        served = {
            name: fmean(found[f"synthetic/{level}/{name}/{epsilon:g}/{seed}"] for seed in range(2))
            for name in {
                key.split("/")[2]
                for key in found
                if key.startswith(f"synthetic/{level}/") and key.split("/")[3] == f"{epsilon:g}"
            }
        }
        assert served[",".join(f"{name}={value:g}" for name, value in chosen.items())] == max(served.values())
    assert gap_settings.best("synthetic", "edge", 2.0, Figures(path)) == gap_settings.best(
        "synthetic", "edge", 4.0, Figures(path)
    )
    assert gap_settings.best("synthetic", "edge", 2.0, Figures(tmp_path / "none.json")) == {}


def test_gap_beside_ours_has_the_settings_of_its_set_level_and_epsilon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, asked = Figures(gap_settings.SETTINGS), list[Gap]()
    for each, level, epsilon in itertools.product(SETS, LEVELS, (*EPSILONS, math.inf)):
        how = gap_settings.settings_of(each, level, epsilon, 5000)
        chosen = gap_settings.best(each.name, level, epsilon, figures)
        assert {name: getattr(how, name) for name in chosen} == chosen
        assert (how.level, how.epsilon, how.delta, how.degree_bound) == (level, epsilon, 1e-5, each.bound)

    def logits(whole: PartyGraph, how: Gap, seed: int) -> Tensor:
        asked.append(how)
        return torch.zeros(whole.num_nodes, whole.num_classes or 2)

    monkeypatch.setattr(gap_beside, "gap_logits", logits)
    gap_beside.measure(TINY, LEVELS, [0], Figures(tmp_path / "gap.json"), [GAP])
    assert [(how.level, how.epsilon) for how in asked] == [*itertools.product(LEVELS, (*EPSILONS, math.inf))]


def test_every_set_of_the_page_has_settings_that_served_best() -> None:
    for each, level, epsilon in itertools.product(SETS, LEVELS, (*EPSILONS, math.inf)):
        assert gap_settings.best(each.name, level, epsilon, Figures(gap_settings.SETTINGS)), (
            f"{each.name}, {level}, {epsilon}: python -m research.gap_settings"
        )


TINY = Set("synthetic", bound=4, local={"hops": 2}, train={"epochs": 4, "patience": None})


@nightly
def test_it_goes_on_where_it_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gap.json"
    monkeypatch.setattr(gap_beside, "EPSILONS", (4.0,))
    clear = {f"synthetic/edge/{CLEAR}/{epsilon}/0" for epsilon in ("4", f"{CONTROL:g}", "inf")}
    gap_beside.measure(TINY, LEVELS, [0], Figures(path), [CLEAR])
    assert set(Figures(path).found) == clear
    gap_beside.measure(TINY, LEVELS, [0], Figures(path), [GAP])
    theirs = {f"synthetic/{level}/{GAP}/{epsilon}/0" for level in LEVELS for epsilon in ("4", "inf")}
    assert set(Figures(path).found) == clear | theirs
    gap_beside.measure(TINY, LEVELS, [0], Figures(path))
    first = Figures(path).found
    ways = {f"{OURS}/4", f"{GAP}/4", f"{OURS}/{CONTROL:g}", f"{ALONE}/0", f"{OURS}/inf", f"{GAP}/inf"}
    assert set(first) == clear | {f"synthetic/{level}/{way}/0" for level in LEVELS for way in ways}
    monkeypatch.setattr(gap_beside, "train", None)  # nothing is trained anew
    gap_beside.measure(TINY, LEVELS, [0], Figures(path))
    assert Figures(path).found == first
    monkeypatch.setattr(gap_beside, "SETS", (TINY,))
    lines = gap_beside.tables(Figures(path))
    assert lines[0] == "**synthetic, level edge**: accuracy on test nodes, 2 holders"
    assert f"| 1 | {first['synthetic/edge/GAP/4/0']:.3f} | {first['synthetic/edge/GAP/inf/0']:.3f} |" in lines[6]


def test_the_jobs_are_of_their_level(graph: PartyGraph) -> None:
    for level, unit in (("edge", "edge"), ("node", "node-edges")):
        for epsilon in (*EPSILONS, math.inf):
            privacy = job_of(TINY, level, epsilon, 0).privacy
            assert privacy is not None
            assert (privacy.unit, privacy.epsilon_total) == (unit, None if math.isinf(epsilon) else epsilon)
    assert most_neighbours(graph.edge_index, 300) > 4
    assert most_neighbours(bounded(graph, 4).edge_index, 300) <= 4


def test_the_page_has_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert gap_beside.written(page, Figures(FIGURES)) == page, "python -m research.gap_beside --write"


def test_what_a_job_reaches_with_an_own_network_trained_before_is_what_it_reaches(tmp_path: Path) -> None:
    """Without noise, where both are the same release."""
    job = job_of(TINY, "edge", math.inf, 0)
    graphs = paradigm_of(job).data.load(job).graphs
    own = gap_beside.OwnNetwork()
    whole, reused = (gap_beside._ours(TINY, job, graphs, Figures(tmp_path / "f.json"), "edge", own) for _ in range(2))
    assert own.weights
    assert whole == reused
    summary = train(job, tmp_path / "run", parties={graph.party: graph for graph in graphs}).summary
    assert whole == summary["test_accuracy"]
    assert own.alone["test_accuracy"] == summary["without_releases"]["test_accuracy"]
    assert own.judgement.best_epoch == summary["best_epoch"]
