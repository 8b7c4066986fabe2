"""Noise on training records: what is summed, how far one record moves it, and what an attacker makes of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from tests import about
from tests.errors import refused
from tests.mpc.sessions import fixed_secrets
from tests.paradigms.sealed.programs import TWIN, by_trust, small_graphs, sum_of
from tests.paradigms.sealed.records import noise_of, of_all, record_job, scored, with_rows, without_noise
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import system_secrets
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed.inputs import own_data, short_rows, slots_of, stated_neighbours
from veilgraph.paradigms.sealed.plan import MOST_WHITENED, Context, record_noise_of, release_plan
from veilgraph.paradigms.sealed.records.home import Home
from veilgraph.paradigms.sealed.records.program import RecordProgram
from veilgraph.paradigms.sealed.records.rows import (
    RecordNoise,
    feature_rows,
    halvings,
    moments,
    noise_of_sums,
    residual_bits,
    residuals_of,
    row_bits,
    whitening,
)
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import record_twin, train_plain, twin_context
from veilgraph.privacy import accountant
from veilgraph.privacy.event import GaussianEvent
from veilgraph.privacy.noise import granularity
from veilgraph.protocol.limits import LimitSettings, refusal
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.report.budget import protection_of

WIDE = MOST_WHITENED + 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("holders", "columns", "classes"),
    [(2, 5, 3), (3, 1, 3), (2, WIDE, 3), (3, 5, 2)],
    ids=["few", "one", "many", "two"],
)
def test_parties_compute_what_the_twin_does_with_the_same_noise(holders: int, columns: int, classes: int) -> None:
    """Sums to the bit, for they are whole numbers; scores to what is cut off."""
    graphs = small_graphs(holders, nodes=40, columns=columns, training=20)
    if classes < 3:
        labels = graphs[0].labels
        assert labels is not None
        graphs[0] = replace(graphs[0], labels=labels.clamp_max(1), num_classes=2)
    for job in by_trust(record_job(holders)):
        check_with_twin(job, graphs, classes)


def check_with_twin(job: SealedJob, graphs: list[PartyGraph], classes: int) -> None:
    found = of_all(job, graphs)
    twin, scores = found[TWIN]
    names = job.data.names
    for name in names[1:]:
        summed = sum_of([found[party][0][f"weight.sums.{name}"] for party in names])
        assert torch.equal(summed, twin[f"weight.sums.{name}"].double())
        assert bool(summed.any())
        assert torch.equal(found[name][0][f"weight.whitening.{name}"], twin[f"weight.whitening.{name}"])
    assert {party for party, (_, told) in found.items() if told is not None} == {"A", TWIN}
    assert scores.shape == (40, 1 if classes == 2 else classes)
    assert float((found["A"][1] - scores).abs().max()) < 2.0**-20
    assert float(scores.abs().max()) > 2.0**-16


def test_scores_are_what_the_noisy_sums_make_of_rows_and_of_trained_nodes_nothing() -> None:
    job, graphs = record_job(3), small_graphs(3, nodes=40, training=20)
    program = record_twin(job, graphs, noise_of())
    scores, shares, multiplier = program.predict(), program.shares(), record_noise_of(job, 40)
    assert scores is not None
    assert multiplier is not None
    noises = [RecordNoise(multiplier, graph.num_features) for graph in graphs[1:]]
    expected = torch.zeros_like(scores)
    for graph, noise in zip(graphs[1:], noises, strict=True):
        rows = short_rows(graph.features.double())
        made = feature_rows(rows, shares[f"weight.whitening.{graph.party}"], noise)
        expected += made @ shares[f"weight.sums.{graph.party}"].double() * 2.0 ** -(noise.bits + halvings(noises, 40))
    trained = graphs[0].train_mask
    assert trained is not None
    assert torch.allclose(scores[~trained], expected[~trained], atol=1e-12)
    assert not bool(scores[trained].any())
    assert bool(expected[trained].all()), "which opened would tell of their own columns"


def test_a_trained_nodes_score_never_leaves_even_where_its_residual_is_zero() -> None:
    """By the messages of a whole job: B sends A one share of a mask, and what it opens is 0 there."""
    graphs, links = small_graphs(2, nodes=30, training=12), dict[str, RecordedLink]()
    found = of_all(record_job(), graphs, links)
    opened = [each for each in links["A"].transcript() if each.tag.kind is Kind.MASK_SHARE]
    assert [(each.sender, tuple(each.tensor.shape)) for each in opened] == [("B", (30, 3))]
    assert not bool(found["A"][1][:12].any())
    assert bool(found["A"][1][12:].any())
    for party in ("B", SERVER):
        assert not [
            each for each in links[party].transcript() if each.tag.kind is Kind.MASK_SHARE and each.sender == "A"
        ]


def test_edges_of_others_are_not_put_in_nor_told() -> None:
    job, graphs = record_job(), small_graphs()
    one_way = replace(graphs[1], edge_index=graphs[1].edge_index[:, :7])
    for graph in graphs:
        assert own_data(job, graph).edges.shape == (2, 0)
        assert stated_neighbours(job, graph.party, 17) == 0
    assert own_data(job, one_way).digest() == own_data(job, graphs[1]).digest()
    assert {slots_of(job, edges) for edges in (0, 1, 99)} == {1}
    same = [record_twin(job, [graphs[0], other], noise_of()).predict() for other in (graphs[1], one_way)]
    assert same[0] is not None
    assert same[1] is not None
    assert torch.equal(same[0], same[1])


def worst_rows(draw: np.random.Generator, nodes: int, columns: int) -> Tensor:
    """Rows as bad as may be: duplicates, huge ones, opposite ones, zeros."""
    rows = torch.from_numpy(draw.normal(size=(nodes, columns)))
    rows *= torch.from_numpy(10.0 ** draw.integers(-3, 9, size=(nodes, 1)))
    rows[draw.random(nodes) < 0.3] = rows[0].clone()
    rows[draw.random(nodes) < 0.1] = -rows[0]
    rows[draw.random(nodes) < 0.1] = 0
    return rows


@pytest.mark.cases(1)
@pytest.mark.parametrize("columns", [1, 3, WIDE])
def test_one_record_moves_sums_and_moments_by_a_length_of_one_at_most(columns: int) -> None:
    """Of the worst rows, whitened by any matrix, and residuals of every class, sure and wrong."""
    draw, nodes, farthest, apart = np.random.default_rng(columns), 12, [], []
    job, graphs = record_job(), small_graphs(nodes=nodes, columns=columns - 1, training=6)
    context, _ = twin_context(job, graphs)
    multiplier = context.plan.records
    assert multiplier is not None
    noise = RecordNoise(multiplier, columns)
    for _ in range(25 if columns < WIDE else 4):
        rows = worst_rows(draw, nodes, columns)
        matrix = torch.from_numpy(draw.normal(size=(columns, columns)) * 10.0 ** draw.integers(-2, 6))
        likely = torch.from_numpy(draw.dirichlet([0.05] * 3, size=6))
        labels = torch.from_numpy(draw.integers(0, 3, size=6))
        own = context.data["A"]
        assert own.residuals is not None
        residuals = own.residuals.clone()
        residuals[:6] = residuals_of(likely, labels, multiplier)
        worst = replace(context, data={**context.data, "A": replace(own, residuals=residuals)})
        there = short_rows(rows)
        absent = short_rows(rows * (torch.arange(nodes) != 0)[:, None])
        with without_noise(matrix):
            one, other = (sums(with_rows(worst, "B", each)) for each in (there, absent))
        farthest.append(float((one - other).norm()))
        if noise.whitens:
            apart.append(float((moments(there, noise) - moments(absent, noise)).norm()))
    assert max(farthest) <= 1
    assert max(farthest) > 0.9, "the search found no bad case"
    assert max(apart, default=1.0) <= 1
    assert max(apart, default=1.0) > 0.9


def sums(context: Context) -> Tensor:
    """The sums of B's columns, as numbers."""
    program = RecordProgram(PlainMachine(["A", "B"]), context, noise_of())
    shares, _ = scored(program)
    return shares["weight.sums.B"] * 2.0 ** -program.noises["B"].bits


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("columns", [3, WIDE])
def test_noise_on_sums_and_moments_costs_what_the_ledger_says(epsilon: float, columns: int) -> None:
    job = record_job(epsilon_total=epsilon)
    plan, multiplier = release_plan(job, "B", 5000), record_noise_of(job, 5000)
    assert plan is not None
    assert multiplier is not None
    noise = RecordNoise(multiplier, columns)
    told = (1 / noise.of_sums) ** 2 + ((1 / noise.of_moments) ** 2 if noise.whitens else 0)
    assert plan.event == GaussianEvent(multiplier, "zero-out", "training-record")
    assert plan.event.mu(1) ** 2 == pytest.approx(told, rel=1e-12)
    assert plan.delta == 1e-5
    assert accountant.gaussian_epsilon(math.sqrt(told), plan.delta) <= epsilon * (1 + 1e-8)
    assert accountant.gaussian_epsilon(math.sqrt(told), plan.delta) >= 0.999 * epsilon
    drawn = noise_of_sums(noise, 50, fixed_secrets("law", epsilon))
    assert kstest(drawn.flatten() / noise.of_sums, "norm").pvalue > 1e-3
    assert row_bits(noise) + residual_bits(multiplier) == noise.bits
    assert 2.0**-noise.bits == granularity(noise.of_sums), "sums are multiples of the noise's step, and the noise of it"
    own = release_plan(job, "A", 5000)
    assert own is not None
    assert own.epsilon_total == 0


