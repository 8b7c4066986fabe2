"""A sealed job is its twin, or it ends: numbers that leave the ring's range are never taken for a result."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from tests import nightly
from tests.errors import refused
from tests.mpc.sealed.bounded import BoundedMachine
from tests.mpc.sealed.parties import of, run
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.private import KEY, noise_from, noise_of
from tests.paradigms.sealed.programs import TWIN, outcomes, saved, small_graphs, small_job, trying
from tests.paradigms.sealed.valid_jobs import federation, valid_case
from tests.roles.federation import Settings
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import NOBODY, SERVER, PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import pool
from veilgraph.mpc.sealed.functions import BITS, range_tests
from veilgraph.mpc.sealed.linked import HolderMachine
from veilgraph.mpc.sealed.machine import Machine, PlainMachine
from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.networks.network import Network
from veilgraph.paradigms.sealed.plan import MOST_RANKED, Trial
from veilgraph.paradigms.sealed.program import SealedProgram, logits_of
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.steps import WEIGHT_BITS
from veilgraph.paradigms.sealed.twin import check_ranges, train_plain, twin_context
from veilgraph.runtime.launch.jobs import resume, train

CLOSE: Final = 1e-3
"""Of probabilities."""
TIED, FAR = {40, 70, 72, 168}, 5e-2
"""Jobs in which rounding decides a vote or a ReLU that is near its tie, so that training takes another course; or, at
40, weights are 19 at rows of length 5, of edges whose weights have 16 fractional bits."""
SOME, ALL = {1, 7, 26, 44}, 200
"""Cases of every run: those that rounding moved most."""


def whole(program: SealedProgram, job: SealedJob) -> tuple[list[float], Tensor | None]:
    """What a run opens, each step that is judged being the best: numbers of right nodes, and a prediction."""
    program.enter(trains=True)
    program.begin()
    scores, best = list[float](), dict[str, Tensor]()
    for epoch in range(1, job.train.epochs + 1):
        program.step(epoch - 1, best)
        if job.passes.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
            scores.append(float(program.score(epoch) or 0))
            best = program.shares()
    if scores:
        program.restore(best, training=False)
    return scores, program.predict()


def is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except RangeOverflow:
        return True
    return False


def plain(job: SealedJob, graphs: list[PartyGraph]) -> BoundedMachine:
    """The twin of a job, which refuses it where the job ends."""
    context, data = twin_context(job, graphs)
    machine = BoundedMachine(list(data), noise_of())
    whole(SealedProgram(machine, context), job)
    return machine


def far(job: SealedJob, graphs: list[PartyGraph]) -> float | None:
    """How far a job is from its twin, in probabilities; None: it was refused, by the twin and by its parties.

    Where a class is another one, the two largest probabilities of the twin say how far; likewise of pairs.
    """
    with noise_from(KEY):
        if is_refused(lambda: plain(job, graphs)):
            shown = job.model_copy(update={"output": "classes"})
            assert is_refused(lambda: outcomes(shown, graphs, lambda program: whole(program, shown), noise=noise_of()))
            return None
        assert not plain(job, graphs).beyond, "the range tests let it pass, and it comes near the ring's end"
        found = outcomes(job, graphs, lambda program: whole(program, job), noise=noise_of())
        (scores, ours), (expected, twin) = found["A"], found[TWIN]
        assert all(found[party] == (found[party][0], None) for party in found if party not in ("A", TWIN))
        likely = job.model_copy(update={"output": "margins"})
        context, data = twin_context(likely, graphs)
        machine = BoundedMachine(list(data), noise_of())
        margins = whole(SealedProgram(machine, context), likely)[1]
    assert margins is not None
    probabilities = logits_of(margins).softmax(1)
    two = probabilities.topk(2, 1).values
    ties = 1 + int((two[:, 0] - two[:, 1] < 2 * CLOSE).sum())
    ties *= MOST_RANKED if job.train.select_by == "auc" else 1
    assert all(abs(one - other) <= ties for one, other in zip(scores, expected, strict=True)), (scores, expected)
    if job.output == "margins":
        return float((logits_of(ours).softmax(1) - logits_of(twin).softmax(1)).abs().max())
    other = (ours != twin)[:, 0]
    return float((two[:, 0] - two[:, 1])[other].max()) / 2 if other.any() else 0.0


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed in SOME else [nightly]) for seed in range(ALL)])
def test_a_valid_job_is_its_twin_or_is_refused_by_it(seed: int) -> None:
    difference = far(*valid_case(seed))
    assert difference is None or difference < (FAR if seed in TIED else CLOSE)


@nightly
@pytest.mark.cases(3)
@pytest.mark.parametrize("scaling", ["none", "standard"])
@pytest.mark.parametrize("network", ["linear", "mlp"])
@pytest.mark.parametrize("blocks", [["pooled.6"], ["own", "each.3"], ["neighbours", "own"], None])
def test_training_succeeds_where_each_holder_has_a_hub(blocks: list[str] | None, network: str, scaling: str) -> None:
    """The step that has most validation nodes right, of all trials that suit, predicts well and in range."""
    graphs = federation(random.Random(3), holders=2, nodes=400, degree=380, skews=scaling == "standard")
    model = {"network": network, "blocks": blocks, "hidden": 16}
    train = {"epochs": 60, "learning_rate": None, "select_by": "accuracy"}
    job = small_job(2, {"model": model, "train": train, "data": {"feature_scaling": scaling}})
    context, data = twin_context(job, graphs)
    machine = BoundedMachine(list(data))
    program = SealedProgram(machine, context)
    program.enter(trains=True)
    program.begin()
    most, found = 0.0, None
    for epoch in range(1, 61):
        program.step(epoch - 1)
        if epoch % 5 == 0 and (right := float(program.score(epoch) or 0)) > most:
            most, found = right, program.predict()
    labels, asked = graphs[0].labels, graphs[0].test_mask
    assert found is not None
    assert labels is not None
    assert float((found[:, 0] == labels)[asked].double().mean()) > 0.8
    assert not machine.beyond


HUBS: Final = {4: 13, 1 << 14: 13, (1 << 14) + 1: 12, 1 << 16: 12, (1 << 16) + 1: 11, 1 << 18: 11}
"""The largest degree → bits of what may be opened."""


@pytest.mark.parametrize(("degree", "bits"), HUBS.items())
def test_what_is_opened_is_tested_closer_the_more_edges_a_node_may_have(degree: int, bits: int) -> None:
    job = small_job(2, {"model": {"network": "linear", "blocks": ["own"]}, "train": {"epochs": 2}}, STANDARD)
    context, data = twin_context(job, small_graphs())
    context = replace(context, sizes=replace(context.sizes, max_degree=degree))
    program = SealedProgram(BoundedMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    for step, (share, failed) in enumerate(((0.7, False), (1.3, True))):
        value = torch.full((1,), share * 2.0 ** (bits + BITS)).to(torch.int64)
        program.network.watch(program._machine.constant(value, BITS))
        program.step(step)
        assert program.outside.public is not None
        assert bool(program.outside.public.sum()) == failed


@nightly
@pytest.mark.parametrize(("leaves", "weight"), [(70_000, None), (9_000, 5.0)])
def test_a_star_is_learned_over_within_the_ring(leaves: int, weight: float | None) -> None:
    """Each holder records half of the centre's edges."""
    nodes = leaves + 1
    graphs = small_graphs(nodes=nodes, training=600)
    others = torch.arange(1, nodes)
    for place, own in enumerate((others[::2], others[1::2])):
        ends = torch.stack([own, torch.zeros_like(own)])
        weights = None if weight is None else torch.full((2 * len(own),), weight)
        graphs[place] = replace(graphs[place], edge_index=torch.cat([ends, ends.flip(0)], 1), edge_weight=weights)
    model = {"network": "mlp", "blocks": ["own", "pooled.6"], "edge_weights": weight is not None}
    job = small_job(2, {"model": model, "train": {"epochs": 4, "learning_rate": 0.25}}, STANDARD)
    context, data = twin_context(job, graphs)
    assert context.sizes.max_degree == 2 * (1 << 16 if weight is None else 1 << 15) - 1
    machine = BoundedMachine(list(data))
    predicted = whole(SealedProgram(machine, context), job)[1]
    assert predicted is not None
    assert not machine.beyond


