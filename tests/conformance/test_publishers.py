"""Our publishers, held to what all of them promise."""

from torch import Tensor
from veilgraph_node_dp.mechanisms import MultiBit
from veilgraph_node_dp.publisher import LocalPublisher
from veilgraph_testing.publisher import PublisherConformance

from tests.privacy.planned import job, planned
from veilgraph.core.secrets import system_secrets
from veilgraph.privacy.ledger import Ledger
from veilgraph.privacy.publisher import OPEN, NoisedPublisher, Publisher


class TestOpen(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        return OPEN


class TestNoised(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        plan = planned(job(20, mechanism="james-stein-plus", noise_multiplier=1), "A")
        return NoisedPublisher(plan, ledger, system_secrets)


class TestOfValues(PublisherConformance):
    def make(self, ledger: Ledger) -> Publisher:
        return LocalPublisher(MultiBit(6.0, -10.0, 10.0, 6), None, ledger, system_secrets)

    def pass_through(self, publisher: Publisher, step: int) -> Tensor:
        assert isinstance(publisher, LocalPublisher)
        return publisher.features(self.rows())