def test_moments_and_sums_have_the_noise_of_their_share_in_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def drawn(shape: tuple[int, ...], deviation: float, _: object) -> Tensor:
        asked.append((shape, deviation))
        return torch.zeros(shape, dtype=torch.float64)

    monkeypatch.setattr("veilgraph.paradigms.sealed.records.rows.fine_gaussian", drawn)
    noise = RecordNoise(2.0, 4)
    matrix = whitening(short_rows(torch.randn(90, 4).double()), noise, system_secrets)
    assert asked == [((4, 4), noise.of_moments)]
    assert torch.allclose(matrix, matrix.T)
    noise_of_sums(noise, 3, system_secrets)
    assert asked.pop() == ((4, 3), noise.of_sums)
    wide = RecordNoise(2.0, WIDE)
    assert torch.equal(whitening(torch.zeros(3, WIDE).double(), wide, system_secrets), torch.eye(WIDE).double())
    assert len(asked) == 1
    assert wide.of_sums == 2.0


def test_no_noise_is_drawn_twice() -> None:
    """Neither by two holders, nor in two sessions; and every number of a sum has its own."""
    job, graphs = record_job(3), small_graphs(3)
    drawn = []
    for _ in range(2):
        shares = record_twin(job, graphs).shares()
        drawn += [shares[f"weight.{what}.{name}"].double() for what in ("sums", "whitening") for name in "BC"]
    flat = torch.cat([each.flatten() for each in drawn[:2] + drawn[4:6]])
    assert flat.unique().numel() == flat.numel()
    assert not any(torch.equal(one, other) for one, other in zip(drawn[:4], drawn[4:], strict=True))


