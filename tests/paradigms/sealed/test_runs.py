"""Whole sealed runs on disk: as the twin has them, cut and gone on with, predicting again, and what is refused."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from tests import nightly
from tests.chance import fixed_chance
from tests.errors import refused
from tests.paradigms.cutting import CutError, checkpoint, cut_at
from tests.paradigms.sealed.dense import STANDARD
from tests.paradigms.sealed.programs import layers, numbers, saved, scaled, small_graphs, small_job, weights
from tests.roles.federation import Settings
from veilgraph.audit.attack import load_view
from veilgraph.core.errors import DataError, RunError
from veilgraph.core.tensor_file import save_tensors
from veilgraph.core.types import SERVER, Kind
from veilgraph.graph.party import PartyGraph, load_party, save_party
from veilgraph.link.collectives import tensor_text
from veilgraph.paradigms.sealed import inputs
from veilgraph.paradigms.sealed.inputs import max_degree_of, plan_of
from veilgraph.paradigms.sealed.plan import OwnData
from veilgraph.paradigms.sealed.program import TRIAL, SealedProgram, logits_of
from veilgraph.paradigms.sealed.roles import SealedDealer
from veilgraph.paradigms.sealed.settings import LARGEST_DEGREE, LARGEST_WEIGHTED, SealedJob
from veilgraph.paradigms.sealed.twin import chosen_twin, trained_twin
from veilgraph.protocol.messages import rows_of
from veilgraph.runtime.launch.jobs import TrainResult, predict, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import RunDirectory, load_tensors

MLP: Settings = {
    "model": {"blocks": ["own", "each.2"]},
    "train": {"batch_size": 3, "class_weights": "balanced", "epochs": 5},
}
JUDGED: Settings = {
    "model": {"network": None, "blocks": ["neighbours", "pooled.2"]},
    "train": {"select_by": "accuracy", "epochs": 20, "evaluate_every": 2, "learning_rate": 0.25},
    **STANDARD,
}
"""Of two trials."""
SHORT = pytest.mark.parametrize(
    "whole", [MLP, pytest.param(JUDGED, marks=nightly)], ids=["mlp", "judged"], indirect=True, scope="module"
)
"""Of twenty judged steps in the night alone."""
ROUNDING = 1e-3
"""What fresh rounding in every step changes of a weight at most."""


@pytest.fixture(scope="module", params=[MLP, JUDGED], ids=["mlp", "judged"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[SealedJob, TrainResult]:
    folder = tmp_path_factory.mktemp("whole")
    job = saved(folder / "data", small_job(2, request.param), small_graphs())
    with fixed_chance("whole"):
        return job, train(job, folder / "run")


def test_a_run_is_what_the_twin_makes_of_all_data_together(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    twin = chosen_twin(job, scaled(job, small_graphs()))
    for weight, expected in zip(layers(run.path), numbers(twin), strict=True):
        assert float((weight - expected).abs().max()) < 3e-3
    predicted = twin.predict()
    assert predicted is not None
    assert (run.predictions.classes == predicted[:, 0]).sum() >= len(predicted) - 1
    assert "loss" not in run.metrics[-1]


def test_what_has_been_put_in_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as much memory as all that is made of it."""
    made, there = list[weakref.ref[torch.Tensor]](), list[bool]()
    step = SealedProgram.step

    def own_data(*args: Any, **options: Any) -> OwnData:
        found = inputs.own_data(*args, **options)
        made.extend(weakref.ref(part) for part in found.columns.values())
        return found

    def steps(program: SealedProgram, *args: Any) -> None:
        there.extend(part() is not None for part in made)
        step(program, *args)

    monkeypatch.setattr("veilgraph.paradigms.sealed.roles.own_data", own_data)
    monkeypatch.setattr(SealedProgram, "step", steps)
    train(saved(tmp_path / "data", small_job(2, MLP), small_graphs()), tmp_path / "run")
    assert len(made) == 2
    assert there
    assert not any(there[-len(made) :])


def test_of_classes_alone_no_probability_is_written(whole: tuple[SealedJob, TrainResult]) -> None:
    _, run = whole
    assert (run.path / "parties" / "A" / "predictions.csv").read_text().startswith("node,class\n")
    assert run.predictions.records()[0].keys() == {"node", "class"}


