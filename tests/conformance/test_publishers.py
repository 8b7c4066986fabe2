"""Our publishers, held to what all of them promise."""

from itertools import count

import torch
from scipy.sparse import eye_array
from veilgraph_node_dp.mechanisms import MultiBit
from veilgraph_node_dp.publisher import LocalPublisher, SumPublisher
from veilgraph_node_dp.settings import SumPlan, SumPrivacySettings
from veilgraph_testing.publisher import PublisherConformance

from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.event import GeometricEvent
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import OPEN, CountPublisher, Publisher
from veilgraph.privacy.release_cache import ReleaseCache


class TestOpen(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        return OPEN

    def pass_through(self, publisher: Publisher, step: int) -> None:
        publisher.pay("ab" * 32)


class TestOfCounts(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        self.numbers = count(1)
        return CountPublisher("B", GeometricEvent(0.5), 1, ledger)

    def pass_through(self, publisher: Publisher, step: int) -> None:
        publisher.pay(f"{next(self.numbers):064x}")


class TestOfSums(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        self.numbers = count(1)
        plan = SumPlan("A", SumPrivacySettings(unit="edge", epsilon_total=1.0), 2, 60)
        return plan.paid_by(ledger, None, ReleaseCache(ledger))

    def pass_through(self, publisher: Publisher, step: int) -> object:
        assert isinstance(publisher, SumPublisher)
        rows = torch.full((60, 3), float(next(self.numbers)))
        return publisher.sums(rows, eye_array(60, format="csr"), lambda sums: sums)


class TestOfValues(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        return LocalPublisher(MultiBit(6.0, -10.0, 10.0, 6), None, ledger, system_secrets)

    def pass_through(self, publisher: Publisher, step: int) -> object:
        assert isinstance(publisher, LocalPublisher)
        return publisher.features(self.rows())
