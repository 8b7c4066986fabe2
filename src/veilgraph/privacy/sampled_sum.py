"""The noisy sum of sampled, clipped terms: one step of DP-SGD (Abadi et al. 2016, algorithm 1, lines 3 to 7).

Every term is drawn by itself with probability q by secret bits (Poisson sampling), its gradient shortened to C and
rounded towards zero to the noise's grid, as rows of ``mechanism`` are; sums of multiples of the grid are exact, so two
sums that differ in some terms differ by exactly these. The noise is a multiple of the grid as well.

A gradient that is not finite, or has an entry that no square of fits a number, counts as zeros: weights are the
server's, who could choose them so that the gradients of some nodes alone overflow, and an error would say whose.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.core.randomness import expand
from veilgraph.core.secrets import SEED_BYTES, SecretSource
from veilgraph.privacy.gaussian import Gaussian
from veilgraph.privacy.mechanism import clip_to_grid


@dataclass(frozen=True, eq=False)
class Places:
    """A gradient of which most entries are zero.

    Attributes:
        places: Tensor[n] int64, which entries, each once.
        values: Tensor[n], of these.
    """

    places: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class Added:
    """What one step added up before the noise.

    Attributes:
        sums: Tensor[2, W] float64: of the terms that are not watched, and of those that are; multiples of a grid on
            which their sum is exact.
        drawn: Tensor[N] uint8, how often each term that could be drawn is in them: 0 or 1.
    """

    sums: Tensor
    drawn: Tensor


Terms = Callable[[int], Tensor | Places]
"""Number of a term → its gradient, Tensor[W]."""

_LARGEST_WHOLE: Final = 2.0**52
_LARGEST_ENTRY: Final = 1e150
_PURPOSE: Final = "sampled terms"


@dataclass(frozen=True)
class SampledSum:
    """Draws, clips, adds up, and adds noise.

    Args:
        clip: C, the largest ℓ2 norm of a term.
        noise_multiplier: σ, standard deviation of the noise over C.
        rate: q, with which every term is drawn.

    Raises:
        ConfigError: a parameter is out of range.
    """

    clip: float
    noise_multiplier: float
    rate: float

    def drawn(self, count: int, source: SecretSource) -> list[int]:
        """Which of so many terms are in: each with probability q, to 2^-64, whatever the others."""
        words = expand(source(SEED_BYTES), _PURPOSE, (count,))
        below = int(self.rate * 2.0**64)
        if below >= 1 << 64:
            return list(range(count))
        return torch.nonzero(words < below - (1 << 63)).flatten().tolist()

    def noise(self, size: int, source: SecretSource) -> Tensor:
        """That of one step: Tensor[W] float64."""
        return Gaussian(self.clip, self.noise_multiplier).draw((1, size), source)[0]

    def added(self, count: int, terms: Terms, size: int, source: SecretSource, watched: Collection[int] = ()) -> Added:
        """What one step adds up before the noise.

        Args:
            count: of terms that may be drawn.
            terms: gradient of each, Tensor[W]; it is asked for those that are drawn alone.
            size: W, entries of a gradient.
            source: of the draws.
            watched: numbers of terms that are added up apart.

        Raises:
            ConfigError: there is so little noise that sums on its grid are not exact.
        """
        cell = Gaussian(self.clip, self.noise_multiplier).cell
        if count * self.clip / cell > _LARGEST_WHOLE:
            raise ConfigError(
                f"noise_multiplier={self.noise_multiplier:g}: too little for sums of {count} terms to be exact; take "
                "more noise",
                key="noise_multiplier",
                value=self.noise_multiplier,
            )
        total, alike = torch.zeros(2, size, dtype=torch.float64), dict[tuple[int, bool], list[Places]]()
        drawn = torch.zeros(count, dtype=torch.uint8)
        for number in self.drawn(count, source):
            drawn[number] += 1
            term, apart = terms(number), number in watched
            values = term.values if isinstance(term, Places) else term
            if not bool((values.abs() <= _LARGEST_ENTRY).all()):
                continue
            if isinstance(term, Places):
                alike.setdefault((len(term.values), apart), []).append(term)
            else:
                total[int(apart)] += clip_to_grid(term.reshape(1, -1), self.clip, 2, cell)[0]
        for (_, apart), group in alike.items():  # as many at a time as have as many entries
            clipped = clip_to_grid(torch.stack([each.values for each in group]), self.clip, 2, cell)
            total[int(apart)].index_add_(0, torch.cat([each.places for each in group]), clipped.flatten())
        return Added(total, drawn)
