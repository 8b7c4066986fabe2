"""Doors of values that nodes perturb: paid for in the ledger, perturbed, and then given out, or learned from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError, DataError
from veilgraph.core.secrets import SecretSource
from veilgraph.privacy import accountant
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.local_features import FeatureMechanism, packed
from veilgraph.privacy.publisher import PaidPublisher, Spent
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import Release, ReleaseCache

FEATURES: Final = "features"
LABELS: Final = "labels"  # channels of the ledger
_ROUNDING: Final = 1 + 1e-12  # a budget of exactly so many releases has room for them


class LocalPublisher(PaidPublisher):
    """One holder's door of features that its nodes perturb, and of labels where it releases these.

    A release is of all its nodes at once, each by itself: its ε is every node's, not their sum. ``response`` is None
    where labels are not released, ``ledger`` in a plaintext simulation; labels without a cache of their own have that
    of features.
    """

    def __init__(
        self,
        mechanism: FeatureMechanism,
        response: LabelResponse | None,
        ledger: Ledger | None,
        source: SecretSource,
        cache: ReleaseCache | None = None,
        label_cache: ReleaseCache | None = None,
    ) -> None:
        event = mechanism.event()
        super().__init__(ledger, event, event.scope, getattr(mechanism, "delta", 0.0))
        self.mechanism, self.response, self._source = mechanism, response, source
        cache = cache or ReleaseCache(ledger)
        self._features = Release(FEATURES, event, repr(mechanism))
        self._caches = {self._features: cache}
        if response is not None:
            self._labels = Release(LABELS, response.event(), repr(response))
            self._caches[self._labels] = label_cache or cache

    def features(self, x: Tensor) -> Tensor:
        """Release the features of nodes, Tensor[N, d], as ``packed`` has them.

        Raises ``BudgetSpent``, or ``DataError`` for a value outside the declared range; then nothing was released or
        paid for.
        """
        if not self.is_free:
            self.mechanism.check(x)
        cache = self._caches[self._features]
        return cache.release(self._features, x, lambda rows: packed(self.mechanism.release(rows, self._source)))

    def labels(self, labels: Tensor) -> Tensor:
        """Release labels, Tensor[n] int64; ``BudgetSpent``: none was released; ``ConfigError``: this holder releases
        none.
        """
        response = self.response
        if response is None:
            raise ConfigError("release.labels: this holder is not the one that releases labels; name it")
        cache = self._caches[self._labels]
        return cache.release(self._labels, labels, lambda rows: response.release(rows, self._source))

    @property
    def is_free(self) -> bool:
        """Whether all that it would release is paid for, and sent again as it was."""
        return all(cache.is_free(of) for of, cache in self._caches.items())

    def room(self) -> int | None:
        """How many more releases budget and ledger allow, up to 2^32; None without, or where all is kept."""
        ledger = self._ledger
        if ledger is None or ledger.budget is None or self.is_free:
            return None
        each = sum(accountant.per_step(of.event, ledger.delta) for of in self._caches)
        left = ledger.budget - self.spent().epsilon_total
        rooms = [cache.room(of) for of, cache in self._caches.items()]
        return max(0, min(math.floor(left / each * _ROUNDING), *(room for room in rooms if room is not None)))

    @override
    def spent_on(self, counts: Mapping[str, int], ledger: Ledger) -> Spent:
        """Of each node, its features and its label together."""
        return Spent(counts, sum(each.per_release for each in ledger.summary()), sum(ledger.totals().values()))


class LabelPublisher(PaidPublisher):
    """The door of a holder that learns from perturbed labels; embeddings and gradients of these go through.

    ``labels`` are Tensor[n] int64, of the nodes of whose labels others are told anything (``learned_from``).
    """

    def __init__(
        self,
        response: LabelResponse,
        labels: Tensor,
        ledger: Ledger | None,
        source: SecretSource,
        cache: ReleaseCache | None = None,
    ) -> None:
        super().__init__(ledger, response.event(), response.event().scope)
        self.response, self._labels, self._source = response, labels, source
        self._cache = cache or ReleaseCache(ledger)
        self._release = Release(LABELS, response.event(), repr(response))

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


def learned_from(labels: Tensor | None, *splits: Tensor | None) -> Tensor:
    """The nodes whose labels, Tensor[C], are perturbed: Tensor[n] int64, ascending; ``DataError`` without labels or
    masks.

    ``splits`` are masks of nodes of whose labels others hear anything.
    """
    given = [split for split in splits if split is not None]
    if labels is None or not given:
        raise DataError("labels: label_privacy perturbs those of training and validation nodes, and there are none")
    return torch.stack(given).any(dim=0).nonzero().squeeze(1)