def test_of_a_step_the_label_holder_learns_how_many_validation_nodes_are_right(tmp_path: Path) -> None:
    """To one node: that of two equal logits counts as right. The step that is taken may be of the first trial.

    In the second trial it is of the step's network, or of its mean with the best of the first one.
    """
    job, graphs = small_job(2, JUDGED), small_graphs(nodes=40, training=9)
    margins = job.model_copy(update={"output": "margins"})
    run = train(saved(tmp_path / "data", job, graphs), tmp_path / "run")
    assert graphs[0].labels is not None
    assert graphs[0].val_mask is not None
    judged, told, best = graphs[0].val_mask, dict[int, float](), torch.zeros(())
    for epoch, record in enumerate(run.metrics, 1):
        if epoch % 2:
            assert record.keys() == {"epoch", "step_seconds"}
            continue
        assert record.keys() == {"epoch", "step_seconds", "val_accuracy"}
        told[epoch] = record["val_accuracy"]
        found = trained_twin(margins, scaled(job, graphs), epoch).predict()
        assert found is not None
        trial, own = plan_of(job).trial_of(epoch - 1), logits_of(found)
        tried = [(own + best) / 2, own] if trial else [own]
        rights = [float((logits.argmax(1) == graphs[0].labels)[judged].double().mean()) for logits in tried]
        assert abs(told[epoch] - max(rights)) <= 1.01 / int(judged.sum())
        best = own if not trial and told[epoch] > max([-1.0, *told.values()][:-1]) else best
    assert len(told) == 10
    assert run.summary["best_epoch"] == max(told, key=lambda epoch: (told[epoch], -epoch))
    members = [0, 1] if plan_of(job).trial_of(run.summary["best_epoch"] - 1) else [0]
    for path in run.path.glob("parties/*/model.safetensors"):
        assert load_tensors(path)[0][TRIAL].tolist() == members


def test_every_message_of_a_run_has_a_row(whole: tuple[SealedJob, TrainResult]) -> None:
    job, run = whole
    seen = set()
    for party in (*job.data.names, SERVER):
        for entry in json.loads((run.path / "parties" / party / "traffic.json").read_text()):
            ends = (party, entry["peer"]) if entry["direction"] == "sent" else (entry["peer"], party)
            kinds = {row.kind.name.lower() for row in rows_of(job, *ends)}
            assert entry["kind"] in kinds, f"{entry['kind']} from {ends[0]} to {ends[1]}"
            seen.add((entry["kind"], ends[0] == SERVER, ends[1] == SERVER))
    assert {("masked_wire", False, False), ("correlation", True, False), ("mask_share", False, False)} <= seen


@SHORT
@pytest.mark.parametrize("epoch", [1, 3])
def test_gone_on_with_it_ends_where_it_would_have_ended(
    whole: tuple[SealedJob, TrainResult], tmp_path: Path, epoch: int
) -> None:
    """To rounding, which is drawn anew in every session: cut before the first checkpoint it begins again."""
    job, run = whole
    with fixed_chance("resumed", epoch):
        with cut_at(epoch), pytest.raises(CutError):
            train(job, tmp_path / "cut")
        resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] == (0 if epoch == 1 else 2)
    assert far(run, resumed) < ROUNDING
    assert (run.predictions.classes == resumed.predictions.classes).sum() >= len(run.predictions.classes) - 1


def test_what_was_best_and_what_it_is_a_mean_with_are_gone_on_with(tmp_path: Path) -> None:
    """Of random labels, so that a mean has more right than either trial: cut after the best step, in the second one."""
    graphs, labels = small_graphs(nodes=60), torch.randint(3, (60,), generator=torch.Generator().manual_seed(0))
    graphs[0] = replace(graphs[0], labels=labels)
    longer: Settings = {"train": {"epochs": 40, "evaluate_every": 4, "learning_rate": 0.125}}
    job = saved(tmp_path / "data", small_job(2, JUDGED, longer), graphs)
    run = train(job, tmp_path / "whole")
    best = run.summary["best_epoch"]
    assert 20 < best < 37
    with cut_at(best + 3), pytest.raises(CutError):
        train(job, tmp_path / "cut")
    resumed = resume(tmp_path / "cut")
    assert resumed.summary["started_at"] >= best
    assert resumed.summary["best_epoch"] == best
    assert [weights(each.path)[TRIAL].tolist() for each in (run, resumed)] == [[0, 1], [0, 1]]
    assert far(run, resumed) < ROUNDING


def far(run: TrainResult, other: TrainResult) -> float:
    """The largest difference of two runs' weights."""
    return max(float((one - two).abs().max()) for one, two in zip(layers(run.path), layers(other.path), strict=True))


