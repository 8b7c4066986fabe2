"""Averaging: a sum that is made again over other survivors would be one holder's exact values."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from veilgraph_averaging import training
from veilgraph_averaging.aggregation.survivors import SurvivorRecord
from veilgraph_averaging.settings import AveragingJob

from tests import nightly
from tests.attacks.sums import Seen, watching
from tests.errors import refused
from tests.paradigms.averaging.jobs import NAMES, Dropped, dropping_out, job, sums_of
from tests.paradigms.cutting import CutError, checkpoint, cut_at, cut_run, wait_for
from tests.roles.federation import Settings
from veilgraph.core.errors import ProtocolError, RunError
from veilgraph.core.tensor_file import load_tensors, save_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.runtime.launch.jobs import predict, resume, train
from veilgraph.runtime.launch.site import repeat_mark
from veilgraph.runtime.store.checkpoints import Checkpoints

LATE = "D"
EVERY = 2
PATIENT: Settings = {
    "timeout_s": 600,
    "averaging": {"patience_s": 100},
    "model": {"dropout": 0.0},
    "train": {"epochs": 4, "checkpoint_every": EVERY, "select_by": "last"},
}
SETTINGS, LONGER = job(PATIENT), job(PATIENT, {"train": {"epochs": 5}})
FIRST = sums_of(1)
"""Numbers of the sums of weights and of scores of the first epoch that a session makes."""


def late(*sums: int, holder: PartyId = LATE) -> Dropped:
    return {holder: dict.fromkeys(sums, 1)}


def cut(folder: Path, dropped: Dropped | None = None, epoch: int = 3, settings: AveragingJob = SETTINGS) -> Path:
    """A run that was cut off after an epoch, with checkpoints every other one."""
    with dropping_out(late(*sums_of(3)) if dropped is None else dropped):
        return cut_run(settings, folder / "run", epoch)


@dataclass(frozen=True)
class Cut:
    """A run that was cut off, and what its server saw until then."""

    path: Path
    seen: Seen

    def copied(self, folder: Path) -> tuple[Path, Seen]:
        return Path(shutil.copytree(self.path, folder / "run")), Seen([*self.seen.sums], [*self.seen.values])


@pytest.fixture(scope="module")
def without_d(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Cut off after round 3, which was made without D."""
    with watching() as seen:
        return Cut(cut(tmp_path_factory.mktemp("without_d")), seen)


@pytest.fixture(scope="module")
def with_all(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Cut off after round 3, with everybody in every round."""
    with watching() as seen:
        return Cut(cut(tmp_path_factory.mktemp("with_all"), {}), seen)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Cut off after round 6; D ended after its checkpoint of round 2."""
    with watching() as seen:
        return Cut(without_the_late_one(tmp_path_factory.mktemp("ended")), seen)


@pytest.fixture(scope="module")
def went_back(tmp_path_factory: pytest.TempPathFactory) -> Cut:
    """Rounds 3 and 4 were opened without D, and everybody goes on after round 2."""
    with watching() as seen:
        run = cut(tmp_path_factory.mktemp("went_back"), late(*sums_of(3), *sums_of(4)), 4, LONGER)
    for party in (*NAMES, SERVER):
        checkpoint(run, party, 4).unlink(missing_ok=True)
        (run / "parties" / party / "checkpoints" / "common.json").unlink(missing_ok=True)
    return Cut(run, seen)


def record(run: Path, party: PartyId) -> Path:
    return run / "parties" / party / "survivors.safetensors"


def test_without_the_record_the_difference_is_the_late_holders_update(tmp_path: Path) -> None:
    """The positive control."""
    with pytest.MonkeyPatch.context() as patch, watching() as seen:
        patch.setattr(AveragingJob, "records_survivors", False)
        resume(cut(tmp_path))
    assert seen.exposed() == {LATE}


def test_a_holder_that_was_late_is_left_out_again(without_d: Cut, tmp_path: Path) -> None:
    run, seen = without_d.copied(tmp_path)
    with watching(seen):
        assert resume(run).summary["started_at"] == EVERY
    assert seen.exposed() == set()
    rounds = [one for one in seen.sums if one.total.shape == seen.sums[0].total.shape]
    assert torch.equal(rounds[2].total, rounds[3].total), "round 3, made twice"
    assert rounds[2].counted == rounds[3].counted == ("A", "B", "C")
    assert rounds[4].counted == tuple(NAMES), "a round that was never opened has everybody"


@pytest.mark.cases(1)
@pytest.mark.parametrize("holder", NAMES)
def test_a_sum_without_one_of_its_survivors_is_refused_and_may_be_made_later(
    with_all: Cut, tmp_path: Path, holder: PartyId
) -> None:
    run, seen = with_all.copied(tmp_path)
    with watching(seen):
        for number in FIRST:
            with dropping_out(late(number, holder=holder)), refused(ProtocolError, code="other-survivors"):
                resume(run)
        resume(run)
    assert seen.exposed() == set()


@contextmanager
def forgetful() -> Iterator[None]:
    """A server that passes over what holders tell it of earlier sums."""
    merge = SurvivorRecord.merge

    def passed_over(self: SurvivorRecord, rows: Tensor, sender: PartyId) -> None:
        if self.party != SERVER:
            merge(self, rows, sender)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SurvivorRecord, "merge", passed_over)
        yield


