"""Tuning on one machine: trainings with all parties, of whom the label holder's validation nodes choose."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from veilgraph.core.errors import ConfigError, DataError, RunError, VeilgraphError
from veilgraph.core.files import locked, os_errors_as, private_folder, write_whole
from veilgraph.core.types import SERVER, PartyId
from veilgraph.graph.settings import DESCRIPTIONS
from veilgraph.protocol.figures import LAST, LOSS
from veilgraph.protocol.job import JobSettings, write_job
from veilgraph.protocol.plain_fitting import Inputs, PlainResult
from veilgraph.runtime.launch.inputs import GivenIds, GivenParties, gather_inputs, holders_with_ledger
from veilgraph.runtime.launch.jobs import Progress, RunOptions, TrainResult, align, resume, train
from veilgraph.runtime.store.lifetime import GivenLedgers
from veilgraph.runtime.store.records import EVIDENCE
from veilgraph.runtime.store.run_directory import Record, RunDirectory
from veilgraph.samples.shipped import with_overrides
from veilgraph_tuning.allowed import check_paid, check_space
from veilgraph_tuning.fingerprint import fingerprint
from veilgraph_tuning.space import Space
from veilgraph_tuning.spaces import space_of
from veilgraph_tuning.trials import Ending, Trial, TrialFile, described

BEST: Final = "best.yaml"
_ALIGNED: Final = "aligned"
_ALIGNING: Final = "aligning"
_RUN: Final = "run"

Stage = Callable[[str, int], AbstractContextManager[Progress]]
"""(what is trained, its epochs) → a block that shows its progress."""


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        path: its directory, with ``trials.jsonl`` and ``best.yaml``.
        figure: of the validation nodes, which was chosen by.
        trials: in the order in which they were made; the first is the job as it was given.
        space: they were chosen in.
        best: the job with the settings that reached most, to ``fit``, beside what holders brought where they did.
    """

    path: Path
    figure: str
    trials: list[Trial]
    space: Space
    best: JobSettings

    @property
    def rises(self) -> bool:
        """Whether more of the figure is better."""
        return self.best.measures.rises(self.figure)

    def ranked(self) -> list[Trial]:
        """The complete trials, best first."""
        return sorted((each for each in self.trials if each.ending == "complete"), key=lambda trial: -trial.value)


class _Behind(Exception):
    """A trial is given up."""


def tune(
    job: JobSettings,
    out: Path,
    *,
    trials: int = 20,
    seeds: int = 1,
    space: Space | None = None,
    parties: GivenParties | None = None,
    ids: GivenIds | None = None,
    ledgers: GivenLedgers | None = None,
    stage: Stage = lambda name, epochs: nullcontext(lambda records: None),
) -> Tuning:
    """Chooses settings of a job by what they reach on its validation nodes; test nodes are not looked at.

    The first trial is the job as it is. Of a job on tables these are aligned once, before it. Each trial is a
    training with all parties, as ``train`` would do it, whose directory is removed at its end. What was found is kept
    after every trial: called again with the same directory, it goes on with what is missing, to the same result.

    Args:
        job: to begin from.
        out: a directory, made here, or of a tuning of the same job that was cut off or is to have more trials.
        trials: in all, those of earlier sessions counted.
        seeds: that settings are judged by the mean of; the job's and those after it.
        space: what to vary; default: what the paradigm says is worth it.
        parties: what each holder brings, as for ``train``; a tuning goes on with the same alone.
        ids: as for ``train``.
        ledgers: as for ``train``: every trial that publishes with noise pays from them.
        stage: shows the progress of one training.

    Raises:
        ConfigError: the space has a key or value that the job cannot have, trials would publish what no ledger for life
            counts, or the job cannot take what holders bring.
        DataError: what holders bring breaks a rule.
        RunError: ``out`` is something else; or no trial was complete.
    """
    check_counts(trials, seeds)
    brought, own = None, _Own(parties, ids, ledgers)
    if parties is not None or job.data.dataset is None or own.are_said:
        found = gather_inputs(job, parties, ids, out / _RUN, ledgers)
        own = own.after(found)
        if parties is not None:
            brought, job = found, _naming(job, found.settings)
    chosen = dict(space_of(job) if space is None else space)
    check_space(job, chosen)
    check_paid(job, own.lasting)
    with at_work(out):
        about = {} if brought is None else {"data": fingerprint(brought)}
        tuned = search(_Trainings(job, out, chosen_by(job), seeds, stage, own), out, chosen, trials, about)
        shutil.rmtree(out / _ALIGNED, ignore_errors=True)
    return tuned


