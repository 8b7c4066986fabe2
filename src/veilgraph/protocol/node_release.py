"""What nodes release of themselves before anybody sees it: what the package asks of a paradigm that has such a release.

How it is made, sent and learned from is the paradigm's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from veilgraph.graph.party import PartyGraph
    from veilgraph.privacy.ledger import Ledger
    from veilgraph.privacy.publisher import Publisher
    from veilgraph.privacy.release_cache import ReleaseCache


class HolderLedgers(ABC):
    """A holder's graph, and the ledgers that its publisher pays from."""

    graph: PartyGraph

    @abstractmethod
    def ledger(self, delta: float | None) -> Ledger:
        """Open the ledger of a run; ``delta`` is None where every ε is pure."""

    @abstractmethod
    def caches(self, ledger: Ledger, labelled: Tensor | None) -> tuple[ReleaseCache, ReleaseCache]:
        """What is sent again: of all common nodes' features, and of the labels of ``labelled``, Tensor[n] int64."""


@dataclass(frozen=True)
class NodeRelease(ABC):
    """Features that every node of a holder perturbs by itself, a single time, under local differential privacy.

    ``Guarantee.protection`` shows what it costs.

    Attributes:
        setting: where a job says it.
        mechanism: its name.
        epsilon: of one node's features together.
        delta: None where ε is pure.
        low: the least value that a feature can have, by the job.
        high: the largest.
        canaries: nodes of each holder whose values are made up for an audit.
        is_gaussian: whether its noise is.
    """

    setting: str
    mechanism: str
    epsilon: float
    delta: float | None
    low: float
    high: float
    canaries: int
    is_gaussian: bool

    @abstractmethod
    def publisher(self, holder: HolderLedgers) -> Publisher:
        """The publisher of a holder whose nodes release."""
