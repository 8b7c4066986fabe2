"""Labels that are perturbed at their holder: paid for in the ledger, perturbed, and then learned from."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import PaidPublisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import Release, ReleaseCache

LABELS: Final = "labels"  # channel of the ledger


class LabelPublisher(PaidPublisher):
    """The publisher of a holder that learns from perturbed labels; embeddings and gradients of these go through.

    ``labels`` are Tensor[n] int64, of the nodes of whose labels others are told anything (``perturbed_nodes``). Where
    nodes without a label perturb the class ``others`` in its place, that is another release than one of labels alone.
    """

    def __init__(
        self,
        response: LabelResponse,
        labels: Tensor,
        ledger: Ledger | None,
        source: SecretSource,
        cache: ReleaseCache | None = None,
        others: int | None = None,
    ) -> None:
        super().__init__(ledger, response.event())
        self.response, self._labels, self._source = response, labels, source
        self._cache = cache or ReleaseCache(ledger)
        mechanism = repr(response) if others is None else f"{response!r} of class {others} without a label"
        self._release = Release(LABELS, response.event(), mechanism)

    def perturbed(self) -> Tensor:
        """The labels under randomised response: Tensor[n] int64, the same in every session and job.

        Raises ``BudgetSpent``: nothing may be learned from them; ``DataError``: one is no class; ``RunError``: they
        could not be kept or paid for.
        """
        return self._cache.release(self._release, self._labels, lambda new: self.response.release(new, self._source))

    @override
    def refusal(self) -> str:
        if self._ledger is None or self._cache.is_free(self._release) or self._cache.room(self._release) != 0:
            return ""
        return (
            f"label_privacy.epsilon={self.response.epsilon:g} of labels that were never perturbed so does not fit what "
            "limits.max_epsilon leaves; lower it, or raise the limit"
        )


def perturbed_nodes(labels: Tensor | None, *splits: Tensor | None) -> Tensor:
    """Return the nodes in any of the masks ``splits``, ascending: Tensor[n] int64; ``DataError``: no labels or mask."""
    given = [split for split in splits if split is not None]
    if labels is None or not given:
        raise DataError("labels: label_privacy perturbs those of training and validation nodes, and there are none")
    return torch.stack(given).any(dim=0).nonzero().squeeze(1)