def check_counts(trials: int, seeds: int) -> None:
    """Refuse less than one trial or seed."""
    for name, count in (("trials", trials), ("seeds", seeds)):
        if count < 1:
            raise ConfigError(f"{name}={count} must be at least 1", key=name, value=count)


@contextmanager
def at_work(out: Path) -> Iterator[None]:
    """A block that has a directory to itself.

    Raises:
        RunError: it cannot be made, or another process works on it.
    """
    with os_errors_as(RunError, f"{out} cannot be made", "choose a writable directory"):
        private_folder(out)
    with locked(out, f"{out} is being worked on by another process; wait for it, or choose another directory"):
        yield


def search(trainings: Trainings, out: Path, space: Space, trials: int, about: Mapping[str, Any]) -> Tuning:
    """Make the trials that are missing, and write the best job.

    Args:
        trainings: that settings are tried by.
        out: directory of the tuning.
        space: to choose in.
        trials: in all.
        about: what a later session must find the same, beside the job, the space and the number of seeds.

    Raises:
        RunError: ``out`` is something else; or no trial was complete.
    """
    job = trainings.job
    common = {"job": job.model_dump(mode="json"), "space": described(space), "seeds": trainings.seeds}
    file = _opened(out, {**common, **about})
    while len(file.trials) < trials:
        file.add(tried(trainings, space, file.trials))
    best = file.best()
    if best is None:
        raise RunError(f"{out}: no trial was complete; the first failed: {file.trials[0].why}")
    settings = with_overrides(job, best.settings)
    write_whole(out / BEST, yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False).encode())
    return Tuning(out, chosen_by(job), file.trials, space, settings)


def _naming(job: JobSettings, brought: JobSettings) -> JobSettings:
    """The job with the names of those who bring their own data, and with no data beside theirs."""
    none = dict.fromkeys(f"data.{key}" for key in ("dataset", *DESCRIPTIONS))
    names = {"data.holders": list(brought.data.names), "data.label_holder": brought.data.label_party}
    return with_overrides(job, {**none, **names})


def _opened(out: Path, about: Mapping[str, Any]) -> TrialFile:
    file = TrialFile(out, about)
    strangers = [each.name for each in out.iterdir() if not each.name.startswith(".")]
    if not file.trials and (others := set(strangers) - {_ALIGNED, _ALIGNING, _RUN}):
        raise RunError(f"{out} has other files ({min(others)}); choose a new directory, or one of a tuning")
    return file


def chosen_by(job: JobSettings) -> str:
    """The figure that settings are chosen by: what the best epoch is chosen by; where none is, the first figure."""
    return job.measures.main.name if job.train.select_by == LAST else job.train.select_by


class Trainings(Protocol):
    """What settings are tried by.

    Attributes:
        job: to begin from.
        seeds: trainings of one trial.
    """

    job: JobSettings
    seeds: int

    def value(self, number: int, job: JobSettings, place: int, watch: Callable[[int, float], None]) -> float:
        """What a job reaches on the validation nodes, higher is better.

        Args:
            number: of the trial.
            job: with the trial's settings.
            place: of the seed, from 0.
            watch: to be told what every epoch reaches; it may end the trial.
        """


def tried(trainings: Trainings, space: Space, trials: Sequence[Trial]) -> Trial:
    """The next trial: the job as it is, then what Optuna proposes after those before.

    Args:
        trainings: that settings are tried by.
        space: to choose in.
        trials: before it.
    """
    from veilgraph_tuning.proposing import propose  # noqa: PLC0415 - half a second

    number = len(trials)
    proposal = propose(space, trials, trainings.job.seed, trainings.job.train.epochs) if number else None
    settings = {} if proposal is None else proposal.settings
    started, values, curve = time.perf_counter(), list[float](), dict[int, float]()
    ending: Ending = "complete"
    why = ""

    def watch(epoch: int, value: float) -> None:
        curve[epoch] = value
        if proposal is not None and proposal.falls_behind(epoch, value):
            raise _Behind

    try:
        job = with_overrides(trainings.job, settings)
        for place in range(trainings.seeds):
            values.append(trainings.value(number, job, place, watch if place == 0 else lambda epoch, value: None))
    except _Behind:
        ending = "pruned"
    except VeilgraphError as error:
        ending, why = "failed", str(error)
    return Trial(number, settings, ending, tuple(values), curve, time.perf_counter() - started, why)