def failing(values: Tensor, most: int, holders: int = 2, dealer: PartyId = SERVER) -> Any:
    """How many of the range tests of a wire fail."""

    def program(machine: Machine) -> Tensor | None:
        put = machine.put("A", of(machine, "A", values), tuple(values.shape), BITS)
        wire = machine.open(machine.split(put).scaled(1.0, 1), 1)  # under shares of all, also where nobody deals
        bits = machine.value(~machine.negative(range_tests(wire, most), fine_bits=0))
        return machine.reveal(machine.open(bits.map(lambda part: part.sum(0, keepdim=True))), "A")

    return run(program, holders, dealer=dealer)["A"]


@pytest.mark.parametrize("dealer", [SERVER, NOBODY])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_passes_up_to_a_hundredth_below_the_bound_and_fails_at_it(dealer: PartyId, sign: int) -> None:
    near, at = (torch.full((1,), sign * part * (1 << 12), dtype=torch.float64) for part in (0.99, 1.0))
    assert failing(near, 1 << 12, dealer=dealer) == 0
    assert failing(at, 1 << 12, dealer=dealer) > 0


@pytest.mark.parametrize(("shape", "holders"), [((1, 1), 2), ((70, 30), 3), ((5000, 2), 2)])
def test_what_is_within_the_bound_passes(shape: tuple[int, int], holders: int) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(torch.float64)
    assert failing(4 * values, 1 << 12, holders) == 0


