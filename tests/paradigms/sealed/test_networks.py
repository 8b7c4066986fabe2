"""The network of a sealed job is, whatever the job, what its twin in floating numbers is, and what PyTorch says."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from typing_extensions import override

from tests import nightly
from tests.errors import refused
from tests.paradigms.sealed.dense import STANDARD, graphs_of, logits_by, whole_rows
from tests.paradigms.sealed.programs import (
    TWIN,
    by_trust,
    numbers,
    of_twin,
    outcomes,
    predicting_twin,
    small_graphs,
    small_job,
    summed,
    trained,
    trying,
)
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.types import Kind, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.link.view import Message
from veilgraph.mpc.sealed.hidden_graph import HiddenGraph
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.wire import Summands, Wire, plain_wire
from veilgraph.paradigms.sealed.costs import costs_of
from veilgraph.paradigms.sealed.inputs import most_right, own_data, plan_of, quantiles, trials_of, unit_rows
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.networks.propagation import is_dense
from veilgraph.paradigms.sealed.plan import Block, Context, Sizes, Trial
from veilgraph.paradigms.sealed.program import OUTSIDE, TRIAL, SealedProgram, logits_of
from veilgraph.paradigms.sealed.settings import SealedJob, sealed
from veilgraph.paradigms.sealed.stacking import fit_stacking
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS
from veilgraph.paradigms.sealed.twin import chosen_twin, train_plain, trained_twin, twin_context
from veilgraph.protocol.job_file import parse_job

DIRECTED: Settings = {"model": {"directed": True}}
WEIGHTS: Settings = {"model": {"edge_weights": True}}
BALANCED: Settings = {"train": {"class_weights": "balanced"}}
BATCHES: Settings = {"train": {"batch_size": 3}}
MARGINS: Settings = {"output": "margins"}
SLOW: Settings = {"train": {"learning_rate": 0.25}}


def on(*blocks: str, network: str = "mlp", **model: Any) -> Settings:
    return {"model": {"network": network, "blocks": list(blocks), **model}}


ALMOST = 4e-3
"""Gains and degree factors are found by three Newton steps, up to 2^-11; the logistic function is 16 sines."""
JUDGED_IN_TABLES: Settings = {"select_by": "auc", "epochs": 250, "learning_rate": None}
FEW, MANY = 8, 22
"""Training nodes: fewer than columns, so that rows are propagated, and more, so that columns are."""
CASES: dict[str, tuple[int, int, tuple[Settings, ...]]] = {
    "linear, rows": (2, FEW, (on("pooled.2", network="linear"),)),
    "linear, columns, far": (3, MANY, (on("pooled.2", "pooled.5", "pooled.1", network="linear"), MARGINS)),
    "linear, rows, directed weights": (2, FEW, (on("own", "each.1", network="linear"), WEIGHTS, DIRECTED)),
    "linear, no hop": (4, FEW, (on("own", network="linear"), BATCHES)),
    "mlp, rows, balanced": (3, FEW, (on("own", "pooled.1", "pooled.2", "pooled.3"), BALANCED)),
    "mlp, rows, far, directed": (2, FEW, (on("pooled.4", "pooled.1"), DIRECTED, MARGINS)),
    "mlp, columns, each, weights, batches": (2, MANY, (on("each.2", "own"), WEIGHTS, BATCHES, BALANCED)),
    "mlp, wide, columns": (2, FEW, (on("pooled.2", hidden=20), MARGINS)),
    "mlp, standard rows": (2, FEW, (on("own", "neighbours", "pooled.1"), STANDARD, SLOW)),
    "mlp, standard columns": (3, MANY, (on("pooled.5", "pooled.1", "neighbours"), STANDARD, SLOW, WEIGHTS, MARGINS)),
    "linear, standard, each": (2, MANY, (on("own", "each.1", network="linear"), STANDARD, SLOW, DIRECTED, MARGINS)),
    "linear, boosting, rows": (3, FEW, (on("boosting", "pooled.1", network="linear"), STANDARD, SLOW)),
    "mlp, boosting, columns": (2, MANY, (on("own", "quantiles", "boosting", "pooled.1"), STANDARD, SLOW, BALANCED)),
    "mlp, unit, rows": (2, FEW, (on("unit.1", "unit.each.2", "pooled.1"), STANDARD, SLOW, MARGINS)),
    "mlp, unit, boosting": (3, MANY, (on("boosting", "pooled.1", "unit.5", "own"), STANDARD, SLOW, DIRECTED)),
    "mlp, standard, no hop": (3, FEW, (on("neighbours", "own", hidden=2), STANDARD, SLOW, BATCHES, MARGINS)),
}


def check_with_twin(case: str) -> None:
    """Train and predict, and compare weights and margins with the twin's."""
    holders, training, changes = CASES[case]
    for job in by_trust(small_job(holders, *changes)):
        check_job_with_twin(job, training)


def check_job_with_twin(job: SealedJob, training: int) -> None:
    graphs = graphs_of(job, nodes=40, training=training)
    for _ in range(3):  # rounding is drawn anew, and once in a hundred runs decides a ReLU whose input is next to 0
        found = outcomes(job, graphs, lambda program: trained(program, job.train.epochs))
        weights, twin = summed(found, WEIGHT_BITS), of_twin(found, WEIGHT_BITS)
        predicted = {party: one[1] for party, one in found.items() if one[1] is not None}
        assert predicted.keys() == {"A", TWIN}
        assert all(float(twin[name].abs().max()) > 2e-2 for name in weights)
        apart = max(float((weight - twin[name]).abs().max()) for name, weight in weights.items())
        off, largest = float((predicted["A"] - predicted[TWIN]).abs().max()), float(predicted[TWIN].abs().max())
        if apart < 2e-3 and off < max(4e-3, 2**-12 * largest):  # a margin's error grows with its inputs
            return
    raise AssertionError(f"weights are {apart} from the twin's in each of three runs, predictions up to {off}")