@nightly
def test_a_dealer_ahead_of_the_holders_has_a_checkpoint_that_they_have(tmp_path: Path) -> None:
    """It could deal for all that is left while they compute a step, and keeps two checkpoints."""
    ahead, save = Event(), Checkpoints.save
    job = saved(tmp_path / "data", small_job(2, {"train": {"epochs": 12, "checkpoint_every": 1}}), small_graphs())

    def told(self: Checkpoints, epoch: int, tensors: Any, facts: Any) -> None:
        save(self, epoch, tensors, facts)
        if self.path(epoch).parents[1].name == SERVER and epoch == 2:
            ahead.set()
        if self.path(epoch).parents[1].name == "A" and epoch == 2:
            assert ahead.wait(20)

    with pytest.MonkeyPatch.context() as patch, cut_at(3):
        patch.setattr(Checkpoints, "save", told)
        with pytest.raises(CutError):
            train(job, tmp_path / "run")
    assert resume(tmp_path / "run").summary["started_at"] == 2


@pytest.mark.parametrize("late", ["A", "B"])
def test_a_step_is_dealt_before_a_late_holder_has_saved_and_the_dealer_saves_after_it(
    late: str, tmp_path: Path
) -> None:
    """Else the dealer's line stands still meanwhile, or a dealer that ends has no checkpoint that the holder has."""
    dealt, passed, ended, saves = Event(), Event(), Event(), list[tuple[str, int]]()
    forward, save, finish = SealedDealer.forward, Checkpoints.save, Checkpoints.finish
    job = saved(tmp_path / "data", small_job(2, {"train": {"epochs": 5, "checkpoint_every": 2}}), small_graphs())

    def deal(self: SealedDealer, step: int, epoch: int | None) -> None:
        forward(self, step, epoch)
        if epoch == 4:
            dealt.set()

    def told(self: Checkpoints, epoch: int, tensors: Any, facts: Any) -> None:
        party = self.path(epoch).parents[1].name
        if (party, epoch) == (late, 2):
            assert dealt.wait(20)
            assert not passed.wait(0.2)
        if (party, epoch) == (late, 4):
            assert not ended.wait(0.2)
        if (party, epoch) == (SERVER, 4):
            passed.set()
        save(self, epoch, tensors, facts)
        saves.append((party, epoch))

    def end(self: Checkpoints, epoch: int, best: Any, facts: Any) -> None:
        if self.path(epoch).parents[1].name == SERVER:
            ended.set()
        finish(self, epoch, best, facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SealedDealer, "forward", deal)
        patch.setattr(Checkpoints, "save", told)
        patch.setattr(Checkpoints, "finish", end)
        train(job, tmp_path / "run")
    assert saves.index((late, 2)) < saves.index((SERVER, 4))


@SHORT
def test_shares_of_two_runs_have_nothing_in_common(whole: tuple[SealedJob, TrainResult], tmp_path: Path) -> None:
    job, run = whole
    with fixed_chance("again"):
        again = train(job, tmp_path / "again")
    one, other = (load_tensors(RunDirectory.open(path).party("B").model_path)[0] for path in (run.path, again.path))
    assert far(run, again) < ROUNDING
    assert not any(bool((one[name] == other[name]).any()) for name in one if name != TRIAL)


def test_predicting_later_from_shares_gives_the_same_classes(whole: tuple[SealedJob, TrainResult]) -> None:
    _, run = whole
    again = predict(run.path)
    assert (again.classes == run.predictions.classes).sum() >= len(again.classes) - 1


def test_changed_data_are_not_gone_on_with(tmp_path: Path) -> None:
    job = saved(tmp_path / "data", small_job(), small_graphs())
    with cut_at(3), pytest.raises(CutError):
        train(job, tmp_path / "run")
    path = tmp_path / "run" / "parties" / "B" / "graph.safetensors"
    graph = load_party(path)
    save_party(replace(graph, features=graph.features.roll(1, 0)), path)
    with refused(RunError, code="data-changed", party="B"):
        resume(tmp_path / "run")


def test_a_checkpoint_of_a_release_that_judged_no_means_is_not_gone_on_with(tmp_path: Path) -> None:
    """It has no ``learned.0``: training would go on from zeros, and nobody would see it."""
    job = saved(tmp_path / "data", small_job(), small_graphs())
    with cut_at(3), pytest.raises(CutError):
        train(job, tmp_path / "run")
    for party in job.data.names:
        path = checkpoint(tmp_path / "run", party, 2)
        tensors, facts = load_tensors(path)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("state/learned")}
        assert len(kept) == len(tensors) - 3
        save_tensors(path, kept, facts)
    with refused(RunError, code="other-release", key="learned.trial"):
        resume(tmp_path / "run")


