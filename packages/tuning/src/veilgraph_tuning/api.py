"""Tuning from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from veilgraph.api.fit import Job, settings_beside
from veilgraph.core.arguments import check_mapping, check_whole, path_of, wrong_type
from veilgraph.core.files import fresh_path
from veilgraph.runtime.launch.inputs import GivenIds, GivenParties
from veilgraph.runtime.store.lifetime import GivenLedgers
from veilgraph_tuning import alone, trying
from veilgraph_tuning.space import Choice, Space, Value, choice_of
from veilgraph_tuning.trying import Tuning

__all__ = ["Tuning", "tune", "tune_alone"]

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
        VeilgraphError: as ``veilgraph_tuning.trying.tune``.
    """
    path, space = _checked(out, trials, seeds, vary)
    settings = settings_beside(job, parties)
    path = path or fresh_path(f"{settings.name}-tuning")
    return trying.tune(
        settings, path, trials=trials, seeds=seeds, space=space, parties=parties, ids=ids, ledgers=ledgers
    )


def tune_alone(
    job: Job,
    out: str | Path | None = None,
    *,
    party: str | Path | None = None,
    trials: int = 20,
    seeds: int = 1,
    vary: Choices | None = None,
) -> Tuning:
    """Choose settings for a job's network on the label holder's data alone, by its validation nodes; nothing is sent.

    Args:
        job: as for ``fit``, of holders of the same nodes.
        out: as for ``tune``.
        party: the label holder's party file, to tune at home; default: the label holder's part of what the job names.
        trials: as for ``tune``; ``seeds`` and ``vary`` likewise.
        seeds: see there.
        vary: see there.

    Returns:
        Its ``best`` is what a comparison takes as ``alone``; test nodes were not looked at.

    Raises:
        VeilgraphError: as ``veilgraph_tuning.alone.tune_alone``.
    """
    path, space = _checked(out, trials, seeds, vary)
    settings = settings_beside(job, None)
    path = path or fresh_path(f"{settings.name}-tuning")
    home = None if party is None else path_of("party", party)
    return alone.tune_alone(settings, path, trials=trials, seeds=seeds, space=space, party=home)


def _checked(out: str | Path | None, trials: int, seeds: int, vary: Choices | None) -> tuple[Path | None, Space | None]:
    path = None if out is None else path_of("out", out)
    for key, count in (("trials", trials), ("seeds", seeds)):
        if count is None:
            raise wrong_type(key, count, "a whole number (int)", "give one, or leave it out")
    check_whole(trials=trials, seeds=seeds)
    if vary is not None:
        check_mapping("vary", vary, "dotted key → what to choose from")
    return path, None if vary is None else {key: choice_of(key, said) for key, said in vary.items()}