@pytest.mark.parametrize("value", [1 << 12, -(1 << 12), 1 << 20, -(1 << 42)])
@pytest.mark.parametrize("place", [0, 4095, 4096, 9_999])
def test_a_single_value_beyond_the_bound_fails(value: int, place: int) -> None:
    values = torch.zeros(10_000, dtype=torch.float64)
    values[place] = value
    assert failing(values, 1 << 12) > 0


def test_values_beyond_the_bound_that_cancel_out_fail() -> None:
    values = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(500) * (1 << 12)
    assert failing(values, 1 << 12) > 0


RATE: Final = 2.0**16
WILD: Final = [("linear", STANDARD), ("mlp", STANDARD), ("mlp", {})]


def wild(network: str, changes: Settings) -> tuple[SealedJob, list[PartyGraph]]:
    """A job at a rate that makes numbers wrap around."""
    return small_job(
        2, {"model": {"network": network}, "train": {"learning_rate": RATE, "weight_decay": 0, "epochs": 4}}, changes
    ), small_graphs()


def revealed(patch: pytest.MonkeyPatch) -> list[tuple[PartyId, Tensor]]:
    """Gets all that holders are told, and who is."""
    reveal, found = HolderMachine.reveal, list[tuple[PartyId, Tensor]]()

    def seen(self: HolderMachine, wire: Wire, to: PartyId) -> Tensor | None:
        told = reveal(self, wire, to)
        found.extend([] if told is None else [(to, told)])
        return told

    patch.setattr(HolderMachine, "reveal", seen)
    return found


@pytest.mark.cases(1)
@pytest.mark.parametrize(("network", "changes"), WILD)
def test_a_job_that_leaves_the_range_gives_no_classes(network: str, changes: Settings) -> None:
    """Without the bit its classes are not the twin's, and nothing shows it."""
    job, graphs = wild(network, changes)
    with refused(RangeOverflow, code="left-range", key="train.learning_rate", value=RATE):
        check_ranges(job, graphs)
    with refused(RangeOverflow, code="left-range"), pytest.MonkeyPatch.context() as patch:
        opened = revealed(patch)
        outcomes(job, graphs, lambda program: whole(program, job))
    assert {float(told) for _, told in opened} == {1.0}, "more than one bit is opened"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedProgram, "check_range", lambda *_: None)
        found = outcomes(job, graphs, lambda program: whole(program, job))
        assert (found["A"][1] != found[TWIN][1]).any()


def test_a_refused_job_sends_nothing_and_one_that_ends_predicts_nothing(tmp_path: Path) -> None:
    job = saved(tmp_path / "data", *wild("mlp", STANDARD))
    with refused(RangeOverflow, code="left-range"):
        train(job, tmp_path / "checked")
    assert not (tmp_path / "checked" / "parties").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veilgraph.paradigms.sealed.paradigm.check_ranges", lambda *_: None)
        with refused(RangeOverflow, code="left-range"):
            train(job, tmp_path / "run")
        assert not list((tmp_path / "run").rglob("predictions*"))
        with refused(RangeOverflow, code="left-range"):
            resume(tmp_path / "run")  # at its last checkpoint: what failed before it is remembered