@pytest.mark.cases(1)
@pytest.mark.parametrize("restored", [(), (LATE,), ("A",)], ids=str)
def test_a_server_that_forgets_is_refused_by_the_holders(
    without_d: Cut, tmp_path: Path, restored: tuple[PartyId, ...]
) -> None:
    """Also where a holder's part is an older copy: with t = 3 of 4 one of those three is always another."""
    run, seen = without_d.copied(tmp_path)
    with watching(seen):
        for party in restored:
            record(run, party).unlink()
        opened = len(seen.sums)
        with forgetful(), refused(ProtocolError, code="other-survivors"):
            resume(run)
        assert len(seen.sums) == opened
        assert resume(run).summary["started_at"] == EVERY
    assert seen.exposed() == set()


def test_a_server_that_forgets_gets_nobody_in_turn(with_all: Cut, tmp_path: Path) -> None:
    run, seen = with_all.copied(tmp_path)
    with watching(seen):
        for holder in NAMES:
            dropped = late(FIRST[0], holder=holder)
            with forgetful(), dropping_out(dropped), refused(ProtocolError, code="other-survivors"):
                resume(run)
    assert seen.exposed() == set()
    assert {one.counted for one in seen.sums} == {tuple(NAMES)}


def test_a_last_evaluation_is_over_the_survivors_of_the_same_models_before(tmp_path: Path) -> None:
    """Within one session: the best model is judged once more at its end."""
    settings = job(PATIENT, {"train": {"epochs": 2}})
    last = 2 * settings.train.epochs + 1
    with watching() as seen, dropping_out(late(last - 1)):
        train(settings, tmp_path / "one")
    assert seen.sums[-1].counted == seen.sums[-2].counted == ("A", "B", "C")
    assert torch.equal(seen.sums[-1].total, seen.sums[-2].total)
    with dropping_out(late(last)), refused(ProtocolError, code="other-survivors"):
        train(settings, tmp_path / "other")
    with watching() as seen:
        resume(tmp_path / "other")
    assert seen.exposed() == set()


@pytest.mark.cases(1)
@pytest.mark.parametrize("missing", [True, False])
def test_a_round_without_a_holder_does_not_show_that_it_has_the_last_checkpoint(tmp_path: Path, missing: bool) -> None:
    """The late one is killed before it saves, and the others end: nothing is lost that needs leave."""
    run, settings, saved = tmp_path / "run", job(PATIENT, {"train": {"epochs": 3}}), Checkpoints.save

    def save(self: Checkpoints, epoch: int, *rest: Any) -> None:
        if LATE in self.path(epoch).parts and missing:
            wait_for((run / "parties" / SERVER / "model.safetensors").is_file, 60, "the server to end")
            raise CutError
        saved(self, epoch, *rest)

    with pytest.MonkeyPatch.context() as patch, dropping_out(late(*sums_of(3), 7) if missing else {}):
        patch.setattr(Checkpoints, "save", save)
        if missing:
            with pytest.raises(CutError):
                train(settings, run)
        else:  # the control: a round with everybody does show it
            cut_run(settings, run, 3)
    known = json.loads((run / "parties" / "A" / "checkpoints" / "common.json").read_bytes())
    assert known[1] == (0 if missing else EVERY)
    assert resume(run).summary["started_at"] == known[1]


ENDED: Settings = {"train": {"epochs": 7, "checkpoint_every": 1, "select_by": "accuracy", "patience": 6}}
"""The late one's process ends in round 3 and the others go on to round 6."""


