"""Trials that are made side by side are what they are in turn, in fewer rounds."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.paradigms.cutting import CutError, epochs_of
from tests.paradigms.sealed.programs import TWIN, by_trust, layers, outcomes, saved, small_graphs, small_job, trying
from tests.paradigms.sealed.two_sessions import cut_and_resumed, nodes_with_equal_low_bits, repeated_messages
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.view import RecordedLink
from veilgraph.mpc.sealed.counting import CountingMachine
from veilgraph.mpc.sealed.machine import PlainMachine
from veilgraph.paradigms.sealed import abreast
from veilgraph.paradigms.sealed.inputs import plan_of
from veilgraph.paradigms.sealed.plan import Trial
from veilgraph.paradigms.sealed.program import SealedProgram
from veilgraph.paradigms.sealed.roles import SealedDealer
from veilgraph.paradigms.sealed.settings import SealedJob
from veilgraph.paradigms.sealed.twin import twin_context
from veilgraph.runtime.launch.jobs import resume, train
from veilgraph.runtime.store.run_directory import Record, RunDirectory

EVERY = 3
"""Steps after which one is judged: of the trials, each another number after its beginning."""


def job_of(epochs: int, holders: int = 2) -> SealedJob:
    train = {
        "epochs": epochs,
        "evaluate_every": EVERY,
        "checkpoint_every": 2,
        "select_by": "accuracy",
        "class_weights": "balanced",
    }
    return small_job(holders, {"train": train})


def three_trials(job: SealedJob) -> Sequence[Trial]:
    """A hidden layer with dropout, none, and again one, on other blocks."""
    (trial,) = plan_of(job).trials
    return (
        replace(trial, blocks=("own", "pooled.1"), drops=True),
        replace(trial, blocks=("pooled.2",), deep=False),
        replace(trial, blocks=("own",), learning_rate=0.5),
    )


def reached(program: SealedProgram, epochs: int, *, scored: bool = True) -> list[dict[str, Tensor]]:
    """All that is saved after every step, and what its score tells."""
    program.enter(trains=True)
    program.begin()
    found = []
    for step in range(epochs):
        program.step(step)
        told = program.score(step + 1) if scored and ((step + 1) % EVERY == 0 or step + 1 == epochs) else None
        found.append(program.shares() | ({} if told is None else {"told": told}))
    return found


@pytest.mark.parametrize("epochs", [12, 14])
def test_every_step_and_score_is_what_it_is_in_turn(epochs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 14 steps the last trial has six, and others four."""
    job, graphs = job_of(epochs), small_graphs(columns=12)
    with trying(*three_trials(job)):
        context, data = twin_context(job, graphs)
        assert [context.plan.trial_of(step) for step in (3, 4, 8, epochs - 1)] == [0, 1, 2, 2]
        assert abreast.are_abreast(context)
        together = reached(SealedProgram(PlainMachine(list(data)), context), epochs)
        monkeypatch.setattr(abreast, "MOST_ROWS_ABREAST", 0)
        assert not abreast.are_abreast(context)
        in_turn = reached(SealedProgram(PlainMachine(list(data)), context), epochs)
    for step, (one, other) in enumerate(zip(together, in_turn, strict=True)):
        kept = (step + 1) % EVERY == 0 or (step + 1) % 2 == 0 or step + 1 == epochs
        names = {name for name in other if kept or not name.startswith(("weight", "range"))}
        assert names <= set(one)
        assert ("told" in one) == ("told" in other) == ((step + 1) % EVERY == 0 or step + 1 == epochs)
        for name in names:
            assert torch.equal(one[name], other[name]), (step, name)


def test_columns_with_units_of_their_own_are_tried_in_turn() -> None:
    """Their steps are judged beside the best of earlier trials."""
    job = small_job(2, {"train": {"epochs": 6}, "data": {"feature_scaling": "standard"}})
    with trying(*three_trials(job)):
        context, _ = twin_context(job, small_graphs())
    assert len(context.plan.trials) == 3
    assert not abreast.are_abreast(context)


@pytest.mark.parametrize("holders", [2, 3])
def test_parties_score_and_train_as_the_twin_does(holders: int) -> None:
    epochs = 6
    job, graphs = job_of(epochs, holders), small_graphs(holders, columns=12)
    with trying(*three_trials(job)):
        for each in by_trust(job):
            found = outcomes(each, graphs, lambda program: reached(program, epochs))
            twin = [step["told"] for step in found[TWIN] if "told" in step]
            told = [step["told"] for step in found["A"] if "told" in step]
            assert len(twin) == 2
            assert all(float((one - other).abs()) <= 1 for one, other in zip(told, twin, strict=True))


