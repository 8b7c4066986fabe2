"""One party that has lost its part of a run, or says so, costs nobody else theirs; kills in between cost nothing."""

import os
import random
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests import nightly
from tests.errors import refused
from tests.faults.runs import table_job
from tests.paradigms.apart import apart
from tests.paradigms.cutting import CutError, cut_at, cut_run, wait_for
from tests.paradigms.horizontal import assert_same as assert_same_rows
from tests.paradigms.horizontal import job as horizontal_job
from tests.paradigms.local import saved as local_job
from tests.paradigms.runs import assert_same_run, saved_job
from tests.roles.federation import Settings
from veilgraph.core.errors import ConfigError, ProtocolError, RunError, VeilgraphError
from veilgraph.core.files import private_folder
from veilgraph.core.tensor_file import save_tensors
from veilgraph.core.types import SERVER, PartyId
from veilgraph.link.statement import RECORDS
from veilgraph.protocol import agreement
from veilgraph.protocol import agreement as resumption
from veilgraph.protocol.agreement import Point
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.job_file import parse_job
from veilgraph.runtime.launch import site
from veilgraph.runtime.launch.jobs import TrainResult, resume, train
from veilgraph.runtime.store.checkpoints import Checkpoints
from veilgraph.runtime.store.run_directory import RunDirectory

LIAR = "B"
CONCAT: Settings = {"model": {"combine": {"strategy": "concat"}}}
SHORT: Settings = {"train": {"epochs": 9, "checkpoint_every": 2}}
Files = dict[str, bytes]

OF_EVERY_SESSION = {"evidence.jsonl", "traffic.json", "disclosures.jsonl", "software.jsonl"}
"""What a refused session adds to: hellos were sent, and that is on record."""

LIES: dict[str, list[Any]] = {
    "nothing": [],
    "an epoch that nobody has": [(1, 40, "f" * 32)],
    "the right epochs of another session": [(1, 4, "f" * 32), (1, 6, "f" * 32)],
    "the highest numbers": [(2**32, 2**63 - 1, "0" * 128)],
    "a hundred epochs": [(7 * n % 5, 11 * n % 97, f"{n:032x}") for n in range(100)],
    "as releases before said it": [(0, 4, ""), (0, 6, "")],
}


def files(run: Path, but: PartyId = LIAR) -> Files:
    """All that a run holds besides what belongs to one party and what every session adds to."""
    found = (path for path in run.rglob("*") if path.is_file() and path.name not in OF_EVERY_SESSION)
    return {
        name: path.read_bytes()
        for path in found
        if not (name := str(path.relative_to(run))).startswith(f"parties/{but}/")
    }


@contextmanager
def lying(points: list[Any], party: PartyId = LIAR) -> Iterator[None]:
    """One party tells others that it would go on from these and begin again; all the others are honest."""
    honest, trained = Checkpoints.points, Checkpoints.has_trained

    def lie(self: Checkpoints, *, restarts: bool) -> list[Point]:
        return points if party in self.path(0).parts else honest(self, restarts=restarts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "points", lie)
        patch.setattr(Checkpoints, "has_trained", lambda self: party not in self.path(0).parts and trained(self))
        yield


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Path]:
    """A whole run, and the same one cut at epoch 7."""
    folder = tmp_path_factory.mktemp("vertical")
    settings = saved_job(folder / "data", SHORT, holders=3)
    return train(settings, folder / "whole"), cut_run(settings, folder / "cut", 7)


@pytest.fixture(scope="module")
def horizontal(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, Path]:
    folder = tmp_path_factory.mktemp("horizontal")
    settings = horizontal_job(3, {"train": {"epochs": 8}})
    return train(settings, folder / "whole"), cut_run(settings, folder / "cut", 7)


# One party's word


@pytest.mark.cases(1)
@pytest.mark.parametrize("complete", [False, True])
def test_one_partys_hello_erases_nobodys_training(
    tmp_path: Path, vertical: tuple[TrainResult, Path], complete: bool
) -> None:
    run = Path(shutil.copytree(vertical[0].path if complete else vertical[1], tmp_path / "run"))
    (run / "summary.json").unlink(missing_ok=True)
    before = files(run)
    older = RunDirectory.open(run).party("A").checkpoints.points(restarts=True)[0]._replace(epoch=4)
    for name, lie in (LIES | ({"the older one, though all have ended": [older]} if complete else {})).items():
        with lying(lie), pytest.raises(VeilgraphError, match=f"^{LIAR}") as refused:
            resume(run)
        if max((epoch for _, epoch, _ in lie), default=0) > 9:
            assert f"{LIAR} states checkpoints=" in str(refused.value)
        else:
            assert f"{LIAR}: without the checkpoints that " in str(refused.value)
            assert "veilgraph resume RUN --restart" in str(refused.value)
        assert files(run) == before, name
    if not complete:
        assert_same_run(vertical[0], resume(run))


