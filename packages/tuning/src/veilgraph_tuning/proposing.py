"""What to try next, by Optuna: a tree-structured Parzen estimator, and the median of earlier trials to give up by."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from veilgraph_tuning.space import Choice, Options, Space, Value
from veilgraph_tuning.trials import Trial

if TYPE_CHECKING:
    pass

_STATES: Final = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
_AT_RANDOM: Final = 8
"""Trials before the first that follows from others."""
_BEFORE_PRUNING: Final = 4
"""Complete trials that a median is taken of, at least."""

logging.getLogger("optuna").setLevel(logging.ERROR)


class Proposal:
    """A trial that is being made.

    Attributes:
        settings: dotted key → the value to try.
    """

    def __init__(self, trial: optuna.Trial, settings: dict[str, Value]) -> None:
        self._trial, self.settings = trial, settings

    def falls_behind(self, epoch: int, value: float) -> bool:
        """Whether, with this figure at this epoch, it is below the median of those that were complete by then."""
        self._trial.report(value, epoch)
        return bool(self._trial.should_prune())


def propose(space: Space, trials: Sequence[Trial], seed: int, epochs: int) -> Proposal:
    """The next trial, which follows from those that were and the seed alone, however many sessions they took.

    Args:
        space: to choose in.
        trials: that were; those with other settings than the space's tell nothing.
        seed: of the tuning.
        epochs: of a training; before a quarter of them none falls behind.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    distributions = {key: _distribution(choice) for key, choice in space.items()}
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(
            seed=int(np.random.SeedSequence((seed, len(trials))).generate_state(1)[0]), n_startup_trials=_AT_RANDOM
        ),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=_BEFORE_PRUNING, n_warmup_steps=epochs // 4),
    )
    for trial in trials:
        if set(trial.settings) == set(space):
            study.add_trial(_frozen(trial, distributions))
    asked = study.ask(distributions)
    return Proposal(asked, dict(asked.params))


def _frozen(trial: Trial, distributions: dict[str, BaseDistribution]) -> FrozenTrial:
    return create_trial(
        state=_STATES[trial.ending],
        value=trial.value if trial.ending == "complete" else None,
        params=dict(trial.settings),
        distributions=distributions,
        intermediate_values=dict(trial.curve),
    )


def _distribution(choice: Choice) -> BaseDistribution:
    if isinstance(choice, Options):
        return CategoricalDistribution(choice.values)
    if choice.whole:
        return IntDistribution(int(choice.low), int(choice.high), log=choice.log)
    return FloatDistribution(choice.low, choice.high, log=choice.log)
