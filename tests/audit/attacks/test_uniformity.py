"""Messages under masks are noise; without their mask, or with one used twice, they are not."""

from __future__ import annotations

import numpy as np

from tests import nightly
from veilgraph.audit.sealing import Words, noise_scores, uniformity_p_value
from veilgraph.audit.statistics import measure

_SHAPE = (200, 32)


def _uniform(seed: int, count: int = 4) -> list[Words]:
    random = np.random.default_rng(seed)
    return [random.integers(-(2**63), 2**63, size=_SHAPE) for _ in range(count)]


def _values(seed: int, count: int = 4) -> list[Words]:
    """Embeddings in fixed point of 40 bits."""
    random = np.random.default_rng(seed)
    return [np.rint(random.normal(size=_SHAPE) * 2.0**40).astype(np.int64) for _ in range(count)]


@nightly
def test_noise_is_called_noise_at_the_stated_rate() -> None:
    p_values = np.array([uniformity_p_value(_uniform(seed)) for seed in range(200)])
    assert (p_values <= 0.1).mean() <= 0.2  # P[more than 40 of 200 at rate 0.1] < 1e-5
    assert (p_values <= 0.001).sum() <= 3


def test_values_without_a_mask_are_found() -> None:
    assert uniformity_p_value(_values(0)) < 1e-12
    assert measure(*noise_scores(_values(0), seed=0)).auc > 0.95


def test_one_message_without_a_mask_among_many_is_found() -> None:
    assert uniformity_p_value([*_uniform(0, 30), *_values(0, 1)]) < 1e-12


def test_a_mask_that_is_used_twice_is_found() -> None:
    """In the difference alone: of two messages by themselves, that each byte comes twice would show as well."""
    fresh, (mask,) = _uniform(1, 30), _uniform(0, 1)
    twice = [mask + value for value in _values(0, 2)]
    assert uniformity_p_value([*fresh[:15], *twice, *fresh[15:]]) < 1e-12
    assert uniformity_p_value([*fresh[:15], *_uniform(2, 1), *fresh[15:], twice[0]]) > 1e-6
    assert uniformity_p_value([twice[0], *fresh, twice[1]]) > 1e-6, "the words by themselves"


def test_low_bits_alone_are_found() -> None:
    """A mask that misses the low half of the word."""
    masked = [mask << 32 | value >> 8 & 0xFF for mask, value in zip(_uniform(0), _values(0), strict=True)]
    assert uniformity_p_value(masked) < 1e-12


def test_noise_cannot_be_told_from_noise() -> None:
    assert abs(measure(*noise_scores(_uniform(0), seed=1)).auc - 0.5) < 0.02
