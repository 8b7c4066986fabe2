"""Whether what must say nothing says nothing: messages under masks, and shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from veilgraph.audit.attacks.uniformity import Words, noise_scores, uniformity_p_value
from veilgraph.audit.evidence import Evidence
from veilgraph.audit.finding import Outcome
from veilgraph.core.errors import DataError

_MOST_MESSAGES: Final = 64


def told_from_noise(evidence: Evidence, seed: int) -> tuple[Outcome, float]:
    """The best distinguisher of the messages' leading bytes, and the p-value of the test that they are uniform.

    Raises:
        DataError: they are no words of Z_2^64 or Z_2^32, or too few.
    """
    return (
        Outcome(*noise_scores(_words(evidence), seed=seed), note="AUC of telling the messages from noise."),
        uniformity_p_value(_words(evidence)),
    )


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
