"""What a tuning may try: settings that the job can have, and nothing that publishes data and nobody pays for."""

from __future__ import annotations

from collections.abc import Sequence

from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.protocol.figures import LAST
from veilgraph.protocol.job import JobSettings, adds_noise
from veilgraph.runtime.store.lifetime import holders_without_ledger
from veilgraph.samples.shipped import with_overrides
from veilgraph_tuning.space import Options, Space, Span, Value


def check_space(job: JobSettings, space: Space) -> None:
    """Whether all ends of all choices are settings of the job, and may be tried; before the first training.

    Args:
        job: to begin from.
        space: what to vary.

    Raises:
        ConfigError: the space has a key or value that the job cannot have.
    """
    if not space:
        raise ConfigError("vary: there is nothing to vary; give KEY=CHOICE", key="vary")
    for key, choice in space.items():
        if key.partition(".")[0] in ("data", "seed", "paradigm", "name"):
            raise ConfigError(
                f"vary={key}: what is trained on, and who with, stays as it is; vary settings of model and train",
                key="vary",
                value=key,
            )
        ends: tuple[Value, ...] = choice.values if isinstance(choice, Options) else _ends(choice)
        for value in ends:
            with_overrides(job, {key: value})


def check_paid(job: JobSettings, lasting: Sequence[PartyId]) -> None:
    """Refuses trials that publish holders' own data with noise, but where ledgers for life count them all.

    A trial is then a job like any other. Validation nodes choose among trials, without noise: so it must be a job that
    they may choose an epoch of.

    Args:
        job: with a trial's settings.
        lasting: holders that have a ledger for life.

    Raises:
        ConfigError: says which.
    """
    if job.data.dataset is not None or not adds_noise(job):
        return
    if passing := holders_without_ledger(job, lasting):
        raise ConfigError(
            f"tune: every trial would publish data of {passing[0]} with noise once more, which no ledger counts; name "
            f"its ledger for life (ledgers={{{passing[0]!r}: ...}}, --ledger {passing[0]}=FOLDER), or tune on a public "
            "data set (data.dataset), and train on your own data once",
            code="not-paid",
            key="tune",
            party=passing[0],
        )
    if job.train.select_by == LAST:
        raise ConfigError(
            "tune: train.select_by=last tells nobody what validation nodes say, and the best of several trials would, "
            "without noise; tune on a public data set (data.dataset), and train on your own data once",
            code="not-to-be-chosen",
            key="tune",
        )


def _ends(span: Span) -> tuple[Value, ...]:
    return (int(span.low), int(span.high)) if span.whole else (span.low, span.high)