@pytest.mark.cases(2)
@pytest.mark.parametrize("judged_every", [2, 5])
@pytest.mark.parametrize("cut", [4, 5])
@pytest.mark.parametrize("trust", ["dealer", "majority"])
def test_a_training_that_was_cut_among_steps_made_beforehand_goes_on(
    trust: str, cut: int, judged_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The label holder ends before it saves what others have saved already; no draw is in both sessions."""
    append = RunDirectory.append_metrics

    def late(self: RunDirectory, record: Record) -> None:
        append(self, record)
        if record["epoch"] == cut:
            time.sleep(1)  # in which others make the steps that need nobody

    holders = 2 if trust == "dealer" else 3
    job, graphs = job_of(9, holders), small_graphs(holders, columns=12)
    job = job.model_copy(
        update={"trust": trust, "train": job.train.model_copy(update={"evaluate_every": judged_every})}
    )
    with trying(*three_trials(job)):
        job = saved(tmp_path / "data", job, graphs)
        whole = layers(train(job, tmp_path / "whole").path)
        monkeypatch.setattr(RunDirectory, "append_metrics", late)
        run = cut_and_resumed(job, tmp_path / "cut", cut)
    for party in job.computing:
        assert repeated_messages(run, party) == 0
        assert nodes_with_equal_low_bits(run, party) == set()
    assert all(float((one - other).abs().max()) < 1e-3 for one, other in zip(whole, layers(run), strict=True))


@pytest.mark.parametrize(("trust", "judged_every"), [("dealer", 2), ("dealer", 8), ("nobody", 8)])
def test_holders_do_not_go_on_without_a_server_that_has_ended(
    trust: str, judged_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they are more than two checkpoints ahead of it, and the job cannot be resumed."""
    catch_up = SealedDealer.catch_up

    def ends(self: SealedDealer, epoch: int | None) -> None:
        if epoch == 13:
            saved, before = epochs_of(tmp_path / "run"), dict[str, list[int]]()
            while saved != before:  # until nobody goes on
                time.sleep(0.5)
                saved, before = epochs_of(tmp_path / "run"), saved
            raise CutError
        catch_up(self, epoch)

    job = job_of(24, 2)
    job = job.model_copy(
        update={"trust": trust, "train": job.train.model_copy(update={"evaluate_every": judged_every})}
    )
    with trying(*three_trials(job)):
        job = saved(tmp_path / "data", job, small_graphs(2, columns=12))
        monkeypatch.setattr(SealedDealer, "catch_up", ends)
        with pytest.raises(CutError):
            train(job, tmp_path / "run")
        monkeypatch.undo()
        assert resume(tmp_path / "run").summary["started_at"] in (10, 12)


def test_side_by_side_the_same_bytes_take_less_than_half_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of three trials beside one another, and evaluations beside steps."""
    job = job_of(12)
    job = job.model_copy(update={"train": job.train.model_copy(update={"checkpoint_every": 12})})
    with trying(*three_trials(job)):
        context = replace(twin_context(job, small_graphs(columns=12))[0], data={})
    spent = []
    for most in (8, 0):
        monkeypatch.setattr(abreast, "MOST_ROWS_ABREAST", most)
        machine = CountingMachine(["A", "B"], SERVER)
        reached(SealedProgram(machine, context), 12)
        sent = sum((cost.sent for cost in machine.costs.values()), Counter[str]())
        steps = [cost.rounds for place, cost in machine.costs.items() if place.startswith(("step", "score"))]
        spent.append((sum(steps), sent))
    (together, sent), (in_turn, sent_in_turn) = spent
    assert sent == sent_in_turn
    assert together < in_turn / 2


@pytest.mark.parametrize("holders", [2, 3])
def test_parties_send_what_is_counted_part_by_part(holders: int) -> None:
    """A part that took what another one computed beside it would send more or less than by itself."""
    epochs, links = 12, dict[PartyId, RecordedLink]()
    job, graphs = job_of(epochs, holders), small_graphs(holders, columns=12)
    with trying(*three_trials(job)):
        outcomes(job, graphs, lambda program: reached(program, epochs), links)
        context = replace(twin_context(job, graphs)[0], data={})
    machine = CountingMachine(list(job.data.names), SERVER)
    reached(SealedProgram(machine, context), epochs)
    counted = sum((cost.sent for cost in machine.costs.values()), Counter[str]())
    sent = {party: sum(of.bytes for of in link.traffic() if of.direction == "sent") for party, link in links.items()}
    assert sent == counted


def test_hops_over_different_edges_take_the_rounds_of_the_longest() -> None:
    """Where rows of training nodes hop: of few nodes and many columns."""

    def rounds(*blocks: str) -> int:
        with trying(Trial(blocks, deep=False, learning_rate=1.0, weight_decay=0.0)):
            context = replace(twin_context(job_of(12), small_graphs(columns=12))[0], data={})
        context = replace(context, sizes=replace(context.sizes, columns={"A": 500, "B": 500}))
        machine = CountingMachine(["A", "B"], SERVER)
        program = SealedProgram(machine, context)
        program.enter(trains=True)
        program.begin()
        assert not program.network.propagates_columns
        return machine.costs["rows"].rounds

    assert rounds("each.3", "pooled.3") == max(rounds("each.3"), rounds("pooled.3"))