def test_first_weights_are_tested_when_they_are_made_of_what_rows_count() -> None:
    """Each row counts 2^9 in the bias, which is below the bound of 2^11; eight of them together are not."""
    context, data = twin_context(small_job(2, {"model": {"network": "linear"}}), small_graphs(nodes=60, columns=20))
    for count, failed in ((2.0**3, False), (2.0**9, True)):
        program = SealedProgram(BoundedMachine(list(data)), context)
        program.enter(trains=True)
        program.begin()
        program.step(0)
        assert program.network.sums_rows
        (summed,) = program.learned
        rows = torch.full(tuple(summed.shape), count * 2.0**WEIGHT_BITS).to(torch.int64)
        program.learned[0] = program._machine.constant(rows, WEIGHT_BITS)
        assert program.weights  # made of what rows count now
        program.begin()
        assert program.before.public is not None
        assert bool(program.before.public.sum()) == failed


def test_weights_are_tested_where_nothing_is_computed_of_them() -> None:
    job = small_job(2, {"model": {"network": "linear"}})
    graphs = [replace(graph, features=torch.zeros_like(graph.features)) for graph in small_graphs()]

    def program(part: SealedProgram) -> None:
        part.enter(trains=True)
        part.begin()
        ones = [torch.ones(shape, dtype=torch.int64) << WEIGHT_BITS + 13 for shape in part.network.shapes]
        part.learned = [part._machine.constant(each, WEIGHT_BITS) for each in ones]
        part.step(job.train.epochs - 1)  # the first one begins anew, and the last is kept
        part.check_range(part.outside)

    with refused(RangeOverflow, code="left-range"):
        outcomes(job, graphs, program)