OTHER_TRIALS: tuple[list[int], ...] = ([], [0, 1], [-1])


def refuses_other_trials(run: Path, of: Callable[[str], Path], name: str, goes_on: Callable[[Path], object]) -> None:
    """Every holder's own file names other trials than its job has: none, one more, one from the end."""
    paths = {party: of(party) for party in "AB"}
    for trials in OTHER_TRIALS:
        before = {path: path.read_bytes() for path in paths.values()}
        for path in paths.values():
            tensors, facts = load_tensors(path)
            assert tensors[name].tolist() != trials
            save_tensors(path, {**tensors, name: torch.tensor(trials, dtype=torch.int64)}, facts)
        with refused(RunError, code="other-network", key=name.removeprefix("state/")):
            goes_on(run)
        for path, content in before.items():
            path.write_bytes(content)


def test_a_file_that_names_other_trials_than_the_job_has_is_refused(tmp_path: Path) -> None:
    """Weights would be taken for those of another network."""
    job, run = saved(tmp_path / "data", small_job(), small_graphs()), tmp_path / "run"
    with cut_at(3), pytest.raises(CutError):
        train(job, run)
    refuses_other_trials(run, lambda party: checkpoint(run, party, 2), "state/learned.trial", resume)
    resume(run)
    refuses_other_trials(run, lambda party: RunDirectory.open(run).party(party).model_path, TRIAL, predict)


def with_hub(edges: int) -> list[PartyGraph]:
    """A node of B's has so many edges."""
    graphs = small_graphs()
    hub = torch.stack([torch.zeros(edges, dtype=torch.int64), torch.arange(edges)])
    graphs[1] = replace(graphs[1], edge_index=torch.cat([hub, hub.flip(0)], 1))
    return graphs


def told(job: SealedJob, graphs: list[PartyGraph], folder: Path) -> dict[str, int]:
    """The largest degree that holders state, as the server hears it; without those that state none."""
    run = train(saved(folder / "data", job, graphs), folder / "run", record_views=True)
    hellos = [each for each in load_view(RunDirectory.open(run.path), SERVER).messages if each.tag.kind is Kind.HELLO]
    said = [(each.sender, tensor_text(each.tensor())) for each in hellos]
    stated = [(party, json.loads(text)) for party, text in said if text.startswith("{")]
    return {party: content["neighbours"] for party, content in stated if "neighbours" in content}


def test_without_a_bound_each_holder_tells_its_largest_degree_rounded_up(tmp_path: Path) -> None:
    """To 2^k − 1, so that one edge more shows at powers of two alone; the job runs whatever it is."""
    own = max(int(torch.bincount(ends).max()) for ends in small_graphs()[0].edge_index)
    assert 4 <= own < 16
    for edges in (17, 29):
        found = told(small_job(), with_hub(edges), tmp_path / str(edges))
        assert found == {"A": 7 if own < 8 else 15, "B": 31}
    bounded, at_home = {"max_degree": 61}, {"blocks": ["own", "neighbours"]}
    for number, model in enumerate((bounded, at_home)):
        said = told(small_job(2, {"model": model}), with_hub(29), tmp_path / f"{number}")
        assert said == {}


def test_hubs_beyond_what_is_computed_over_end_the_job_with_their_number() -> None:
    job = small_job()
    assert max_degree_of(job, [0, 0]) == 4
    assert max_degree_of(job, [1 << 17, (1 << 17) - 1]) == LARGEST_DEGREE
    with refused(DataError, key="model.max_degree", value=None):
        max_degree_of(job, [1 << 17, 1 << 17])
    weighted = small_job(2, {"model": {"edge_weights": True, "max_degree": LARGEST_WEIGHTED + 1}})
    with refused(DataError, key="model.max_degree", value=LARGEST_WEIGHTED + 1):
        max_degree_of(weighted, [])


def test_a_hub_beyond_the_bound_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    graphs = with_hub(25)
    job = small_job(2, {"model": {"max_degree": 30}})
    with refused(DataError, key="model.max_degree", value=30, party="B"):
        train(saved(tmp_path / "data", job, graphs), tmp_path / "run")
