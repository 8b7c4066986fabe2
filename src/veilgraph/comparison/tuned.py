"""The label holder alone with settings of its own: chosen at home, by its validation nodes, from the job's space."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from veilgraph.core.errors import RunError
from veilgraph.core.files import private_folder
from veilgraph.protocol.inputs import Inputs
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import PlainResult, Progress
from veilgraph.samples.shipped import with_overrides
from veilgraph.tuning.trials import TrialFile, described
from veilgraph.tuning.tune import chosen_by, of_result, tried, watched

Stage = Callable[[str, int], AbstractContextManager[Progress]]


class TunedAlone:
    """A job's network on the label holder's columns and links, tuned as a job is; once, with the first seed.

    Args:
        folder: of its trials, made here; one with trials of the same goes on.
        trials: in all, the job's own settings first.
        stage: shows the progress of one training.
    """

    def __init__(self, folder: Path, trials: int, stage: Stage) -> None:
        self.trials = trials
        self._folder, self._stage = folder, stage
        self._best: JobSettings | None = None

    def train(self, inputs: Inputs, progress: Progress) -> PlainResult | None:
        """With the settings that reached most, and the seed of ``inputs``."""
        if self._best is None:
            self._best = self._found(inputs)
        settings = with_overrides(self._best, {"seed": inputs.settings.seed})
        return paradigm_of(settings).alone(Inputs(settings, inputs.graphs), settings.data.label_party, progress)

    def _found(self, inputs: Inputs) -> JobSettings:
        job = inputs.settings
        space = paradigm_of(job).space(job)
        file = TrialFile(
            private_folder(self._folder), {"job": job.model_dump(mode="json"), "space": described(space), "alone": True}
        )
        trainings = _AtHome(inputs, self._stage)
        while len(file.trials) < self.trials:
            file.add(tried(trainings, space, file.trials))
        best = file.best()
        if best is None:
            raise RunError(f"{self._folder}: no trial was complete; the first failed: {file.trials[0].why}")
        return with_overrides(job, best.settings)


class _AtHome:
    """Tries settings on the label holder's own data."""

    def __init__(self, inputs: Inputs, stage: Stage) -> None:
        self.job, self.seeds = inputs.settings, 1
        self._inputs, self._stage, self._figure = inputs, stage, chosen_by(inputs.settings)

    def value(self, number: int, job: JobSettings, place: int, watch: Callable[[int, float], None]) -> float:
        holder = job.data.label_party
        with self._stage(f"{holder} alone, trial {number}", job.train.epochs) as show:
            progress = watched(show, watch, self._figure, job)
            result = paradigm_of(job).alone(Inputs(job, self._inputs.graphs), holder, progress)
        assert result is not None  # it has the labels
        return of_result(result, self._figure, job)