@pytest.mark.parametrize(("training", "most"), [(20, 2**8), (512, 2**12)])
def test_velocities_of_sums_of_few_rows_are_tested_closer(
    training: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One just below the bound after a step passes, and one just beyond it fails."""
    monkeypatch.setattr(Network, "sums_rows_of", lambda *_: True)
    job = small_job(
        2, {"model": {"network": "mlp"}, "train": {"epochs": 2, "evaluate_every": 2, "learning_rate": 0.01}}
    )
    context, data = twin_context(job, small_graphs(nodes=training + 60, training=training))
    assert context.sizes.training == training
    failed = []
    for share in (0.9, 1.1):
        program = SealedProgram(PlainMachine(list(data)), context)
        program.enter(trains=True)
        program.begin()
        program.step(0)
        velocity = program.velocities[0]
        assert velocity is not None
        moved = velocity.known.clone()
        moved[0, -1] = most * share / context.plan.momentum
        program.velocities[0] = replace(velocity, public=moved)
        program.step(1)
        failed.append(float(program.outside.known))
    assert failed[0] == 0
    assert failed[1] > 0


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("every", [2, 3])
def test_what_left_the_range_at_any_step_is_counted_when_weights_are_kept_next(
    every: int, place: int, saved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trials of three steps: where weights are judged or saved, a trial counts its own failed tests."""
    arrive, wide = Network.arrive, torch.full((1,), 1 << (BITS + 20))

    def leaves_the_range(network: Network, step: int) -> None:
        arrive(network, step)
        if step == place:
            network.watch(network.machine.constant(wide, BITS))

    monkeypatch.setattr(Network, "arrive", leaves_the_range)
    often, never = ("checkpoint_every", "evaluate_every") if saved else ("evaluate_every", "checkpoint_every")
    train = {"epochs": 6, often: every, never: 6, "select_by": "accuracy"}
    context, data = twin_context(small_job(2, {"model": {"network": "linear"}, "train": train}), small_graphs())
    (trial,) = context.plan.trials
    context = replace(context, plan=replace(context.plan, trials=(trial, replace(trial, learning_rate=0.5))))
    program = SealedProgram(BoundedMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    assert [context.plan.trial_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 1]
    counted = []
    for step in range(6):
        program.step(step)
        if (step + 1) % every == 0:
            assert program.outside.public is not None
            counted.append(bool(program.outside.public.sum()))
    kept = range(every - 1, 6, every)
    assert counted == [place <= step and place // 3 == step // 3 for step in kept]


def test_what_leaves_the_range_behind_the_last_step_is_counted_with_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def votes(network: Network, weights: object) -> None:
        network.watch(network.machine.constant(torch.full((1,), 1 << (BITS + 20)), BITS))

    monkeypatch.setattr(Network, "finish", votes)
    context, data = twin_context(small_job(2, {"train": {"epochs": 2}}), small_graphs())
    program = SealedProgram(BoundedMachine(list(data)), context)
    program.enter(trains=True)
    program.begin()
    for step, failed in enumerate((False, True)):
        program.step(step)
        assert bool(program.outside.known.sum()) == failed


@pytest.mark.parametrize("failed", [0, 1, 3])
def test_a_training_that_is_gone_on_with_remembers_what_has_failed(failed: int) -> None:
    def program(part: SealedProgram) -> None:
        part.outside = part._machine.constant(torch.full((1,), failed))
        again = SealedProgram(part._machine, part._context)
        again.restore(part.shares(), training=False)
        again.check_range(again.outside)

    def work() -> None:
        outcomes(small_job(2, {"model": {"network": "linear"}}), small_graphs(), program)

    assert is_refused(work) == (failed > 0)


@pytest.mark.cases(1)
@pytest.mark.parametrize("select_by", ["accuracy", "auc"])
def test_of_a_score_one_number_is_opened_and_a_trial_out_of_range_has_none_right(select_by: str) -> None:
    """The first trial is in range; the second is not, and counts as none right from then on; the third is again."""
    trials = [Trial(("pooled.2",), deep=False, learning_rate=rate, weight_decay=0) for rate in (0.5, RATE, 0.25)]
    job = small_job(2, {"train": {"select_by": select_by, "evaluate_every": 2, "epochs": 12, "learning_rate": None}})
    with trying(*trials), pytest.MonkeyPatch.context() as patch:
        opened = revealed(patch)
        outcomes(job, small_graphs(), lambda program: whole(program, job))
    *before, first, second, classes = opened
    waited = [(to, float(told)) for to, told in before if told.shape == (1,)]  # for each other, after checkpoints
    assert set(waited) <= {("A", 0.0), ("B", 0.0)}
    scores = [(to, told) for to, told in before if told.shape != (1,)]
    assert [(to, told.shape) for to, told in scores] == [("A", (1, 1))] * 6
    right = [float(told) for _, told in scores]
    assert min(right[:2] + right[4:]) > 0
    assert right[3] == 0
    assert {to for to, _ in (first, second)} == {"A", "B"}
    assert float(first[1]) == float(second[1]) == 0, "of the last trial, whose weights are in range"
    assert (classes[0], classes[1].shape) == ("A", (30, 1))


def test_a_baseline_whose_trial_is_out_of_range_goes_on_to_the_next_as_the_job_does() -> None:
    trials = [Trial(("pooled.2",), deep=False, learning_rate=rate, weight_decay=0) for rate in (RATE, 0.25)]
    train = {"select_by": "accuracy", "evaluate_every": 2, "epochs": 8, "learning_rate": None}
    job, graphs = small_job(2, {"train": train}), small_graphs()
    with trying(*trials):
        found = train_plain(job, pool(graphs, "A"), lambda _: None)
    judged = [each["epoch"] for each in found.metrics if "val_accuracy" in each]
    assert 4 not in judged, "this trial is in range"
    assert judged[-2:] == [6, 8]
    with trying(*trials[:1]), refused(RangeOverflow, code="left-range"):
        train_plain(job, pool(graphs, "A"), lambda _: None)


def test_rows_that_were_out_of_range_fail_every_trial() -> None:
    trials = [Trial(("pooled.2",), deep=False, learning_rate=rate, weight_decay=0) for rate in (0.5, 0.25)]
    job = small_job(2, {"train": {"select_by": "accuracy", "evaluate_every": 1, "epochs": 4, "learning_rate": None}})
    scores = list[float]()

    def program(part: SealedProgram) -> None:
        part.enter(trains=True)
        part.begin()
        part.before = part._machine.constant(torch.ones(1, dtype=torch.int64))
        for step in range(4):
            part.step(step)
            scores.extend(float(right) for right in [part.score(step + 1)] if right is not None)
        part.check_range(part.outside)

    with trying(*trials), refused(RangeOverflow, code="left-range"):
        outcomes(job, small_graphs(), program)
    assert scores == [0] * 4
