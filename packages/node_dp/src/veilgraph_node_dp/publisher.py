"""The publishers of node-dp: of values that nodes perturb, and of noisy sums over the learner's edges.

What is released is paid for in the ledger, perturbed or noised, and then given out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from scipy.sparse import csr_array
from torch import Tensor
from typing_extensions import override

from veilgraph.core.errors import ConfigError
from veilgraph.core.secrets import SecretSource, system_secrets
from veilgraph.privacy import accountant
from veilgraph.privacy.event import Event
from veilgraph.privacy.label_publisher import LABELS
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import HolderLedgers, PaidPublisher, Spent
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.privacy.release_cache import Release, ReleaseCache
from veilgraph.privacy.settings import LabelReleaseSettings
from veilgraph_node_dp.feature_settings import FeatureReleaseSettings
from veilgraph_node_dp.mechanisms import FeatureMechanism, feature_mechanism, to_wire
from veilgraph_node_dp.released import released_labels
from veilgraph_node_dp.sums import NoisySums, Then

FEATURES: Final = "features"  # channel of the ledger, as the next
SUMS: Final = "sums"
_ROUNDING: Final = 1 + 1e-12  # a budget of exactly so many releases has room for them


def publisher_of(
    release: FeatureReleaseSettings, labels: LabelReleaseSettings | None, holder: HolderLedgers
) -> LocalPublisher:
    """Make the publisher of a holder's features, and of its labels if the job releases these, and open its ledger.

    Raises ``ConfigError`` where the mechanism cannot release so many columns, ``DataError`` where labels are missing.
    """
    graph = holder.graph
    mechanism, response, known = feature_mechanism(release, graph.num_features), None, None
    if labels is not None and labels.holder == graph.party and graph.num_classes is not None:
        response = LabelResponse(labels.epsilon, graph.num_classes)
        *_, known = released_labels(graph.common_part())
    ledger = holder.ledger(release.delta)
    return LocalPublisher(mechanism, response, ledger, system_secrets, *holder.caches(ledger, known))


class LocalPublisher(PaidPublisher):
    """One holder's publisher of features that its nodes perturb, and of labels where it releases these.

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
        super().__init__(ledger, event, getattr(mechanism, "delta", 0.0))
        self.mechanism, self.response, self._source = mechanism, response, source
        cache = cache or ReleaseCache(ledger)
        self._features = Release(FEATURES, event, repr(mechanism))
        self._caches = {self._features: cache}
        if response is not None:
            self._labels = Release(LABELS, response.event(), repr(response))
            self._caches[self._labels] = label_cache or cache

    def features(self, x: Tensor) -> Tensor:
        """Perturb and pay for the features of nodes, Tensor[N, d], or repeat an earlier release; in ``to_wire`` form.

        Raises ``BudgetSpent``, or ``DataError`` for a value outside the declared range; then nothing was released or
        paid for.
        """
        if not self.is_free:
            self.mechanism.check(x)
        cache = self._caches[self._features]
        return cache.release(self._features, x, lambda rows: to_wire(self.mechanism.release(rows, self._source)))

    def labels(self, labels: Tensor) -> Tensor:
        """Release labels by randomised response, Tensor[n] int64; ``BudgetSpent``, or ``ConfigError``: not its task."""
        response = self.response
        if response is None:
            raise ConfigError("release.labels: this holder is not the one that releases labels; name it")
        cache = self._caches[self._labels]
        return cache.release(self._labels, labels, lambda rows: response.release(rows, self._source))

    @property
    def is_free(self) -> bool:
        """Whether all that it would release was paid for before, and is sent again unchanged."""
        return all(cache.is_free(of) for of, cache in self._caches.items())

    def room(self) -> int | None:
        """Return how many more releases budget and ledger allow, up to 2^32; None: no limit, or all is paid for."""
        ledger = self._ledger
        if ledger is None or ledger.budget is None or self.is_free:
            return None
        each = sum(accountant.per_step(of.event, ledger.delta) for of in self._caches)
        left = ledger.budget - self.spent().epsilon_total
        rooms = [cache.room(of) for of, cache in self._caches.items()]
        return max(0, min(math.floor(left / each * _ROUNDING), *(room for room in rooms if room is not None)))

    @override
    def spent_on(self, counts: Mapping[str, int], ledger: Ledger) -> Spent:
        """Return what each node has spent on its features and its label together."""
        return Spent(counts, sum(each.per_release for each in ledger.summary()), sum(ledger.totals().values()))


class SumPublisher(PaidPublisher):
    """The publisher of a learner's noisy sums over its edges, released once to itself: its model follows from them.

    ``order`` is that of the common nodes in the release, the same in every job, Tensor[C] int64; None: their own.
    """

    def __init__(
        self,
        noisy: NoisySums,
        event: Event,
        delta: float,
        ledger: Ledger | None,
        order: Tensor | None,
        cache: ReleaseCache,
    ) -> None:
        super().__init__(ledger, event, delta)
        self.order, self._noisy, self._cache = order, noisy, cache
        self._release = Release(SUMS, event, repr(noisy.mechanism))

    def sums(self, rows: Tensor, pairs: csr_array, then: Then) -> Tensor:
        """Release sums of rows, Tensor[C, c], over ``pairs``, [C, C]: Tensor[C, K·c] float64; see ``NoisySums``."""
        near = torch.from_numpy(pairs @ rows.numpy())  # edges tell as well whether data have changed
        summed = torch.cat([rows, near], dim=1)
        return self._cache.release(
            self._release, summed, lambda _: self._noisy.release(pairs, rows, system_secrets, then)
        )

    @override
    def affordable_releases(self) -> int | None:
        return None if self._cache.is_free(self._release) else self._cache.room(self._release)
