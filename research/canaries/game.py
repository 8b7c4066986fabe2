"""A game, and the two lower bounds on ε that are made of it."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import torch
from torch import Tensor
from veilgraph_testing.lower_bound import epsilon_lower_bound

from veilgraph.audit.canaries import one_run_epsilon
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, system_secrets
from veilgraph.privacy.ledger import Ledger
from veilgraph.protocol.trade_offs import GaussianClaims

DELTA: Final = 1e-5
_PLACES: Final = 2.0 ** -(torch.arange(1, 61, dtype=torch.float64) / 4)
"""Of thresholds among the scores that they are chosen from, from either end."""


@dataclass(frozen=True)
class Played:
    """What came of one game.

    Attributes:
        scores: Tensor[m] float64, how much what was released speaks for each canary being in.
        claim: ε that the ledgers say it cost, at the game's δ.
    """

    scores: Tensor
    claim: float


@dataclass(frozen=True)
class Game(ABC):
    """One way of releasing one unit's data, with noise that is asked for by its total ε.

    Attributes:
        epsilon: of everything that is released in the game.
        delta: δ of it; 0 where the claim is a pure one.
        gaussian: whether all that is released has Gaussian noise, so that the ledger claims a whole trade-off.
        one_run: whether all canaries are in one release, or one run.
    """

    epsilon: float = 1.0
    delta: float = DELTA
    gaussian: ClassVar[bool] = True
    one_run: ClassVar[bool] = True

    @abstractmethod
    def play(self, coins: Tensor) -> Played:
        """Releases canaries, which touch each other in nothing.

        Args:
            coins: Tensor[m] bool, which are in.
        """


@dataclass(frozen=True)
class Bound:
    """What a game proves.

    Attributes:
        epsilon: lower bound; 0: nothing is proven.
        claim: what the ledgers say.
    """

    epsilon: float
    claim: float


def repeated(game: Game, trials: int, confidence: float) -> Bound:
    """Many trials in each of two worlds, a threshold chosen on half of them, and its errors counted on the others.

    Canaries have noise of their own, so each is a trial, in one release or in many.

    Args:
        game: to play.
        trials: in each world; half of them choose.
        confidence: the true ε is at least the bound with this probability (Clopper & Pearson 1934).
    """
    coins = torch.arange(2 * trials) % 2 == 0
    played = game.play(coins)
    (choosing, judging), (others, judged) = (played.scores[side].chunk(2) for side in (coins, ~coins))
    pooled = torch.cat([choosing, others])
    thresholds = set(pooled.quantile(torch.cat([_PLACES, 1 - _PLACES]), interpolation="lower").tolist())

    def bound(threshold: float, here: Tensor, there: Tensor) -> float:
        right, wrong = (int((side >= threshold).sum()) for side in (here, there))
        return epsilon_lower_bound(right, wrong, len(here), game.delta, confidence)

    best = max(thresholds, key=lambda threshold: bound(threshold, choosing, others))
    return Bound(bound(best, judging, judged), played.claim)


def in_one_run(game: Game, canaries: int, confidence: float) -> Bound:
    """One run with many canaries, each in by a fair coin (Steinke, Nasr & Jagielski 2023; ``audit.one_run``).

    Nothing is assumed of the noise of one canary beside another's.

    Args:
        game: to play.
        canaries: m.
        confidence: as in ``repeated``.
    """
    coins = expand(system_secrets(SEED_BYTES), "coins", (canaries,)) < 0
    played = game.play(coins)
    found = one_run_epsilon(
        played.scores.numpy(),
        coins.numpy(),
        game.delta,
        confidence,
        claims=GaussianClaims() if game.gaussian and game.delta > 0 else None,
    )
    return Bound(found.epsilon, played.claim)


@contextmanager
def paying(delta: float) -> Iterator[Ledger]:
    """A new ledger without a budget."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "ledger.jsonl", delta or DELTA, None, job="ab" * 32) as ledger,
    ):
        yield ledger


def towards(width: int) -> Tensor:
    """The direction of canaries in: Tensor[width] float64 of length 1, all entries alike."""
    return torch.full((width,), 1 / math.sqrt(width), dtype=torch.float64)
