"""A sealed job is its twin, or it ends: numbers that leave the ring's range are never taken for a result."""

from __future__ import annotations

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
from tests.paradigms.sealed.private import KEY, noise_from, noise_of
from tests.paradigms.sealed.programs import TWIN, outcomes, saved, small_graphs, small_job
from tests.paradigms.sealed.valid_jobs import federation, valid_case
from veilgraph.core.errors import RangeOverflow
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.mpc.sealed.functions import BITS, range_tests
from veilgraph.mpc.sealed.machine import HolderMachine, Machine
from veilgraph.mpc.sealed.wire import Wire
from veilgraph.paradigms.sealed.inputs import own_data
from veilgraph.paradigms.sealed.networks import NETWORKS
from veilgraph.paradigms.sealed.program import WEIGHT_BITS, SealedProgram
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import check_ranges, together
from veilgraph.runtime.launch.jobs import resume, train

CLOSE: Final = 1e-3
"""Of probabilities."""
TIED, FAR = {88, 104, 107, 181, 191, 198}, 5e-2
"""Jobs in which rounding decides a vote or a ReLU that is near its tie, so that training takes another course."""
SOME, ALL = 4, 200


def whole(program: SealedProgram, job: SealedJob) -> tuple[list[float], Tensor | None]:
    """What a run opens: numbers of right validation nodes, and the prediction after the last step."""
    program.enter(trains=True)
    program.begin()
    scores = list[float]()
    for epoch in range(1, job.train.epochs + 1):
        program.step(epoch - 1)
        if job.passes.evaluates and (epoch % job.train.evaluate_every == 0 or epoch == job.train.epochs):
            scores.append(float(program.score(epoch) or 0))
    return scores, program.predict()


def is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except RangeOverflow:
        return True
    return False


def plain(job: SealedJob, graphs: list[PartyGraph]) -> BoundedMachine:
    """The twin of a job, which refuses it where the job ends."""
    context, data = together(job, graphs)
    machine = BoundedMachine(list(data), noise_of())
    whole(SealedProgram(machine, context), job)
    return machine


def far(job: SealedJob, graphs: list[PartyGraph]) -> float | None:
    """How far a job is from its twin, in probabilities; None: it was refused, by the twin and by its parties.

    Where a class is another one, the two largest probabilities of the twin say how far.
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
        likely = job.model_copy(update={"output": "probabilities"})
        context, data = together(likely, graphs)
        machine = BoundedMachine(list(data), noise_of())
        probabilities = whole(SealedProgram(machine, context), likely)[1]
    assert probabilities is not None
    two = probabilities.topk(2, 1).values
    ties = 1 + int((two[:, 0] - two[:, 1] < 2 * CLOSE).sum())
    assert all(abs(one - other) <= ties for one, other in zip(scores, expected, strict=True)), (scores, expected)
    if job.output == "probabilities":
        return float((ours - twin).abs().max())
    other = (ours != twin)[:, 0]
    return float((two[:, 0] - two[:, 1])[other].max()) / 2 if other.any() else 0.0


@pytest.mark.cases(60)
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[] if seed < SOME else [nightly]) for seed in range(ALL)])
def test_a_valid_job_is_its_twin_or_is_refused_by_it(seed: int) -> None:
    difference = far(*valid_case(seed))
    assert difference is None or difference < (FAR if seed in TIED else CLOSE)


@pytest.mark.cases(6)
@pytest.mark.parametrize("normalization", ["symmetric", pytest.param("random-walk", marks=nightly)])
@pytest.mark.parametrize("network", list(NETWORKS))
def test_training_succeeds_where_each_holder_has_a_hub(network: str, normalization: str) -> None:
    """To the accuracy that each network has without hubs; at four times the rate it was that of one class."""
    graphs = federation(random.Random(3), holders=2, nodes=400, degree=380)
    model = {"network": network, "hops": None, "teleport": None, "hidden": 16, "normalization": normalization}
    job = small_job(2, {"model": model, "train": {"epochs": 50, "learning_rate": None}})
    context, data = together(job, graphs)
    machine = BoundedMachine(list(data))
    _, found = whole(SealedProgram(machine, context), job)
    labels, judged = graphs[0].labels, graphs[0].test_mask
    assert found is not None
    assert labels is not None
    assert float((found[:, 0] == labels)[judged].double().mean()) > 0.8
    assert not machine.beyond


def failing(values: Tensor, most: int, holders: int = 2) -> Any:
    """How many of the range tests of a wire fail."""

    def program(machine: Machine) -> Tensor | None:
        wire = machine.put("A", of(machine, "A", values), tuple(values.shape), BITS)
        bits = machine.value(~machine.negative(range_tests(wire, most)))
        return machine.reveal(machine.open(bits.map(lambda part: part.sum(0, keepdim=True))), "A")

    return run(program, holders)["A"]


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


def wild(network: str) -> tuple[SealedJob, list[PartyGraph]]:
    """A job at a rate, and of columns, that make numbers wrap around."""
    job = small_job(
        2, {"model": {"network": network, "unit_rows": False}, "train": {"learning_rate": RATE, "epochs": 4}}
    )
    return job, [replace(graph, features=graph.features * 1000) for graph in small_graphs()]


@pytest.mark.cases(2)
@pytest.mark.parametrize("network", list(NETWORKS))
def test_a_job_that_leaves_the_range_gives_no_classes(network: str) -> None:
    """Without the bit its classes are not the twin's, and nothing shows it."""
    job, graphs = wild(network)
    opened = list[float]()
    with refused(RangeOverflow, code="left-range", key="train.learning_rate", value=f"{RATE:g}"):
        check_ranges(job, graphs)
    with refused(RangeOverflow, code="left-range"), pytest.MonkeyPatch.context() as patch:
        reveal = HolderMachine.reveal

        def seen(self: HolderMachine, wire: Wire, to: PartyId) -> Tensor | None:
            told = reveal(self, wire, to)
            opened.extend([] if told is None else told.flatten().tolist())
            return told

        patch.setattr(HolderMachine, "reveal", seen)
        outcomes(job, graphs, lambda program: whole(program, job))
    assert {*opened} == {1.0}, "more than one bit is opened"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedProgram, "check_range", lambda *_: None)
        found = outcomes(job, graphs, lambda program: whole(program, job))
        assert (found["A"][1] != found[TWIN][1]).any()


