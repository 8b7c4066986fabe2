"""A job that begins with the weights of an earlier run, whoever the holders of either are."""

from __future__ import annotations

from pathlib import Path

from veilgraph.core.arguments import resuming
from veilgraph.core.errors import ConfigError, RunError
from veilgraph.core.types import SERVER
from veilgraph.protocol.job import JobSettings
from veilgraph.protocol.paradigm import paradigm_of
from veilgraph.protocol.role import BEGINNING
from veilgraph.run.run_directory import RunDirectory, load_tensors


def check_beginning(settings: JobSettings, earlier: Path) -> RunDirectory:
    """The earlier run, if a job can begin with its weights.

    Raises:
        ConfigError: no job of this paradigm begins with an earlier run's weights, or this one is of another paradigm.
        RunError: it is no complete run, or the server's part of it is not here.
    """
    key = "begin_with"
    if not paradigm_of(settings).begins_with_weights:
        raise ConfigError(
            f"{key}={earlier}: jobs of paradigm={settings.paradigm} begin with weights that are drawn; leave it out",
            key=key,
            value=str(earlier),
        )
    run = RunDirectory.open(earlier)
    if run.settings.paradigm != settings.paradigm:
        raise ConfigError(
            f"{key}={earlier}: that run is of paradigm={run.settings.paradigm} and the job of {settings.paradigm}; "
            "give one of the same",
            key=key,
            value=str(earlier),
        )
    if run.summary is None or not run.party(SERVER).model_path.is_file():
        raise RunError(f"{earlier} is not a complete run with the server's part; finish it with: {resuming(earlier)}")
    return run


def begin(run: RunDirectory, earlier: RunDirectory) -> None:
    """Keeps the earlier run's weights for the server of a new one."""
    tensors, _ = load_tensors(earlier.party(SERVER).model_path)
    run.party(SERVER).keeper.put(BEGINNING, tensors, {"run": str(earlier.path)})