DRAWS = 750


def told_of(epsilon: float, record: float, residual: float = 1.0, multiplier: float | None = None) -> Tensor:
    """What A makes of the scores of ``DRAWS`` jobs with other noise, where one training record of B's is ``record``.

    A knows all other rows, and reads the sum off a node with the row 1 that it does not train on.
    """
    job = record_job(epsilon_total=epsilon)
    nodes = 60
    context, _ = twin_context(job, small_graphs(nodes=nodes, columns=0, training=20))
    own = context.data["A"]
    assert own.residuals is not None
    residuals = torch.zeros_like(own.residuals)
    residuals[0, 0] = residual
    rows = torch.zeros(nodes, 1, dtype=torch.float64)
    rows[0], rows[nodes - 1] = record, 1.0
    plan = context.plan if multiplier is None else replace(context.plan, records=multiplier)
    context = replace(context, plan=plan, data={**context.data, "A": replace(own, residuals=residuals)})
    found, source = [], fixed_secrets("game", record)
    for _ in range(DRAWS):
        program = RecordProgram(PlainMachine(["A", "B"]), with_rows(context, "B", rows), lambda _: source)
        _, scores = scored(program)
        assert scores is not None
        found.append(scores[nodes - 1, 0] * 2.0 ** halvings([*program.noises.values()], nodes))
    return torch.stack(found)