def test_a_refused_job_sends_nothing_and_one_that_ends_predicts_nothing(tmp_path: Path) -> None:
    job = saved(tmp_path / "data", *wild("mlp"))
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


def test_weights_are_tested_where_nothing_is_computed_of_them() -> None:
    job = small_job(2, {"model": {"network": "linear"}})
    graphs = [replace(graph, features=torch.zeros_like(graph.features)) for graph in small_graphs()]

    def program(part: SealedProgram) -> None:
        part.enter(trains=True)
        part.begin()
        ones = [torch.ones(shape, dtype=torch.int64) << WEIGHT_BITS + 13 for shape in part.shapes]
        part.weights = [part._machine.constant(each, WEIGHT_BITS) for each in ones]
        part.step(1)  # the first one begins anew
        part.check_range(part.outside)

    with refused(RangeOverflow, code="left-range"):
        outcomes(job, graphs, program)


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


def test_a_step_that_leaves_the_range_is_not_chosen() -> None:
    """The first rate is tried in range; the second one is not, and counts as none right from then on."""
    rates = {"learning_rates": [0.5, 4096.0], "learning_rate": None, "select_by": "accuracy", "evaluate_every": 2}
    job = small_job(2, {"model": {"network": "mlp", "unit_rows": False}, "train": {**rates, "epochs": 8}})
    scores = list[float]()

    def program(part: SealedProgram) -> None:
        part.enter(trains=True)
        part.begin()
        for epoch in range(1, 9):
            part.step(epoch - 1)
            if epoch % 2 == 0 and (right := part.score(epoch)) is not None and part._machine.party == "A":
                scores.append(float(right))

    outcomes(job, small_graphs(), program)
    assert scores[0] > 0
    assert scores[-1] == 0


def test_columns_that_do_not_fit_the_ring_are_refused_at_their_holder() -> None:
    job = small_job(2, {"model": {"unit_rows": False}})
    large = replace(small_graphs()[1], features=small_graphs()[1].features * 1e7)
    with refused(RangeOverflow, code="beyond-the-ring", key="model.unit_rows", value=False):
        own_data(job, large)
    own_data(small_job(2), large)
