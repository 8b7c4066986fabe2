"""Tuning from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from veilgraph.api.jobs import Job, settings_beside
from veilgraph.core.files import fresh_path
from veilgraph.core.given import check_mapping, check_whole, path_of, wrong_type
from veilgraph.protocol.space import Choice, Value, choice_of
from veilgraph.run.given import GivenIds, GivenParties
from veilgraph.run.ledger_places import GivenLedgers
from veilgraph.tuning import tune as tuning
from veilgraph.tuning.tune import Tuning

Choices: TypeAlias = "Mapping[str, Choice | str | Sequence[Value]]"
"""Dotted key → ``"0.001..0.1 log"``, ``"1..4"``, or the values to choose from."""


def tune(
    job: Job,
    out: str | Path | None = None,
    *,
    parties: GivenParties | None = None,
    ids: GivenIds | None = None,
    ledgers: GivenLedgers | None = None,
    trials: int = 20,
    seeds: int = 1,
    vary: Choices | None = None,
) -> Tuning:
    """Chooses settings of a job by what they reach on its validation nodes, with all parties on this machine.

    Args:
        job: as for ``fit``.
        out: a directory to make, or of a tuning to go on with; default: ``runs/<job's name>-tuning-<date>-<time>``.
        parties: what each holder brings, as for ``fit``; default: what the job names. Tables are aligned once. A
            tuning goes on with the same data alone.
        ids: as for ``fit``.
        ledgers: as for ``fit``. A job that publishes holders' own data with noise is tuned only where each of them has
            a ledger for life, and validation nodes may choose its epochs; every trial pays, but for what is sent again.
        trials: in all; the first is the job as it is.
        seeds: that settings are judged by the mean of; the job's and those after it.
        vary: what to choose from; default: what the job's paradigm says is worth it.

    Returns:
        Its ``best`` is the job to ``fit``, beside the same ``parties``; test nodes were not looked at.

    Raises:
        VeilgraphError: as ``veilgraph.tuning.tune.tune``.
    """
    path = None if out is None else path_of("out", out)
    for key, count in (("trials", trials), ("seeds", seeds)):
        if count is None:
            raise wrong_type(key, count, "a whole number (int)", "give one, or leave it out")
    check_whole(trials=trials, seeds=seeds)
    if vary is not None:
        check_mapping("vary", vary, "dotted key → what to choose from")
    space = None if vary is None else {key: choice_of(key, said) for key, said in vary.items()}
    settings = settings_beside(job, parties)
    path = fresh_path(f"{settings.name}-tuning") if path is None else path
    return tuning.tune(
        settings, path, trials=trials, seeds=seeds, space=space, parties=parties, ids=ids, ledgers=ledgers
    )