def proven(epsilon: float, delta: float, multiplier: float | None = None) -> float:
    """The ε that the attacker proves, by the best of a few thresholds, each told of less surely for it."""
    there, absent = (told_of(epsilon, record, multiplier=multiplier) for record in (1.0, 0.0))
    places = [0.0, 0.5, 1.0, 1.5, 2.0]
    sure = 1 - 0.001 / len(places)
    return max(
        epsilon_lower_bound(int((there >= at).sum()), int((absent >= at).sum()), DRAWS, delta, sure) for at in places
    )


def test_what_scores_tell_of_a_training_record_proves_a_part_of_epsilon_and_no_more_than_all() -> None:
    assert 0.7 < proven(4.0, 1e-4) <= 4.0


def test_the_attack_finds_noise_that_is_too_weak() -> None:
    """A third of it, and likewise residuals three times as long."""
    multiplier = record_noise_of(record_job(epsilon_total=2.0), 60)
    assert multiplier is not None
    assert proven(2.0, 1e-4, multiplier / 4) > 2.0


REFUSED: dict[str, tuple[Settings, str]] = {
    "classes alone": ({"output": "classes"}, "output"),
    "named nodes": ({"named_nodes": 3}, "named_nodes"),
    "released": ({"release": "holders"}, "release"),
    "judged": ({"train": {"select_by": "accuracy"}}, "train.select_by"),
    "steps": ({"train": {"epochs": 2}}, "train.epochs"),
    "checkpoints": ({"train": {"checkpoint_every": 2}}, "train.checkpoint_every"),
    "rate": ({"train": {"learning_rate": 0.5}}, "train.learning_rate"),
    "decay": ({"train": {"weight_decay": 0.5}}, "train.weight_decay"),
    "momentum": ({"train": {"momentum": 0.5}}, "train.momentum"),
    "batches": ({"train": {"batch_size": 5}}, "train.batch_size"),
    "blocks": ({"model": {"blocks": ["pooled.2"]}}, "model.blocks"),
    "network": ({"model": {"network": "mlp"}}, "model.network"),
    "width": ({"model": {"hidden": 7}}, "model.hidden"),
    "slots": ({"model": {"edge_slots": 7}}, "model.edge_slots"),
    "degree": ({"model": {"max_degree": 7}}, "model.max_degree"),
    "directed": ({"model": {"directed": True}}, "model.directed"),
    "standardised by all rows": ({"data": {"feature_scaling": "standard"}}, "data.feature_scaling"),
    "next to no ε": ({"privacy": {"epsilon_total": 0.01}}, "privacy.epsilon_total"),
    "delta": ({"privacy": {"delta": 1.5}}, "privacy.delta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_hidden_weights_cannot_honour_is_refused(name: str) -> None:
    changes, key = REFUSED[name]
    with refused(ConfigError, key=key):
        record_job(2, changes)


def test_limits_are_about_training_records_and_name_what_is_told_of_others() -> None:
    job = record_job(epsilon_total=2)
    for most, told, refuses in ((2.0, ["record-scores"], False), (1.9, ["record-scores"], True), (2.0, [], True)):
        limits = LimitSettings(leakage=tuple(told), max_epsilon=most, **about.RECORDS)
        assert bool(refusal(limits, job, "B", 5000)) == refuses
    for unit in (about.NODES, about.EDGES):
        limits = LimitSettings(leakage=("record-scores",), max_epsilon=9.0, **unit)
        assert "training-record" in (refusal(limits, job, "B", 5000) or "")
    too_much = LimitSettings(leakage=("record-scores",), max_epsilon=9.0, max_delta=1e-9, **about.RECORDS)
    assert "max_delta" in (refusal(too_much, job, "B", 5000) or "")


def test_words_are_of_records_and_not_of_edges() -> None:
    job = record_job(3, epsilon_total=2)
    own = protection_of(job, 5000).facts()["B, C"]
    assert [own[name] for name in ("unit", "relation", "mechanism", "delta", "releases")] == [
        *("training-record", "zero-out", "gaussian"),
        *(1e-5, 1),
    ]
    guarantee = protection_of(job, 5000).guarantee(1e-5)
    said = [
        *protection_of(job, 5000).notes(),
        guarantee.scope,
        *guarantee.limits,
        *(text for _, text in guarantee.about),
    ]
    assert not [each for each in said if "edge" in each and "nor about labels or edges" not in each]
    assert not [each for each in said if "vote" in each]
    (edges,) = [each for text in paradigm_of(job).words.describe(job) for each in text.split(". ") if "dges" in each]
    assert edges == "Edges of B and C are not used."


def test_training_nodes_have_opinions_without_their_own_label() -> None:
    """Of labels that nothing tells of: or residuals would be next to nothing, where columns are many."""
    graphs = small_graphs(nodes=90, columns=30, training=60)
    labels = torch.from_numpy(np.random.default_rng(3).integers(0, 3, size=90))
    likely = Home(replace(graphs[0], labels=labels), 3).opinions().exp()
    kept = likely[torch.arange(60), labels[:60]]
    assert float(kept.mean()) < 0.45
    assert torch.allclose(likely.sum(1), torch.ones(90).double())


@pytest.mark.parametrize("columns", [40, WIDE + 1])
def test_training_nodes_fare_no_better_than_others_at_home(columns: int) -> None:
    """Of labels of which three in five are drawn at random, and so many columns that a fit knows its own nodes."""
    draw = np.random.default_rng(5)
    graphs = small_graphs(nodes=400, columns=columns, training=100)
    labels = graphs[0].labels
    assert labels is not None
    noisy = torch.where(torch.from_numpy(draw.random(400) < 0.6), torch.from_numpy(draw.integers(0, 3, 400)), labels)
    opinions = Home(replace(graphs[0], labels=noisy, edge_index=graphs[0].edge_index[:, :0]), 3).opinions()
    said = opinions[torch.arange(400), noisy].exp()
    assert float(said[100:].mean()) > 0.36, "a model that knows something"
    assert abs(float(said[:100].mean() - said[100:].mean())) < 0.04


def test_a_holder_alone_has_its_own_model_and_not_one_step_of_a_network() -> None:
    graphs = small_graphs(nodes=90, training=45)
    found = train_plain(record_job(), graphs[0], lambda _: None)
    home = Home(graphs[0], 3)
    expected = home.with_scores(home.opinions(), torch.zeros(90, 3).double(), None)
    assert torch.equal(found.output, expected)
    assert found.summary["test_accuracy"] > 0.7


def test_scores_are_worth_what_validation_nodes_show() -> None:
    """Those that tell the class are used, and those that tell nothing change next to nothing."""
    graphs = small_graphs(nodes=200, columns=2, training=60)
    labels = graphs[0].labels
    assert labels is not None
    graph = replace(graphs[0], features=torch.zeros(200, 1), edge_index=graphs[0].edge_index[:, :0])
    home = Home(graph, 3)
    opinions = home.opinions()
    told = torch.nn.functional.one_hot(labels, 3).double() * 1e-4
    told[:60] = 0
    right = home.with_scores(opinions, told, None).argmax(1)[60:] == labels[60:]
    assert float(right.double().mean()) > 0.95
    nothing = home.with_scores(opinions, torch.zeros(200, 3).double(), None).softmax(1)
    assert float((nothing - opinions.exp()).abs().max()) < 0.2


def test_a_label_holder_without_validation_nodes_of_two_classes_is_refused() -> None:
    (own, _), job = small_graphs(), record_job()
    alike = replace(own, val_mask=torch.arange(30) == 20)
    with refused(DataError, party="A", key="privacy.unit"):
        twin_context(job, [alike, small_graphs()[1]])


def test_rows_hang_on_nothing_but_a_nodes_own_columns() -> None:
    """Given the whitening: so no other node's score tells of a record."""
    rows, noise = short_rows(torch.randn(9, 4).double() * 3), RecordNoise(1.0, 4)
    assert float(rows.norm(dim=1).max()) <= 1 + 1e-12
    matrix = torch.randn(4, 4).double()
    made = feature_rows(rows, matrix, noise)
    assert torch.equal(feature_rows(rows[3:5], matrix, noise), made[3:5])
    assert not bool(feature_rows(torch.zeros(2, 4).double(), matrix, noise).any())
    graph: PartyGraph = small_graphs()[1]
    job = record_job()
    part = own_data(job, replace(graph, features=graph.features[:30] * (torch.arange(30) != 4)[:, None]))
    kept = torch.arange(30) != 4
    assert torch.equal(part.columns["own"][kept], own_data(job, graph).columns["own"][kept])