def without_the_late_one(folder: Path, *changes: Settings, last: int = 2) -> Path:
    """A run whose late holder has no checkpoint after ``last`` and is in no sum after it."""
    saved = Checkpoints.save

    def save(self: Checkpoints, epoch: int, *rest: Any) -> None:
        if LATE not in self.path(epoch).parts or epoch <= last:
            saved(self, epoch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        sums = (number for epoch in range(last + 1, 8) for number in sums_of(epoch))
        return cut(folder, late(*sums), epoch=6, settings=job(PATIENT, ENDED, *changes))


@pytest.mark.parametrize("last", [2, pytest.param(0, marks=nightly)])
def test_a_holder_that_ended_takes_the_others_checkpoint_and_takes_nobody_back(
    ended: Cut, tmp_path: Path, last: int
) -> None:
    """Also where it ended before its first one. Of the rounds since then it is in none, as before."""
    if last == 2:
        run, seen = ended.copied(tmp_path)
    else:
        with watching() as seen:
            run = without_the_late_one(tmp_path, last=last)
    made = len(seen.sums)
    with watching(seen):
        found = resume(run)
    assert found.summary["started_at"] == 5
    assert seen.exposed() == set()
    assert [one.counted for one in seen.sums[made:]] == [("A", "B", "C")] * 2 + [tuple(NAMES)] * 2 + [
        seen.sums[-1].counted
    ], "round 6 made again, round 7, and the best model once more"
    whole = job(PATIENT, ENDED)
    with dropping_out(late(*(number for epoch in range(last + 1, 7) for number in sums_of(epoch)))):
        uncut = train(whole, tmp_path / "uncut")
    assert found.metrics[-1] == {**uncut.metrics[-1], "step_seconds": found.metrics[-1]["step_seconds"]}
    ends = [load_tensors(path / "parties" / LATE / "model.safetensors")[0] for path in (found.path, uncut.path)]
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_holder_that_ended_takes_the_final_checkpoint_of_a_run_that_others_completed(tmp_path: Path) -> None:
    saved, finished = Checkpoints.save, Checkpoints.finish

    def save(self: Checkpoints, epoch: int, *rest: Any) -> None:
        if LATE not in self.path(epoch).parts or epoch <= 2:
            saved(self, epoch, *rest)

    def finish(self: Checkpoints, epoch: int, *rest: Any) -> None:
        if LATE in self.path(epoch).parts:
            raise CutError
        finished(self, epoch, *rest)

    gone = late(*(number for epoch in range(3, 8) for number in sums_of(epoch)))
    with pytest.MonkeyPatch.context() as patch, dropping_out(gone):
        patch.setattr(Checkpoints, "save", save)
        patch.setattr(Checkpoints, "finish", finish)
        with pytest.raises(CutError):
            train(job(PATIENT, ENDED), tmp_path / "run")
    found = resume(tmp_path / "run")
    assert found.summary["started_at"] == 7
    parts = [load_tensors(found.path / "parties" / each / "model.safetensors")[0] for each in ("B", LATE)]
    assert parts[0].keys() == parts[1].keys()
    assert all(torch.equal(tensor, parts[1][name]) for name, tensor in parts[0].items())


@pytest.mark.cases(1)
@pytest.mark.parametrize("epoch", [10**6, -1, float("nan")])
def test_a_checkpoint_with_a_judgement_of_no_epoch_is_refused(
    ended: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: float
) -> None:
    (run, _), load = ended.copied(tmp_path), Checkpoints.load

    def forged(self: Checkpoints, *point: Any) -> tuple[Path, dict[str, torch.Tensor], dict[str, Any]]:
        path, tensors, facts = load(self, *point)
        return path, tensors, {**facts, "judgement": {**facts["judgement"], "best_epoch": epoch}}

    monkeypatch.setattr(Checkpoints, "load", forged)
    with refused(ProtocolError, code="checkpoint", party="A"):
        resume(run)
    assert not checkpoint(run, LATE, 5).exists()


def test_a_holder_that_took_a_checkpoint_has_it(ended: Cut, tmp_path: Path) -> None:
    """Cut off before the first checkpoint of its own, it goes on from the one that it was given."""
    run, _ = ended.copied(tmp_path)
    with cut_at(6), pytest.raises(CutError):
        resume(run)
    assert checkpoint(run, LATE, 5).is_file()
    assert resume(run).summary["started_at"] == 5


@pytest.mark.cases(1)
@pytest.mark.parametrize("party", [LATE, SERVER, "B and C"])
def test_a_checkpoint_is_given_by_enough_holders_and_the_server_to_one_that_kept_its_part(
    ended: Cut, tmp_path: Path, party: str
) -> None:
    """A part that is gone may lack the record of survivors; and two of four do not say where all go on."""
    run, _ = ended.copied(tmp_path)
    for each in party.split(" and "):
        shutil.rmtree(run / "parties" / each / "checkpoints")
    with refused(RunError, code="restart"):
        resume(run)


def test_a_holder_with_parts_of_its_own_goes_on_from_its_own_checkpoint_alone(tmp_path: Path) -> None:
    run = without_the_late_one(tmp_path, {"averaging": {"personal": ["input"]}})
    with refused(RunError, code="restart", party=LATE):
        resume(run)


def test_a_prediction_sums_nothing(tmp_path: Path) -> None:
    run = train(job(PATIENT, {"train": {"epochs": 1}}), tmp_path / "run").path
    with watching() as seen:
        predict(run)
    assert not seen.sums


def moved(patch: pytest.MonkeyPatch) -> None:
    """The holders' machines round otherwise."""
    computed = training.summand
    patch.setattr("veilgraph_averaging.training.summand", lambda *rest: computed(*rest) * (1 + 1e-9))


def test_another_machine_repeats_no_round_over_others_and_none_with_other_weights(
    went_back: Cut, tmp_path: Path
) -> None:
    """Nearly the same weights give nearly the same values, which over others would be nearly the late holder's."""
    run, seen = went_back.copied(tmp_path)
    with watching(seen), pytest.MonkeyPatch.context() as patch:
        moved(patch)
        with refused(ProtocolError, code="other-weights", value=4):
            resume(run)
        resume(run, restart=True)
    rounds = [one for one in seen.sums if one.total.shape == seen.sums[0].total.shape]
    assert [one.counted for one in rounds[2:]] == [("A", "B", "C")] * 5 + [tuple(NAMES)]


def test_a_forged_state_of_the_server_gets_no_further_round(went_back: Cut, tmp_path: Path) -> None:
    """The first round goes on from the holders' own weights, and the next is refused."""
    run, _ = went_back.copied(tmp_path)
    path = checkpoint(run, SERVER, 2)
    tensors, facts = load_tensors(path)
    save_tensors(path, {name: 2 * tensor for name, tensor in tensors.items()}, facts)
    with watching() as seen, refused(ProtocolError, code="other-weights", value=4):
        resume(run)
    assert [one.counted for one in seen.sums] == [("A", "B", "C")] * 2, "weights and scores of round 3"


@pytest.mark.cases(1)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_beside_the_record_neither_shows_nor_stops_anything(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before a holder's record has round 3, or just after, when no share has left."""
    add, kills = SurvivorRecord.add, [True]

    def killed(self: SurvivorRecord, sum_id: Any, survivors: Any) -> None:
        here = self.party == "A" and sum_id[:2] == ("weights", 3) and bool(kills)
        if here and after:
            add(self, sum_id, survivors)
        if here:
            kills.clear()
            raise CutError
        add(self, sum_id, survivors)

    monkeypatch.setattr(SurvivorRecord, "add", killed)
    with watching() as seen:
        with dropping_out(late(*sums_of(3))), pytest.raises((CutError, ProtocolError)):  # or too few are left
            train(SETTINGS, tmp_path / "run")
        resume(tmp_path / "run")
    assert not kills
    assert seen.exposed() == set()


def test_a_job_whose_sums_may_lack_somebody_draws_anew_when_it_is_repeated() -> None:
    """A second job of the same seed over the same tables would make the same sums, over other survivors."""
    everybody = job({"averaging": {"threshold": len(NAMES)}})
    assert repeat_mark(bytes(32), SETTINGS, None) == ""
    assert repeat_mark(bytes(32), everybody, None)


def test_a_record_is_kept_where_somebody_may_be_missing_alone(tmp_path: Path) -> None:
    with cut_at(1), pytest.raises(CutError):
        train(job({"averaging": {"threshold": len(NAMES)}}), tmp_path / "run")
    assert not record(tmp_path / "run", "A").exists()
