"""What ``preset: auto`` chooses in an averaging job with ``averaging.privacy``; docs/averaging.md has how it was found.

Everything follows from what the job says: ε or σ, ``batch``, holders, rounds. No data are looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from veilgraph.paradigms.horizontal.preset import same_columns
from veilgraph.privacy.calibrate import analytic_multiplier
from veilgraph.privacy.sampled_event import reach
from veilgraph.privacy.sampled_settings import SampledSettings
from veilgraph.protocol.preset import Choice, Said

MOMENTUM: Final = 0.9
ROUNDS: Final = 80
LARGEST_RATE: Final = 2.0
"""Beyond it training may diverge without noise too, with rows and gradients of length 1 and that momentum."""
WANDER: Final = 0.45
"""How far the noise of all rounds may move one weight, as a standard deviation."""

_TERMS: Final = "a term is one node's"
_NOISED: Final = "nobody is told how an epoch did"


def choices(said: Said) -> Iterator[Choice]:
    """What fits what the job says, with ``averaging.privacy`` and without."""
    given = said.get("averaging.privacy")
    if given is None:
        yield from same_columns(said, classes=said.get("averaging.task.name", "classes") in ("classes", "graphs"))
        yield Choice("averaging.rule.name", "fedprox", "holders whose classes differ do not drift apart")
        return
    bounded = said.get("averaging.privacy.degree_bound") is not None
    yield Choice("data.feature_scaling", "length", "gradients are about as long as rows, and are clipped")
    if said.get("data.split") is not None:
        yield Choice("data.stratify", False, "who is trained on must hang on no other node")
    yield Choice("model.dim", 16, "wider ones were no better")
    yield Choice("model.dropout", 0.0, _TERMS)
    yield Choice("model.local.model", "sage-mean", _TERMS)
    yield Choice("model.local.hops", int(bounded), "degree_bound is given" if bounded else "edges cost noise")
    yield Choice("model.local.normalize", False, "how large an embedding is tells something")
    yield Choice("averaging.rule.name", "fedsgd", "a holder gives a noisy gradient")
    yield Choice("averaging.rule.momentum", MOMENTUM, "fewer rounds, so less noise")
    yield Choice("averaging.local_epochs", 1, "a holder gives a noisy gradient")
    yield Choice("averaging.at_home.epochs", 300, "a holder may learn from its own edges what it tells nobody")
    yield Choice("train.epochs", ROUNDS, "what matters is rounds times the rate")
    yield Choice("train.select_by", "last", _NOISED)
    yield Choice("train.patience", None, _NOISED)
    yield Choice("train.weight_decay", 0.0, "noise does not let weights grow to no purpose")
    if (rate := _rate(said)) is not None:
        yield Choice("train.learning_rate", rate, f"the noise of all rounds moves a weight by {WANDER:g} at most")


def _rate(said: Said) -> float | None:
    """``learning_rate`` of what the job says; None where it says what is none."""
    privacy, local = said.get("averaging.privacy"), said.get("model.local.hops", None)
    rounds, momentum = said.get("train.epochs", ROUNDS), said.get("averaging.rule.momentum", MOMENTUM)
    try:
        given = SampledSettings.model_validate(privacy)
        bound = given.degree_bound
        hops = (0 if bound is None else 1) if local is None else int(local)
        terms = reach(hops, bound or 1)
        rounds, momentum = int(rounds), float(momentum)
    except (ValidationError, TypeError, ValueError):
        return None
    if rounds < 1 or not 0 <= momentum < 1:
        return None
    return learning_rate(given, terms, rounds, momentum, _holders(said), _share(said, given))


def learning_rate(
    given: SampledSettings, terms: int, rounds: int, momentum: float, holders: int, share: float = 1.0
) -> float:
    """The rate with which the noise of all rounds moves a weight by ``WANDER``, or ``LARGEST_RATE`` where that is less.

    A step moves a weight by η/(1 − β) times its noise, once momentum has run out; the mean of P holders' noise has
    deviation σC/(batch·√P), and T rounds √T of it. σ is taken to be (2N − 1)·q·√T/μ, of the Gaussian mechanism that
    many small draws come to, where it is not given: a rule of thumb for a rate, and nothing that ε rests on.

    Args:
        given: of the job.
        terms: N.
        rounds: T.
        momentum: β.
        holders: P.
        share: what each adds of σ; less than all where noise is made jointly.
    """
    noise = given.noise_multiplier
    if noise is None:
        assert given.epsilon_total is not None
        moved = (2 * terms - 1) * (1 if given.neighbours == "zero-out" else 2)
        single = analytic_multiplier(given.epsilon_total, given.delta_of_batch)
        noise = moved * given.sampling_rate * math.sqrt(rounds) * single
    one = share * noise * given.clip * math.sqrt(rounds) / (given.batch * math.sqrt(holders))
    found = min(LARGEST_RATE, WANDER * (1 - momentum) / one)
    return float(f"{found:.3g}")


def usual_threshold(holders: int) -> int:
    """How many must be there in a sum where the job does not say: more than two thirds."""
    return 2 * holders // 3 + 1


def _share(said: Said, given: SampledSettings) -> float:
    """1/√(T − t) with noise made jointly; 1 without, and where the job breaks the rules of that."""
    if given.joint_noise is None:
        return 1.0
    stated: Any = said.get("averaging.threshold")
    honest = (stated if isinstance(stated, int) else usual_threshold(_holders(said))) - given.joint_noise.colluding
    return 1 / math.sqrt(honest) if honest > 1 else 1.0


def _holders(said: Said) -> int:
    for key in ("data.parties", "data.graphs"):
        named: Any = said.get(key)
        if isinstance(named, Mapping) and named:
            return len(named)
    count: Any = said.get("data.holders", 2)
    if isinstance(count, int):
        return max(1, count)
    return len(count) if isinstance(count, list | tuple) and count else 2
