"""Whether what must say nothing says nothing: messages under masks, and shares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from typing import Final

import numpy as np
import torch
from scipy.stats import norm

from veilgraph.audit.attacks.ciphertexts import Ciphertext, ciphertexts_p_value
from veilgraph.audit.attacks.uniformity import Words, noise_scores, uniformity_p_value
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.audit.statistics import Verdict, measure
from veilgraph.core.errors import DataError

_MOST_MESSAGES: Final = 64
_DEPENDENT: Final = 5
"""Targets that may depend on one another as if they were one: columns of one node, pairs with one node."""
_NOTE: Final = "AUC of telling the messages from noise."


def told_from_noise(evidence: Evidence, seed: int) -> tuple[Outcome, float]:
    """The best distinguisher of the messages' leading bytes, and the p-value of the test that they are uniform.

    Raises:
        DataError: they are no words of Z_2^64 or Z_2^32, or too few.
    """
    if evidence.noise is not None:
        found = evidence.noise()
        return Outcome(*noise_scores(_whole(found), seed=seed), note=_NOTE), ciphertexts_p_value(found)
    return Outcome(*noise_scores(_words(evidence), seed=seed), note=_NOTE), uniformity_p_value(_words(evidence))


def against_chance(outcome: Outcome, level: float) -> Verdict:
    """Whether scores of evidence that must tell nothing tell the truth from the rest: Mann and Whitney's test.

    Where rows are noise, scores are that of no truth; but those of one node may be alike. The variance is taken five
    times as large as that of independent ones, so that alarms are rarer than ``level`` says.

    Raises:
        DataError: there are too few targets of one kind.
    """
    auc, positives = measure(outcome.scores, outcome.truth).auc, int(outcome.truth.sum())
    negatives = len(outcome.truth) - positives
    deviation = sqrt(_DEPENDENT * (positives + negatives + 1) / (12 * positives * negatives))
    p_value = float(2 * norm.sf(abs(auc - 0.5) / deviation))
    return Verdict(p_value <= level, auc, against=0.5, p_value=p_value, level=level)


def _whole(found: Iterable[Ciphertext]) -> Iterator[Words]:
    """Two words of Z_2^32 are as uniform as one of Z_2^64."""
    for each in found:
        words = each.words if each.words.dtype == np.uint64 else each.words[: len(each.words) // 2 * 2].view(np.uint64)
        yield words.view(np.int64)


def _words(evidence: Evidence) -> Iterator[Words]:
    """The first and the last messages of the session."""
    seen = evidence.messages
    if len(seen) > _MOST_MESSAGES:
        seen = (*seen[: _MOST_MESSAGES // 2], *seen[-_MOST_MESSAGES // 2 :])
    for each in seen:
        tensor = each.tensor()
        if tensor.dtype == torch.int32:  # two words of Z_2^32 are as uniform as one of Z_2^64
            flat = tensor.reshape(-1)
            tensor = flat[: flat.numel() // 2 * 2].contiguous().view(torch.int64)
        if tensor.dtype != torch.int64:
            raise DataError(f"{evidence.words}: {tensor.dtype} is no word of a ring, whose bytes would be uniform")
        yield tensor.numpy()