@pytest.mark.cases(4)
@pytest.mark.parametrize("case", CASES)
def test_parties_compute_what_the_twin_does(case: str) -> None:
    check_with_twin(case)


DENSE = ("mlp, rows, far, directed", "mlp, columns, each, weights, batches", "mlp, standard columns")


@pytest.mark.parametrize("case", DENSE)
def test_so_they_do_where_edges_are_a_matrix(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilgraph.paradigms.sealed.networks.propagation.DENSE_FROM", 1)
    monkeypatch.delattr(Machine, "hidden_graph")
    check_with_twin(case)


@pytest.mark.parametrize("training", [FEW, MANY])
@pytest.mark.parametrize(
    "changes",
    [
        (on("pooled.2", network="linear"),),
        (on("pooled.4", "each.4"), DIRECTED, WEIGHTS),
        (on("pooled.1", "pooled.2", "pooled.5", "pooled.3"), DIRECTED, WEIGHTS),
        (on("own", "neighbours", "each.1"), WEIGHTS, DIRECTED, STANDARD),
        (on("neighbours", "pooled.1", network="linear"), STANDARD, BATCHES),
        (on("pooled.1", "unit", "unit.1", "unit.5", "unit.each.2"), STANDARD, DIRECTED),
    ],
    ids=["linear", "far", "near", "each, standard", "batches, standard", "unit"],
)
def test_the_twin_is_what_autograd_makes_of_dense_matrices(training: int, changes: tuple[Settings, ...]) -> None:
    """The second step, at weights that are not zero: they move by 0.9 of how they moved, less a rate·gradient."""
    job = small_job(2, *changes, BALANCED, MARGINS)
    graphs = graphs_of(job, training=training)
    own, plan = twin_context(job, graphs)[1]["A"], plan_of(job)
    assert own.rows is not None
    assert own.labels is not None
    assert own.weights is not None
    z = whole_rows(job, graphs, own.rows)
    begun = trained_twin(job, graphs, 1)
    first = [weight * 2.0**-WEIGHT_BITS for weight in begun.network.initial(WEIGHT_BITS)]
    second = [weight.requires_grad_() for weight in numbers(begun)]
    seen = slice(3, 6) if plan.batch else slice(training)
    begun.network.arrive(1)
    left = begun.network.forward(begun.learned, seen, 1.0).left
    logits = logits_by(z[own.rows[seen]], second, left=left)
    targets, odds = torch.nn.functional.one_hot(own.labels[seen], 3).double(), logits - math.log(2)
    losses = torch.nn.functional.binary_cross_entropy_with_logits(odds, targets, reduction="none").sum(1)
    (losses * own.weights[seen]).mean().backward()
    begun.step(1)
    decay = plan.trials[0].weight_decay * min(1, 140 / training)
    for zeroth, weight, found in zip(first, second, numbers(begun), strict=True):
        assert weight.grad is not None
        expected = 0.9 * (weight.detach() - zeroth) - 0.75 * (weight.grad + decay * weight.detach())
        off = found - weight.detach() - expected
        assert float(off.abs().max()) < ALMOST * float(expected.abs().max())
    margins = begun.predict()
    logits = logits_by(z, numbers(begun))
    assert margins is not None
    assert torch.allclose(margins, logits[:, 1:] - logits[:, :1], atol=1e-3)


@pytest.mark.parametrize(
    ("training", "changes", "hops"),
    [(FEW, {}, 8 + 2), (MANY, {}, 8 + 4), (MANY, STANDARD, 3 + 7 + 4)],
    ids=["rows", "columns", "standard"],
)
def test_no_hop_is_made_twice_but_the_third_of_columns_with_units(training: int, changes: Settings, hops: int) -> None:
    """Of rows the label holder makes its own hops at home."""
    job = small_job(2, on("pooled.8", "each.2", "pooled.1", "pooled.2", "pooled.3", network="linear"), changes)
    made = 0

    class Counting(PlainMachine):
        def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
            nonlocal made
            made += 1
            return super().hop(graphs, wire)

    program = SealedProgram(Counting(["A", "B"]), twin_context(job, graphs_of(job, training=training))[0])
    program.enter(trains=True)
    program.begin()
    assert made == hops


@pytest.mark.parametrize(
    ("dataset", "training", "columns"),
    [("cora", 20, 100), ("digits", 20, 500)],
)
def test_what_sends_less_hops(dataset: str, training: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of all nodes, or rows of training nodes: counted both ways, of words and of tables."""
    train = {"epochs": 30, "evaluate_every": 5}
    said = {"paradigm": "sealed", "preset": "auto", "data": {"dataset": dataset, "holders": 2}, "train": train}
    job = parse_job(said, "job")
    both = {"A": columns // 2, "B": columns - columns // 2}
    sizes = Sizes(4000, training, 7, both, dict.fromkeys("AB", 8000), max_degree=128, validation=500)
    context = Context(sizes, plan_of(sealed(job), sizes), "A", {})

    def sent() -> int:
        return sum(stage.sent["A"] for stage in costs_of(context, job.train.epochs, job.train.evaluate_every).stages)

    chosen, found = sent(), list[int]()
    for way in (True, False):
        monkeypatch.setattr(Network, "propagates_columns", way)
        found.append(sent())
    assert chosen == min(found) < 0.95 * max(found)


def test_100_columns_of_all_holders_are_tried_as_rows_of_length_1_too() -> None:
    """B has one column more than A."""
    job = small_job(2, STANDARD, {"model": {"network": None, "blocks": None}, "train": JUDGED_IN_TABLES})
    few, many = (trials_of(job, columns) for columns in (99, 100))
    assert [trial.blocks for trial in many[len(few) :]] == [("unit.6",), ("unit.each.2",)]
    for columns, trials in ((49, few), (50, many)):
        assert twin_context(job, small_graphs(columns=columns))[0].plan.trials == trials


@pytest.mark.parametrize(
    ("columns", "halvings"), [(99, (0, 0, 0, 0)), (140, (0, 0, 0, 0)), (1902, (4, 0, 2, 4)), (10**6, (6, 0, 3, 5))]
)
def test_rates_fall_with_the_width_of_standardised_columns(columns: int, halvings: tuple[int, ...]) -> None:
    job = small_job(2, STANDARD, {"model": {"network": None, "blocks": None}, "train": JUDGED_IN_TABLES})
    rates = [trial.learning_rate for trial in trials_of(job, columns)[:4]]
    assert rates == [rate / 2**halved for rate, halved in zip((1, 0.25, 0.125, 0.5), halvings, strict=True)]


def test_a_rate_too_small_to_compute_with_is_refused() -> None:
    with refused(ConfigError, key="train.learning_rate"):
        small_job(2, {"train": {"learning_rate": 1e-3}})
    refused_pairs = ((4.0, 0.25), (None, 1.0), (2.0**12, None))  # None: what suits a trial
    for train in ({"learning_rate": rate, "weight_decay": decay} for rate, decay in refused_pairs):
        with refused(ConfigError, code="decays", key="train.learning_rate"):
            plan_of(small_job(2, {"train": train}))
    plan_of(small_job(2, {"train": {"learning_rate": 4.0, "weight_decay": 0.2}}))


def test_where_no_step_is_judged_the_one_trial_has_hops() -> None:
    job = small_job(2, STANDARD, {"model": {"network": None, "blocks": None}, "train": {"select_by": "last"}})
    [trial] = trials_of(job, 8)
    assert trial.blocks == ("own", "pooled.6")


def word_graphs() -> list[PartyGraph]:
    """A and B: 150 words each of 210 nodes of seven classes, and edges that mostly stay in a class; 70 nodes train."""
    generator, classes = torch.Generator().manual_seed(1), 7
    labels = torch.arange(210) % classes
    often = torch.where(torch.arange(150) % classes == labels[:, None], 0.05, 0.02)
    graphs = []
    for holder in "AB":
        words = torch.bernoulli(often, generator=generator)
        sources, targets = torch.randint(210, (2, 420), generator=generator)
        stays = torch.rand(420, generator=generator) < 0.7
        targets = torch.where(stays, targets // classes * classes + labels[sources], targets)
        ends = torch.stack([sources, targets])
        graphs.append(PartyGraph(holder, words, torch.cat([ends, ends.flip(0)], 1)))
    train = torch.arange(210) < 70
    graphs[0] = replace(graphs[0], labels=labels, num_classes=classes, train_mask=train)
    return graphs


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_hidden_layer_on_words_learns_from_few_rows(seed: int) -> None:
    """A job takes a rate at which steps settle: at four times it one class of seven may be all that is predicted."""
    train = {"epochs": 60, "learning_rate": None}
    model = {"network": "mlp", "blocks": None, "hidden": 16}
    job = small_job(2, MARGINS, {"seed": seed, "model": model, "train": train})
    graphs = word_graphs()
    margins = chosen_twin(job, graphs).predict()
    assert margins is not None
    assert graphs[0].labels is not None
    right = logits_of(margins).argmax(1) == graphs[0].labels
    assert right[70:].double().mean() > 0.72


def test_unit_rows_undo_what_columns_were_scaled_by() -> None:
    """Of words, whatever each was standardised by, rows are those of 0 and 1, of length 1; constant columns are 0."""
    words = torch.tensor([[1, 0, 0, 5], [1, 1, 0, 5], [0, 1, 1, 5], [0, 0, 0, 5]], dtype=torch.float64)
    found = unit_rows((words - words.mean(0)) * torch.tensor([0.1, 3.0, 40.0, 7.0]))
    assert torch.allclose(found, torch.nn.functional.normalize(words * torch.tensor([1, 1, 1, 0])))
    assert unit_rows(words[:0]).shape == (0, 4)


@pytest.mark.parametrize(("block", "share"), [("unit.1", 0.5), ("own", 1.0)])
def test_with_twice_140_training_rows_those_of_length_1_have_half_the_decay(block: str, share: float) -> None:
    """Weights begin at 0, so that the second step is the first one that decay changes."""
    job, graphs, found = small_job(2, STANDARD), small_graphs(nodes=300, training=280), []
    for decay in (0.0, 0.04):
        with trying(Trial((block,), deep=False, learning_rate=0.25, weight_decay=decay)):
            [first], [second] = (numbers(trained_twin(job, graphs, steps)) for steps in (1, 2))
        found.append(second)
    assert torch.allclose(found[0] - found[1], share * 0.25 * 0.04 * first, rtol=0.02)


def test_a_hub_beside_columns_far_out_is_what_the_twin_has() -> None:
    """Of 600 neighbours with columns from 20 to 32 the sum does not fit 32 bits."""
    job = small_job(2, on("pooled.1", network="linear"), STANDARD, SLOW, MARGINS)
    spread = torch.linspace(20, 32, 620).repeat(6, 1).T
    leaves, hub = torch.arange(600), torch.full((600,), 619)
    edges = torch.stack([torch.cat([leaves, hub]), torch.cat([hub, leaves])])
    graphs = [
        replace(graph, features=spread[:, : graph.num_features].roll(place, 0), edge_index=edges)
        for place, graph in enumerate(small_graphs(nodes=620, training=MANY))
    ]
    found = outcomes(job, graphs, lambda program: trained(program, 1))
    weights, twin, predicted = summed(found, WEIGHT_BITS), of_twin(found, WEIGHT_BITS), found["A"][1]
    assert max(float((weight - twin[name]).abs().max()) for name, weight in weights.items()) < 1e-4
    # The hub's row makes 0.5 of a rounding of the weights, so its margins are held to the weights that were trained.
    own = {name: found["A"][0][name] + found["B"][0][name] for name in found["A"][0]} | {TRIAL: found["A"][0][TRIAL]}
    expected = predicting_twin(job, graphs, own).predict()
    assert predicted is not None
    assert expected is not None
    assert float(expected[619].abs().max()) > 4 * float(expected[:600].abs().max())
    assert torch.allclose(predicted, expected, atol=4e-3)


def is_opened(message: Message) -> bool:
    """Whether it is a wire that another holder puts in or opens."""
    return (message.sender, message.receiver, message.tag.kind) == ("B", "A", Kind.MASKED_WIRE)


@pytest.mark.parametrize("training", [FEW, MANY])
def test_columns_go_on_by_themselves(training: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two at a time, and a last one, and rows in slices: more rounds, and the same weights and predictions."""
    job = small_job(2, MARGINS)
    graphs = graphs_of(job, training=training)
    whole = outcomes(job, graphs, lambda program: trained(program, 3))
    monkeypatch.setattr("veilgraph.mpc.sealed.wire.AT_ONCE", 2 * graphs[0].num_nodes + 1)
    links: Any = {}
    found = outcomes(job, graphs, lambda program: trained(program, 3), links, keeps=True)
    twin, expected = of_twin(found, WEIGHT_BITS), of_twin(whole, WEIGHT_BITS)
    assert torch.allclose(found["A"][1], found[TWIN][1], atol=4e-3)
    assert torch.allclose(found[TWIN][1], whole[TWIN][1], atol=1e-6), "the twin has the same slices"
    received = [each.tensor.numel() for each in links["A"].transcript() if is_opened(each)]
    put_in = graphs[1].features.numel()
    assert [size for size in received if size > 2 * graphs[0].num_nodes + 1] == [put_in]
    for name, weight in summed(found, WEIGHT_BITS).items():
        assert float((weight - twin[name]).abs().max()) < 2e-3
        assert torch.allclose(twin[name], expected[name], atol=1e-6)


@pytest.mark.parametrize(("blocks", "kept"), [(["pooled.2", "each.1"], False), (["pooled.2", "own"], True)])
def test_columns_are_let_go_once_hops_have_made_all_that_is_asked_for(blocks: list[str], kept: bool) -> None:
    job = small_job(2, on(*blocks), MARGINS)
    program = trained_twin(job, graphs_of(job, training=MANY))
    assert bool(program.network.columns) == kept
    assert program.predict() is not None


WIDTH = 19
"""Columns of a holder: more than two of the parts that hop in turn."""


class Watching(PlainMachine):
    """The twin's machine, which notes how much that was put in, or copied of it, is in memory as it hops or picks."""

    def __init__(self) -> None:
        super().__init__(["A", "B"])
        self.columns: list[ReferenceType[Tensor]] = []
        self.graphs: list[ReferenceType[HiddenGraph]] = []
        self.hopping: list[int] = []
        self.widths: list[int] = []
        self.picking: list[tuple[int, int]] = []

    @staticmethod
    def alive(references: Sequence[ReferenceType[Any]]) -> int:
        return sum(each() is not None for each in references)

    @override
    def put(self, owner: PartyId, values: Tensor | None, shape: Sequence[int], bits: int) -> Wire:
        wire = super().put(owner, values, shape, bits)
        self.columns += [ref(wire.known)] * (tuple(shape)[1:] == (WIDTH,))
        return wire

    @override
    def hidden_graph(self, *arguments: Any) -> HiddenGraph:
        graph = super().hidden_graph(*arguments)
        self.graphs.append(ref(graph))
        return graph

    @override
    def hop(self, graphs: Sequence[HiddenGraph], wire: Wire) -> Summands:
        self.hopping.append(self.alive(self.columns))
        self.widths.append(wire.shape[1])
        return super().hop(graphs, wire)

    @override
    def pick(self, owner: PartyId, rows: Tensor | None, count: int, *wires: Wire) -> Summands:
        self.picking.append((self.alive(self.columns), self.alive(self.graphs)))
        return super().pick(owner, rows, count, *wires)


@pytest.mark.parametrize("at_once", [120, 120 * 3, 120 * WIDTH])
@pytest.mark.parametrize("blocks", [["pooled.2"], ["pooled.1", "pooled.2", "pooled.5"], ["each.1", "pooled.1"]])
@pytest.mark.parametrize("standard", [True, False])
def test_parts_of_columns_hop_in_turn_and_are_let_go(
    standard: bool, blocks: list[str], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They make what all make together, of which as much is tested; then neither columns nor edges are in memory."""
    job = small_job(2, on(*blocks), MARGINS, *([STANDARD, SLOW] if standard else []))
    generator = torch.Generator().manual_seed(0)
    graphs = [
        replace(graph, features=torch.rand((120, WIDTH), generator=generator))
        for graph in graphs_of(job, nodes=120, training=90)
    ]
    context, _ = twin_context(job, graphs)
    machine, copied, watch, watched = Watching(), Wire.copied, Network.watch, Counter[Network]()

    def counted(network: Network, *wires: Wire) -> None:
        watched[network] += sum(wire.known.numel() for wire in wires)
        watch(network, *wires)

    monkeypatch.setattr(Network, "watch", counted)
    whole = SealedProgram(PlainMachine(["A", "B"]), context)
    whole.enter(trains=True)
    whole.begin()

    def noted(wire: Wire) -> Wire:
        machine.columns.append(ref((found := copied(wire)).known))
        return found

    monkeypatch.setattr("veilgraph.mpc.sealed.wire.AT_ONCE", at_once)
    monkeypatch.setattr(Wire, "copied", noted)
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    assert program.network.rows is not None
    assert whole.network.rows is not None
    assert torch.allclose(program.network.rows.known, whole.network.rows.known, atol=1e-6)
    assert torch.equal(program.before.known, torch.zeros(1))
    assert watched[program.network] == watched[whole.network] > 0
    assert max(machine.widths) == max(2, at_once // 120), "two are gathered in as long as one"
    assert machine.hopping[0] >= machine.hopping[-1], "columns are let go as they hop"
    assert machine.hopping[-1] <= 1
    assert machine.picking[0] == (0, 0)
    assert len(machine.columns) >= 2 + 2 * (WIDTH // 8) * (at_once < 120 * WIDTH)
    program.step(0)
    whole.step(0)
    found, expected = program.predict(), whole.predict()
    assert found is not None
    assert expected is not None
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("blocks", [["pooled.2"], ["own", "pooled.1"]])
def test_what_training_alone_needs_is_let_go_before_a_prediction(blocks: list[str]) -> None:
    job = small_job(2, on(*blocks), MARGINS)
    program = trained_twin(job, graphs_of(job, training=MANY))
    assert program.network.rows is not None
    rows, saved = ref(program.network.rows.known), program.shares()
    expected = program.predict()
    program.restore(
        {name: saved[name] for name in saved if name.startswith("weight") or name == OUTSIDE}, training=False
    )
    assert rows() is None
    found = program.predict()
    assert found is not None
    assert expected is not None
    assert torch.allclose(found, expected, atol=1e-3)
    assert "rows" not in program.shares()


def test_a_copy_of_what_another_holder_put_in_has_no_mask_either() -> None:
    """It would take as much memory as what is public, at every holder but one."""
    public = torch.arange(12).reshape(3, 4)
    wire = Wire(public, torch.zeros((), dtype=torch.int64).expand(3, 4), 2, "B")
    copied = wire[:, 1:3].copied()
    assert copied.owner == "B"
    assert torch.equal(copied.known, public[:, 1:3])
    assert copied.known.untyped_storage().nbytes() == 8 * 6
    assert copied.mask.untyped_storage().nbytes() == 8


@pytest.mark.parametrize("nodes", [1, 7, 1024, 3000])
def test_wires_side_by_side_are_tested_as_one(nodes: int) -> None:
    """As often, of the same sums, though in another order."""
    job = small_job(2)
    context, _ = twin_context(job, graphs_of(job))
    whole = plain_wire(torch.randn((nodes, 7), dtype=torch.float64), 18)
    told = list[Tensor]()
    for wires in ([whole], [whole[:, :2], whole[:, 2:3], whole[:, 3:]]):
        network = Network(PlainMachine(["A", "B"]), context)
        network.watch(*wires)
        told.append(torch.cat([test.known for test in network.tests]).sort().values)
    assert torch.allclose(told[0], told[1], rtol=1e-9)


def test_all_that_rows_are_made_of_is_tested_for_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    job = small_job(2, on("pooled.2"), STANDARD)
    context, data = twin_context(job, graphs_of(job, training=MANY))
    program, shapes, watch = SealedProgram(PlainMachine(list(data)), context), list[tuple[int, ...]](), Network.watch

    def noted(network: Network, wire: Wire) -> None:
        shapes.append(wire.shape)
        watch(network, wire)

    monkeypatch.setattr(Network, "watch", noted)
    program.enter(trains=True)
    program.begin()
    nodes, columns = context.sizes.nodes, context.sizes.width
    assert shapes == [(nodes, columns), (MANY, columns), (1, columns), (MANY, columns)]


def test_a_trial_has_its_own_order_of_blocks() -> None:
    one, other = (Trial(blocks, False, 0.5, 1e-2) for blocks in (("own", "pooled.1"), ("pooled.1", "own")))
    job = small_job(2, {"train": {"epochs": 6}}, STANDARD)
    graphs = graphs_of(job, training=MANY)
    with trying(one, other):
        (first,), (second,) = (numbers(trained_twin(job, graphs, steps)) for steps in (3, 6))
    half = (len(first) - 1) // 2
    turned = torch.cat([second[:1], second[1 + half :], second[1 : 1 + half]])
    assert float(first.abs().max()) > 1e-2
    assert torch.allclose(first, turned, atol=1e-9)


OTHERS = (
    Trial(("own", "pooled.1"), deep=True, learning_rate=0.5, weight_decay=1e-2),
    Trial(("own",), deep=False, learning_rate=2.0, weight_decay=0.0),
    Trial(("each.1", "own"), deep=True, learning_rate=0.375, weight_decay=1e-3, drops=True),
)


def logits_of_twin(job: SealedJob, graphs: Sequence[PartyGraph]) -> Tensor:
    found = trained_twin(job, graphs).predict()
    assert found is not None
    return found


@pytest.mark.parametrize("blocks", ["own", "pooled.1"])
def test_a_step_takes_no_more_rows_than_teach(monkeypatch: pytest.MonkeyPatch, blocks: str) -> None:
    job, batches = small_job(2, on(blocks)), small_job(2, on(blocks), BATCHES)
    graphs = graphs_of(job, training=FEW)
    whole, some = (logits_of_twin(each, graphs) for each in (job, batches))
    monkeypatch.setattr("veilgraph.paradigms.sealed.plan.MOST_ROWS", 3)
    limited = logits_of_twin(job, graphs)
    assert torch.equal(limited, some)
    assert not torch.equal(limited, whole)


@pytest.mark.parametrize("training", [FEW, MANY])
def test_steps_leave_out_half_of_the_hidden_units_of_each_row_and_predictions_none(training: int) -> None:
    job = small_job(2, on("own", "pooled.1", hidden=20), {"train": {"epochs": 6}}, MARGINS)
    graphs = graphs_of(job, training=training)
    [trial] = plan_of(job).trials[:1]
    assert trial.drops
    with trying(trial):
        drops, whole = trained_twin(job, graphs, 4), trained_twin(job, graphs)
        others = trained_twin(job.model_copy(update={"seed": job.seed + 1}), graphs, 4)
    with trying(replace(trial, drops=False)):
        context, data = twin_context(job, graphs)
        keeps = SealedProgram(PlainMachine(list(data)), context)
        keeps.enter(trains=True)
        keeps.restore(drops.shares(), training=True)
    found, some = [], slice(training)
    for step in (4, 5):
        passed = []
        for program in (drops, keeps, others):
            program.network.arrive(step)
            passed.append(program.network.forward(program.learned, some, 1.0))
        assert isinstance(passed[0].left, torch.Tensor)
        assert passed[0].hidden is not None
        assert passed[1].hidden is not None
        assert torch.allclose(passed[0].hidden[0].known, passed[1].hidden[0].known * passed[0].left, atol=1e-3)
        assert not torch.equal(passed[0].left, torch.as_tensor(passed[2].left))
        found.append(passed[0].left)
    for left in found:
        assert left.unique().tolist() == [0, 2]
        assert 0.8 < float(left.double().mean()) < 1.2
        assert len(left.unique(dim=0)) == training, "each row its own units"
    assert not torch.equal(*found)
    keeps.restore(whole.shares(), training=False)
    predicted, expected = whole.predict(), keeps.predict()
    assert predicted is not None
    assert expected is not None
    assert torch.allclose(predicted, expected, atol=1e-3)


def test_nobody_sends_anything_for_units_that_are_left_out() -> None:
    job = small_job(2, on("own", "pooled.1"), {"train": {"epochs": 2}})
    graphs, [trial] = graphs_of(job), plan_of(job).trials[:1]
    traffic = []
    for drops in (True, False):
        links: Any = {}
        with trying(replace(trial, drops=drops)):
            outcomes(job, graphs, lambda program: trained(program, 2), links)
        traffic.append({party: link.traffic() for party, link in links.items()})
    assert traffic[0] == traffic[1]


@nightly
@pytest.mark.cases(3)
@pytest.mark.parametrize("trials", [(0, 1), (1, 0), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_a_step_is_judged_beside_what_was_best_before_its_trial(trials: tuple[int, ...]) -> None:
    """What is taken is the network of the step, or the mean of both, whichever has more validation nodes right.

    Of random labels either has more now and then.
    """
    job = small_job(
        2, STANDARD, MARGINS, {"train": {"select_by": "accuracy", "evaluate_every": 2, "epochs": 2 * len(trials)}}
    )
    job = job.model_copy(update={"train": job.train.model_copy(update={"learning_rate": None})})
    graphs = graphs_of(job, nodes=120, training=MANY)
    labels = torch.randint(3, (120,), generator=torch.Generator().manual_seed(1))
    graphs[0], judged = replace(graphs[0], labels=labels), graphs[0].val_mask
    assert judged is not None

    def right(margins: torch.Tensor) -> int:
        return int((logits_of(margins).argmax(1) == labels)[judged].sum())

    chosen = set[int]()
    for seed in range(20):
        if seed > 3 and chosen == {0, 1}:
            break
        with trying(*(OTHERS[trial] for trial in trials)):
            context, data = twin_context(job.model_copy(update={"seed": seed}), graphs)
            program, best = SealedProgram(PlainMachine(list(data)), context), dict[str, torch.Tensor]()
            program.enter(trains=True)
            program.begin()
            taken: list[torch.Tensor] = []
            for step in range(2 * len(trials)):
                program.step(step, best)
                assert program.shares()[TRIAL].tolist() == [step // 2], "no longer what was judged last"
                if seed % 2:  # another session goes on
                    kept, program = program.shares(), SealedProgram(PlainMachine(list(data)), context)
                    program.enter(trains=True)
                    program.restore(kept, training=True)
                if step % 2:
                    own, told = program.predict(), program.score(step)
                    assert own is not None
                    tried = [own, (own + taken[-1]) / 2] if taken else [own]
                    rights = [right(each) for each in tried]
                    assert told is not None
                    assert int(told) == max(rights)
                    taken.append(tried[rights.index(max(rights))])
                    chosen.add(rights.index(max(rights)))
                    best = program.shares()
            members, predicted = best[TRIAL].tolist(), SealedProgram(PlainMachine(list(data)), context)
            predicted.enter(trains=False)
            predicted.restore(best, training=False)
            found = predicted.predict()
        assert members == list(range(len(trials)))
        assert found is not None
        assert torch.allclose(found, taken[-1], atol=1e-3)
        hidden = context.plan.hidden * sum(OTHERS[trial].deep for trial in trials[:-1])
        layers = numbers(predicted)[0][:, 3 : 3 + hidden]
        shown, mean = bool(layers.any()), bool(rights.index(max(rights)))
        assert shown == mean if hidden and len(trials) == 2 else shown <= mean, "what a release of weights shows"
    assert chosen == {0, 1}


def test_what_had_left_its_range_is_in_no_mean() -> None:
    job = small_job(2, STANDARD, MARGINS, {"train": {"select_by": "auc", "epochs": 4, "learning_rate": None}})
    job = job.model_copy(update={"train": job.train.model_copy(update={"evaluate_every": 2})})
    graphs = graphs_of(job, nodes=120, training=MANY)
    labels = torch.randint(3, (120,), generator=torch.Generator().manual_seed(1))
    graphs[0] = replace(graphs[0], labels=labels)
    told = list[tuple[float, float]]()
    with trying(*OTHERS[:2]):
        for failed in (0, 1):
            program = trained_twin(job, graphs, 2)
            best = program.shares() | {OUTSIDE: torch.full((1,), failed)}
            for step in (2, 3):
                program.step(step, best)
            mean = float(program.score(4) or 0)
            again = trained_twin(job, graphs)
            told.append((mean, float(again.score(4) or 0)))
    (within, alone), (beyond, _) = told
    assert within > alone == beyond > 0


@nightly
@pytest.mark.cases(1)
@pytest.mark.parametrize("scaling", ["standard", "none"])
def test_in_one_place_a_mean_is_taken_where_the_job_takes_one(scaling: str) -> None:
    """Of random labels, with both holders' data in one place; of words neither judges a mean."""
    training = {"select_by": "accuracy", "evaluate_every": 2, "epochs": 4, "learning_rate": None}
    job = small_job(2, MARGINS, {"train": training, "data": {"feature_scaling": scaling}})
    graph, means = replace(pool(graphs_of(job, nodes=120, training=MANY), "A"), party="A", edge_weight=None), 0
    alone = job.model_copy(update={"data": job.data.model_copy(update={"holders": ("A",), "label_holder": None})})
    with trying(*OTHERS[:2]):
        for seed in range(8):
            labels = torch.randint(3, (120,), generator=torch.Generator().manual_seed(seed))
            graph = replace(graph, labels=labels)
            found, expected = train_plain(job, graph, lambda _: None).output, chosen_twin(alone, [graph]).predict()
            own = trained_twin(alone, [graph], 4).predict(), trained_twin(alone, [graph], 2).predict()
            assert expected is not None
            told = fit_stacking(logits_of(expected), graph).logits(logits_of(expected), graph)
            assert float((found - told).diff(dim=1).abs().max()) < 1e-3, seed
            means += all(each is None or not torch.allclose(expected, each, atol=1e-3) for each in own)
    assert bool(means) == (scaling == "standard")


def test_edges_that_go_one_way_are_refused_where_all_should_go_both() -> None:
    graphs = small_graphs(directed=True)
    with refused(DataError, key="model.directed", value=False, party="A"):
        own_data(small_job(), graphs[0])
    own_data(small_job(2, DIRECTED), graphs[0])
    back = graphs_of(small_job(2, WEIGHTS))[0]
    assert back.edge_weight is not None
    uneven = replace(back, edge_weight=back.edge_weight * torch.linspace(1, 2, back.num_edges))
    with refused(DataError, key="model.directed", value=False, party="A"):
        own_data(small_job(2, WEIGHTS), uneven)
    with refused(DataError, key="model.edge_weights", value=False, party="A"):
        own_data(small_job(), back)


TWICE = [[0, 1], [0, 1], [1, 0], [1, 0], [2, 3], [3, 2]]


@pytest.mark.parametrize(
    ("edges", "weights", "is_taken"),
    [
        (TWICE, None, True),
        ([*TWICE[:2], *TWICE[3:]], None, False),
        ([[3, 1], [1, 3], [3, 2], [2, 1], [1, 2], [2, 2]], None, False),
        (TWICE, [1, 2, 2, 1, 4, 4], True),
        (TWICE, [1, 2, 2, 2, 4, 4], False),
        (TWICE, [1, 2, 4, 4, 1, 2], False),
    ],
)
def test_edges_go_back_as_often_and_with_as_much_weight(
    edges: list[list[int]], weights: list[int] | None, is_taken: bool
) -> None:
    job = small_job(2, *([] if weights is None else [WEIGHTS]))
    told = None if weights is None else torch.tensor(weights, dtype=torch.float32)
    graph = replace(graphs_of(job)[0], edge_index=torch.tensor(edges).T.contiguous(), edge_weight=told)
    if is_taken:
        assert own_data(job, graph).edges.shape == (2, len(edges))
    else:
        with refused(DataError, key="model.directed", value=False, party="A"):
            own_data(job, graph)


@pytest.mark.cases(1)
@pytest.mark.parametrize("select_by", ["accuracy", "auc"])
@pytest.mark.parametrize("changes", [on("own", "neighbours", "pooled.1"), on("each.1", network="linear")])
def test_the_sequence_and_sizes_of_messages_are_those_of_other_data_of_the_same_sizes(
    changes: Settings, select_by: str
) -> None:
    traffic = []
    job = small_job(2, changes, STANDARD, SLOW, {"model": {"edge_slots": 130}, "train": {"select_by": select_by}})

    def program(part: SealedProgram) -> None:
        part.enter(trains=True)
        part.begin()
        part.step(0)
        part.score(1)
        part.predict()

    for seed in (1, 2):
        links: Any = {}
        outcomes(job, small_graphs(seed=seed), program, links)
        traffic.append({party: link.traffic() for party, link in links.items()})
    assert traffic[0] == traffic[1]


@pytest.mark.cases(2)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("changes", [on("pooled.2", network="linear"), on("own", "pooled.1")])
def test_the_twin_counts_every_node_or_pair_that_is_right(changes: Settings, classes: int) -> None:
    """A difference of two floating numbers plus the second is not always the first."""
    graphs = small_graphs(nodes=480, training=40)
    assert graphs[0].labels is not None
    graphs[0] = replace(graphs[0], labels=graphs[0].labels % classes, num_classes=classes)
    for select_by in ("accuracy", "auc"):
        job = small_job(2, changes, {"train": {"select_by": select_by, "learning_rate": 0.7}})
        program, own = trained_twin(job, graphs), twin_context(job, graphs)[1]["A"]
        logits, y = program.network.predict(program.weights).public, own.judged_labels
        assert logits is not None
        assert own.judged is not None
        assert y is not None
        logits = logits[own.judged] - logits[own.judged].mean(1, keepdim=True)
        right, most = program.score(3), most_right(y, select_by)
        assert right is not None
        if select_by == "accuracy":
            assert (float(right), most) == (int((logits.argmax(1) == y).sum()), len(y))
            continue
        pairs = [(i, j) for i in range(64) for j in range(len(y)) if y[i] != y[j]]
        assert (float(right), most) == (sum(bool(logits[i, y[i]] > logits[j, y[i]]) for i, j in pairs), len(pairs))
        if classes == 2:
            some = (y == 0) | (torch.arange(len(y)) < 64)
            assert float(right) / most == pytest.approx(roc_auc_score(y[some], logits[some, 1]))


def test_pairs_of_validation_nodes_of_one_class_are_refused() -> None:
    """No pair could be right, so the first step that is judged would be taken, and nobody told why."""
    graphs = small_graphs()
    labels, val = graphs[0].labels, graphs[0].val_mask
    assert labels is not None
    assert val is not None
    graphs[0] = replace(graphs[0], val_mask=val & (labels == 1))
    with refused(DataError, key="train.select_by", value="auc", party="A"):
        twin_context(small_job(2, {"train": {"select_by": "auc"}}), graphs)
    twin_context(small_job(2, {"train": {"select_by": "accuracy"}}), graphs)


def test_quantiles_tell_a_column_above_each_of_its_octiles() -> None:
    """Of 16 columns with most different values, the first ones first; zero where there are eight values or fewer."""
    wide = torch.arange(90, dtype=torch.float64)[torch.randperm(90, generator=torch.Generator().manual_seed(1))]
    few = torch.arange(90, dtype=torch.float64) % 8
    found = quantiles(torch.stack([few, wide], 1))
    assert torch.equal(found[:, :7], (wide[:, None] > torch.arange(1, 8) * 89 / 8).double())
    assert torch.equal(found[:, 7:], torch.zeros(90, 7, dtype=torch.float64))
    assert quantiles(torch.rand(30, 20, dtype=torch.float64)).shape == (30, 7 * 16)


def test_a_matrix_makes_the_hops_that_edges_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: training nodes hop backwards, and predictions forwards."""
    job = small_job(2, on("pooled.2", "each.1"), DIRECTED, WEIGHTS, MARGINS)
    graphs = graphs_of(job, training=FEW)
    expected = logits_of_twin(job, graphs)
    monkeypatch.setattr("veilgraph.paradigms.sealed.networks.propagation.DENSE_FROM", 1)
    assert torch.allclose(logits_of_twin(job, graphs), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "edges", "votes", "union", "dense"),
    [
        (4025, 4_100_000, None, False, True),
        (1023, 4_100_000, None, False, False),
        (5793, 40_000_000, None, False, False),
        (4025, 500_000, None, False, False),
        (4025, 4_100_000, 2.0, False, False),
        (4025, 4_100_000, None, True, False),
    ],
    ids=["acm", "few nodes", "many", "sparse", "votes", "union"],
)
def test_a_matrix_is_for_dense_graphs_of_the_same_nodes(
    nodes: int, edges: int, votes: float | None, union: bool, dense: bool
) -> None:
    blocks = {holder: Block(slice(0, 1), 1, 1) for holder in "AB"} if union else {}
    columns = dict.fromkeys("AB", 5)
    sizes = Sizes(nodes, 60, 3, columns, {"A": edges, "B": 5}, max_degree=4096, blocks=blocks)
    context = Context(sizes, replace(plan_of(small_job()), votes=votes), "A", {})
    assert (is_dense(context, "A"), is_dense(context, "B")) == (dense, False)