@dataclass(frozen=True)
class _Own:
    """What holders have of their own: as for ``train``, which every trial is given.

    Attributes:
        parties: what they bring.
        ids: of rows.
        ledgers: for life, as the caller names them.
        lasting: holders that have one, named or not.
        aligns: whether they are tables.
    """

    parties: GivenParties | None
    ids: GivenIds | None
    ledgers: GivenLedgers | None
    lasting: Sequence[PartyId] = ()
    aligns: bool = False

    @property
    def are_said(self) -> bool:
        """Whether the caller names ids or ledgers."""
        return self.ids is not None or self.ledgers is not None

    def after(self, found: Inputs) -> _Own:
        """As it was read: ids may have been an iterator, which every trial needs again."""
        kept = {name: found.ledgers[name].ids for name in self.ids or () if name in found.ledgers}
        again = {**{name: each for name, each in kept.items() if each is not None}, **found.ids}
        ids = again if self.parties is not None and again else None
        return replace(
            self, ids=ids, lasting=holders_with_ledger(found, self.ledgers), aligns=found.settings.data.from_tables
        )


class _Trainings:
    def __init__(self, job: JobSettings, out: Path, figure: str, seeds: int, stage: Stage, own: _Own) -> None:
        self.job, self.seeds = job, seeds
        self._out, self._figure, self._stage, self._own = out, figure, stage, own

    def value(self, number: int, job: JobSettings, place: int, watch: Callable[[int, float], None]) -> float:
        """What a job reaches with one of the seeds, higher is better."""
        settings = with_overrides(job, {"seed": job.seed + place})
        check_paid(settings, self._own.lasting)
        name = f"trial {number}" + (f", seed {settings.seed}" if self.seeds > 1 else "")
        run = self._out / _RUN
        shutil.rmtree(run, ignore_errors=True)  # of a session that was cut off
        try:
            with self._stage(name, settings.train.epochs) as show:
                progress = watched(show, watch, self._figure, self.job)
                return of_result(self._trained(settings, run, progress), self._figure, self.job)
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def _trained(self, settings: JobSettings, run: Path, progress: Progress) -> TrainResult:
        own = self._own
        if not own.aligns:
            return train(
                settings,
                run,
                parties=own.parties,
                ids=own.ids,
                ledgers=own.ledgers,
                options=RunOptions(progress=progress),
            )
        aligned = self._out / _ALIGNED
        if not aligned.exists():
            shutil.rmtree(unfinished := self._out / _ALIGNING, ignore_errors=True)
            align(self.job, unfinished, parties=own.parties, ledgers=own.ledgers)
            unfinished.rename(aligned)
        settings = gather_inputs(settings, own.parties, None, run).settings  # tables in memory are in the run's copy
        shutil.copytree(aligned, run)
        write_job(settings, run / "job.yaml")
        directory = RunDirectory.open(run)
        for party in (*settings.data.names, SERVER):
            directory.party(party).save_seed(settings.seed)
            (directory.party(party).path / EVIDENCE).unlink(missing_ok=True)  # of the alignment: a trial is another job
        return resume(run, options=RunOptions(progress=progress))


def watched(show: Progress, watch: Callable[[int, float], None], figure: str, job: JobSettings) -> Progress:
    """Shows a training's progress, and tells of every epoch once what it reached."""
    seen = 0

    def progress(records: list[Record]) -> None:
        nonlocal seen
        show(records)
        for record in records[seen:]:
            if (found := _of_record(record, figure, job)) is not None:
                watch(record["epoch"], found)
        seen = len(records)

    return progress


def _of_record(record: Record, figure: str, job: JobSettings) -> float | None:
    """What an epoch reached on the validation nodes, higher is better; None where it was not evaluated."""
    found = record.get(f"val_{figure}")
    return None if found is None else float(found) if job.measures.rises(figure) else -found


def of_result(result: TrainResult | PlainResult, figure: str, job: JobSettings) -> float:
    """What the chosen epoch reached on the validation nodes, higher is better.

    Raises:
        DataError: nothing can be said of them.
    """
    chosen = (
        result.summary
        if figure != LOSS
        else next((record for record in result.metrics if record["epoch"] == result.summary["best_epoch"]), {})
    )
    found = _of_record(chosen, figure, job)
    if found is None or not math.isfinite(found):
        raise DataError(
            f"tune: the validation nodes have no {figure}, and settings are chosen by that; the label holder needs "
            "some in val_mask"
        )
    return found
