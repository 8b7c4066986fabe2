"""The label holder alone, with settings of its own: chosen at home, by its validation nodes. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from veilgraph.comparison.study import inputs_of
from veilgraph.core.errors import ConfigError
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph_tuning.allowed import check_space
from veilgraph_tuning.space import Space
from veilgraph_tuning.spaces import space_of
from veilgraph_tuning.trying import Stage, Tuning, at_work, check_counts, chosen_by, of_result, search, watched


def tune_alone(
    job: JobSettings,
    out: Path,
    *,
    trials: int = 20,
    seeds: int = 1,
    space: Space | None = None,
    party: Path | None = None,
    stage: Stage = lambda name, epochs: nullcontext(lambda records: None),
) -> Tuning:
    """Choose settings for a job's network on the label holder's columns and links alone, by its validation nodes.

    Args:
        job: of holders of the same nodes.
        out: as for ``tune``.
        trials: in all, those of earlier sessions counted.
        seeds: that settings are judged by the mean of.
        space: what to vary; default: what the paradigm says is worth it.
        party: the label holder's party file: of all nodes of its own tables, and nothing of other holders is needed.
        stage: shows the progress of one training.

    Returns:
        Its ``best`` is the job to compare with: ``veilgraph compare JOB --alone best.yaml``.

    Raises:
        ConfigError: holders have nodes of their own, or the space has a key or value that the job cannot have.
        DataError: the data break a rule.
        RunError: ``out`` is something else; or no trial was complete.
    """
    check_counts(trials, seeds)
    if not job.is_aligned:
        raise ConfigError(
            f"alone: paradigm={job.paradigm} has no one label holder; every holder has labels of its own. Tune the job "
            "itself",
            key="alone",
            value=job.paradigm,
        )
    chosen = dict(space_of(job) if space is None else space)
    check_space(job, chosen)
    inputs = [each for _, each in inputs_of(job, range(job.seed, job.seed + seeds), party)]
    with at_work(out):
        about: dict[str, Any] = {"alone": True, "party": None if party is None else str(party.absolute())}
        about["data"] = [each.digest() for each in inputs]
        return search(_AtHome(job, inputs, stage), out, chosen, trials, about)


class _AtHome:
    """Tries settings on the label holder's own data."""

    def __init__(self, job: JobSettings, inputs: list[Inputs], stage: Stage) -> None:
        self.job, self.seeds = job, len(inputs)
        self._inputs, self._stage, self._figure = inputs, stage, chosen_by(job)

    def value(self, number: int, job: JobSettings, place: int, watch: Callable[[int, float], None]) -> float:
        holder, of = job.data.label_party, self._inputs[place]
        job = job.model_copy(update={"seed": of.settings.seed})
        with self._stage(f"{holder} alone, trial {number}", job.train.epochs) as show:
            progress = watched(show, watch, self._figure, job)
            result = paradigm_of(job).baselines.alone(Inputs(job, of.graphs), holder, progress)
        assert result is not None  # it has the labels
        return of_result(result, self._figure, job)