@nightly
def test_a_horizontal_jobs_too(tmp_path: Path, horizontal: tuple[TrainResult, Path]) -> None:
    run = Path(shutil.copytree(horizontal[1], tmp_path / "run"))
    before = files(run)
    with lying([]), refused(RunError, code="restart", party="B"):
        resume(run)
    assert files(run) == before
    assert_same_rows(horizontal[0], resume(run))


def test_the_server_is_believed_as_little(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    before = files(run, SERVER)
    with lying([], SERVER), refused(RunError, code="restart", party="server"):
        resume(run)
    assert files(run, SERVER) == before


def test_a_thousand_epochs_are_no_hello(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    before = files(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            agreement.Hello,
            "model_dump_json",
            lambda self: self.__pydantic_serializer__.to_json(
                self.model_copy(update={"checkpoints": [(1, n, "a") for n in range(1000)]})
            ).decode(),
        )
        with refused((ProtocolError, RunError), code="not-understood", key="checkpoints"):
            resume(run)
    assert files(run) == before


@pytest.mark.cases(1)
@pytest.mark.parametrize("party", [LIAR, SERVER])
def test_nobody_goes_back_behind_a_checkpoint_that_all_have(
    tmp_path: Path, vertical: tuple[TrainResult, Path], party: PartyId
) -> None:
    """A party that has lost its newest checkpoint, or says so, would see every step since the older one again."""
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    before = files(run, party)
    (older, newest) = RunDirectory.open(run).party("A").checkpoints.points(restarts=True)
    assert (older.epoch, newest.epoch) == (4, 6)
    assert RunDirectory.open(run).party("A").checkpoints.points(restarts=False) == [newest]
    with lying([older], party), refused(RunError, code="restart", party=party):
        resume(run)
    assert files(run, party) == before
    with lying([older], party):
        resumed = resume(run, restart=True)
    assert resumed.summary["started_at"] == 4
    assert_same_run(vertical[0], resumed)


def test_a_horizontal_jobs_newest_checkpoint_is_not_left_behind_either(
    tmp_path: Path, horizontal: tuple[TrainResult, Path]
) -> None:
    run = Path(shutil.copytree(horizontal[1], tmp_path / "run"))
    older = RunDirectory.open(run).party("A").checkpoints.points(restarts=True)[0]
    with lying([older]), refused(RunError, code="restart", party=LIAR):
        resume(run)


def test_a_kill_between_two_parties_saves_needs_no_leave(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    """Nobody can know that A has the newest checkpoint before it takes part in the next step."""
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    with pytest.raises(CutError), cut_before_a_save(8):
        resume(run)
    resumed = resume(run)
    assert resumed.summary["started_at"] == 6
    assert_same_run(vertical[0], resumed)


def test_the_attack_succeeds_where_nobodys_leave_is_asked(
    tmp_path: Path, vertical: tuple[TrainResult, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positive control."""
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    monkeypatch.setattr(resumption, "check_restart_allowed", lambda restarts, without, what: None)
    with lying([]):
        assert resume(run).summary["started_at"] == 0


# Tables, and single releases


def test_a_lost_alignment_erases_nobodys_training(tmp_path: Path) -> None:
    """To align anew puts the rows into another order: nothing that was trained fits them."""
    run = train(table_job(tmp_path / "data"), tmp_path / "run").path
    (run / "summary.json").unlink()
    before = files(run)
    (run / "parties" / LIAR / "alignment.json").rename(tmp_path / "alignment.json")
    with lying([]), refused(RunError, code="restart", party="B"):
        resume(run)
    assert files(run) == before
    graph, model = (before[f"parties/A/{name}.safetensors"] for name in ("graph", "model"))
    with lying([]), pytest.raises(CutError), cut_before_a_save(4):
        resume(run, restart=True)
    kept = run / "parties" / "A" / "checkpoints" / "replaced" / "before"
    assert (kept / "graph.safetensors").read_bytes() == graph, "kept until there is something newer"
    assert (kept / "model.safetensors").read_bytes() == model
    assert resume(run).summary["started_at"] == 2
    assert not kept.exists()


def test_a_lost_release_erases_no_model_and_costs_nothing(tmp_path: Path) -> None:
    settings = local_job(tmp_path / "data", {"train": {"epochs": 5, "checkpoint_every": 2}})
    run = train(settings, tmp_path / "run").path
    (run / "summary.json").unlink()
    before = files(run)
    (run / "parties" / LIAR / "release.safetensors").unlink()
    ledger = (run / "parties" / LIAR / "ledger.jsonl").read_bytes()
    with refused(RunError, code="restart", party="B"):
        resume(run)
    assert files(run) == before
    assert (run / "parties" / LIAR / "ledger.jsonl").read_bytes() == ledger
    assert resume(run, restart=True).summary["started_at"] == 0
    assert (run / "parties" / LIAR / "ledger.jsonl").read_bytes() == ledger, "the same bytes are sent again"


# Leave


@nightly
def test_each_holder_gives_leave_by_itself_and_the_server_its_own(tmp_path: Path) -> None:
    """Across organisations. What was submitted, ``resume`` included, is nobody's leave."""
    settings = table_job(tmp_path / "data")
    parties = dict(settings.data.parties or {})
    submitted = across(settings)
    runs = apart(tmp_path, parties, submitted)
    for path in sorted(runs[LIAR].rglob("*"), reverse=True):  # but for what the others have countersigned
        if path.is_file() and path.name not in {*RECORDS, "job.yaml"}:
            path.unlink()
    before = {party: files(run) for party, run in runs.items() if party != LIAR}

    def is_refused(names: str, *, server: bool = False) -> None:
        with pytest.raises(RunError, match=rf"^{LIAR}: without the tables .* replace what {names} trained"):
            apart(tmp_path, parties, submitted, resume=True, server=server)
        assert {party: files(run) for party, run in runs.items() if party != LIAR} == before

    is_refused("A, server")
    is_refused("A", server=True)
    with pytest.raises(ConfigError, match="submit with --resume"):
        apart(tmp_path, parties, submitted, server=True)
    content = yaml.safe_load(parties["A"].read_text(encoding="utf-8"))
    parties["A"].write_text(yaml.safe_dump(content | {"limits": {"restart": True}}), encoding="utf-8")
    is_refused("server")
    apart(tmp_path, parties, submitted, resume=True, server=True)
    assert all((run / "parties" / party / "model.safetensors").is_file() for party, run in runs.items())


def test_a_session_waits_for_its_sites_process_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is inside a long computation, and has not yet heard that another party was lost."""
    settings = table_job(tmp_path / "data")
    parties = dict(settings.data.parties or {})
    runs = apart(tmp_path, parties, across(settings))
    held = ExitStack()
    held.enter_context(RunDirectory.open(runs[LIAR]).lock())
    monkeypatch.setattr(site, "LAST_JOB_S", 0.2)
    with pytest.raises(RunError) as refused:
        apart(tmp_path, parties, across(settings), resume=True)
    assert "is in use by another process" in str(refused.value)
    monkeypatch.setattr(site, "LAST_JOB_S", 60.0)
    ending = threading.Timer(1.0, held.close)
    ending.start()
    apart(tmp_path, parties, across(settings), resume=True)
    ending.join()


def across(settings: JobSettings) -> JobSettings:
    return parse_job(
        settings.model_dump(mode="json")
        | {"name": "across", "data": {"holders": list(settings.data.names), "label_holder": "A"}}
    )


# Kills


@contextmanager
def cut_before_a_save(epoch: int) -> Iterator[None]:
    """A is cut off just before it saves the checkpoint of an epoch."""
    saved = Checkpoints.save

    def save(self: Checkpoints, at: int, *rest: Any) -> None:
        if at == epoch and "A" in self.path(0).parts:
            raise CutError
        saved(self, at, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        yield


@contextmanager
def cut_before_a_change(victim: Path, number: int) -> Iterator[None]:
    """A party is cut off just before it changes something in its part of the run for the n-th time, from 1."""
    changes = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Path, *arguments: Any, **options: Any) -> Any:
            nonlocal changes
            if victim in path.parents:
                changes += 1
                if changes >= number:
                    raise CutError
            return change(path, *arguments, **options)

        return act

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((Path, "replace"), (Path, "unlink"), (shutil, "rmtree")):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield


class Party:
    """What a party does with its files in a session, without what it computes: a checkpoint says who saved it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, folder / "model.safetensors"
        private_folder(folder / "checkpoints")
        self.forget()

    def forget(self) -> None:
        """The session has ended, however it did."""
        self.files = Checkpoints(self.folder / "checkpoints", self.model)

    def points(self, *, restarts: bool = True) -> set[Point]:
        return set(Checkpoints(self.folder / "checkpoints", self.model).points(restarts=restarts))

    def save(self, epoch: int) -> None:
        self.files.save(epoch, {"weights": torch.ones(1)}, {"judgement": {}, "stopped": False})

    def end(self) -> None:
        save_tensors(self.model, {"weights": torch.ones(1)}, {})
        self.files.settle()


EVERY, LAST = 2, 6


def session(parties: Mapping[PartyId, Party], *, restarts: bool) -> int:
    """A training session of all parties in lockstep: each does its part of a stage when all have ended the one before.

    Returns:
        From which epoch it went on.
    """
    points = {name: party.files.points(restarts=restarts) for name, party in parties.items()}
    willing = {name: restarts or not party.files.has_trained() for name, party in parties.items()}
    start = resumption.start_of("A", points, willing, [uuid.uuid4().hex])
    for party in parties.values():
        party.files.begin(start)
    for epoch in range(start.epoch + EVERY, LAST + 1, EVERY):
        for party in parties.values():
            party.save(epoch)
    for party in parties.values():
        party.end()
    return start.epoch


def begun(folder: Path, *, whole: bool) -> dict[PartyId, Party]:
    """Four parties with a whole training, or one whose last session was cut off before its end."""
    parties = {name: Party(folder / name) for name in ("A", "B", "C", SERVER)}
    session(parties, restarts=False)
    for party in parties.values():
        if not whole:
            party.model.unlink()
        party.forget()
    return parties


@pytest.fixture
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are killed here, not machines."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.mark.cases(1)
@pytest.mark.usefixtures("quick_disk")
@pytest.mark.parametrize("victim", ["A", "C"])
@pytest.mark.parametrize(
    ("loses", "whole"), [(True, True), (True, False), (False, False)], ids=["of a model", "all", "the newest"]
)
def test_a_kill_before_any_change_loses_nothing(tmp_path: Path, victim: PartyId, loses: bool, whole: bool) -> None:
    """C has lost its checkpoints, or the newest; the others go back, and one is killed before each change it makes.

    Until every party has a newer checkpoint, every other has what it had, and its model.
    """
    for number in range(1, 100):
        parties = begun(tmp_path / f"{number}", whole=whole)
        lost = parties["C"].folder / "checkpoints"
        if loses:
            shutil.rmtree(lost)
            private_folder(lost)
            parties["C"].model.unlink(missing_ok=True)
        else:
            (lost / f"epoch-{LAST:06d}.safetensors").unlink()
        old = {name: max(party.points()) for name, party in parties.items() if name != "C"}
        try:
            with cut_before_a_change(parties[victim].folder, number):
                session(parties, restarts=loses)
        except CutError:
            for party in parties.values():
                party.forget()
            common = set.intersection(*(party.points() for party in parties.values()))
            if not any(point.number > 1 and point.epoch for point in common):
                for name, point in old.items():
                    assert point in parties[name].points(), (number, name)
                    found = list(parties[name].folder.rglob("model.safetensors"))
                    assert bool(found) == whole, (number, name)
            session(parties, restarts=loses)
            assert_settled(parties)
            continue
        assert_settled(parties)
        assert number > 3, "changes were made, and one was cut off before each"
        return
    raise AssertionError("the changes have no end")


def assert_settled(parties: Mapping[PartyId, Party]) -> None:
    for party in parties.values():
        assert party.files.epochs() == [LAST - EVERY, LAST]
        assert party.files.is_settled()
        names = {path.name for path in party.folder.rglob("[!.]*") if path.is_file()}
        assert names == {
            "common.json",
            "model.safetensors",
            f"epoch-{LAST - EVERY:06d}.safetensors",
            f"epoch-{LAST:06d}.safetensors",
        }


@pytest.mark.usefixtures("quick_disk")
@nightly
def test_kill_upon_kill_without_leave(tmp_path: Path) -> None:
    """Random kills, one after another, of parties none of which loses anything: no leave is ever needed."""
    source = random.Random(1)
    for round_ in range(8):
        parties = begun(tmp_path / f"{round_}", whole=False)
        reached = [LAST - EVERY]
        for _ in range(6):
            victim = source.choice(list(parties))
            with suppress(CutError), cut_before_a_change(parties[victim].folder, source.randint(1, 9)):
                reached.append(session(parties, restarts=False))
            for party in parties.values():
                party.forget()
        assert session(parties, restarts=False) >= max(reached) - EVERY
        assert_settled(parties)


def test_a_training_killed_in_the_middle_of_going_back(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    """As above with a whole job: what is gone on from afterwards gives the undisturbed result."""
    for number in (2, 5) if "VEILGRAPH_NIGHTLY" in os.environ else (5,):
        run = Path(shutil.copytree(vertical[1], tmp_path / f"run {number}"))
        shutil.rmtree(run / "parties" / "C" / "checkpoints")
        with pytest.raises(CutError), cut_before_a_change(run / "parties" / "A" / "checkpoints", number):
            resume(run, restart=True)
        assert_same_run(vertical[0], resume(run, restart=True))
        assert not (run / "metrics.replaced.jsonl").exists()


def test_leave_is_given_once_for_a_beginning(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    """Once all have begun again, a session that is cut off is gone on with, without further leave."""
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    shutil.rmtree(run / "parties" / "C" / "checkpoints")
    metrics = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(CutError), cut_before_a_save(2):
        resume(run, restart=True)
    assert (run / "metrics.replaced.jsonl").read_bytes() == metrics
    assert RunDirectory.open(run).party("A").epochs() == [4, 6], "there is nothing newer yet"
    with pytest.raises(CutError), cut_before_a_save(4):
        resume(run)
    assert RunDirectory.open(run).party("A").epochs() == [2]
    resumed = resume(run)
    assert resumed.summary["started_at"] == 2
    assert_same_run(vertical[0], resumed)


def test_what_was_set_aside_is_gone_on_from_when_the_lost_part_is_restored(
    tmp_path: Path, vertical: tuple[TrainResult, Path]
) -> None:
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    lost = run / "parties" / "C" / "checkpoints"
    shutil.copytree(lost, tmp_path / "backup")
    shutil.rmtree(lost)
    with pytest.raises(CutError), cut_at(3):
        resume(run, restart=True)
    assert RunDirectory.open(run).party("A").epochs() == [2]
    shutil.rmtree(lost)
    shutil.copytree(tmp_path / "backup", lost)
    resumed = resume(run, restart=True)
    assert resumed.summary["started_at"] == 6
    assert_same_run(vertical[0], resumed)


def test_leave_has_a_command(tmp_path: Path, vertical: tuple[TrainResult, Path]) -> None:
    from tests.cli.commands import usage_error, veilgraph  # noqa: PLC0415

    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    shutil.rmtree(run / "parties" / "C" / "checkpoints")
    result = veilgraph("resume", run)
    assert result.exit_code == 1
    assert "veilgraph resume RUN --restart" in result.stderr
    result = veilgraph("resume", run, "--restart")
    assert result.exit_code == 0, result.output
    assert "--restart" in usage_error(veilgraph("train", "job.yaml", "--restart"))


def test_a_refusal_is_the_same_at_every_party(vertical: tuple[TrainResult, Path], tmp_path: Path) -> None:
    """Who has trained nothing itself repeats the word of one who has."""
    run = Path(shutil.copytree(vertical[1], tmp_path / "run"))
    shutil.rmtree(run / "parties" / "C" / "checkpoints")
    said: dict[PartyId, str] = {}
    together = threading.Barrier(4)  # who fails first ends the others' work
    original = resumption.start_of

    def noted(party: PartyId, *rest: Any) -> resumption.Start:
        try:
            return original(party, *rest)
        except VeilgraphError as error:
            said[party] = str(error)
            together.wait(60)
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "start_of", noted)
        with pytest.raises(RunError):
            resume(run)
    assert said.keys() == {"A", "B", "C", SERVER}
    assert all(text.startswith("C: without the checkpoints that ") for text in said.values())
    assert all("replace what A, B, server trained" in text for text in said.values())


def test_who_only_sends_and_has_its_model_goes_back_with_one_that_was_killed_before_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    """B ends without hearing of A again: a whole model does not show that A has the last checkpoint."""
    steps: Settings = {"train": {"epochs": 2, "checkpoint_every": 1, "select_by": "last"}}
    settings = saved_job(tmp_path / "data", steps, CONCAT, {"model": {"initial": {"method": "individual"}}})
    model = tmp_path / "run" / "parties" / "B" / "model.safetensors"
    saved = Checkpoints.save

    def save(self: Checkpoints, epoch: int, *rest: Any) -> None:
        if epoch == 2 and "A" in self.path(0).parts:
            wait_for(model.is_file, 20, "B to end")
            raise CutError
        saved(self, epoch, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(CutError):
            train(settings, tmp_path / "run")
    assert resume(tmp_path / "run").summary["started_at"] == 1
