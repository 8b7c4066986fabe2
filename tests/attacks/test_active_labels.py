"""A holder that trains its own part harder than it should: no other party can tell, and it is what the twin says."""

from functools import cached_property

import pytest
import torch
from veilgraph_testing.vertical import weights_of

from research.active_labels import amplify
from tests.roles.federation import federate, small_job, small_parties
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.protocol.role import PartyModel

STEPS = 8


def test_a_holders_longer_steps_go_unnoticed_and_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So what the active attack finds in the twin (attack-strength, labels) is what a deviating holder would find."""
    settings = small_job(2, {"model": {"initial": {"method": "individual"}}})
    graphs = small_parties(2)
    adversary = graphs[1].party
    honest = vars(PartyModel)["optimizer"].func

    def deviating(self: PartyModel) -> torch.optim.Optimizer | None:
        found: torch.optim.Optimizer | None = honest(self)
        if found is not None and self.session.link.party == adversary:
            amplify(found, self.trained)
        return found

    twins = [PlainNetwork(settings, graphs, graphs[0].party) for _ in range(2)]
    amplify(twins[1].optimizer, [*twins[1].holders[adversary].parameters(), twins[1].embedding.parameters()[1]])
    for epoch in range(1, STEPS + 1):
        for twin in twins:
            twin.train_step(epoch)
    deviation = cached_property(deviating)
    deviation.__set_name__(PartyModel, "optimizer")
    monkeypatch.setattr(PartyModel, "optimizer", deviation)
    weights = federate(settings, graphs, STEPS, None, keep_transcripts=False).weights(0)
    for name, expected in weights_of(twins[1]).items():
        torch.testing.assert_close(weights[name].double(), expected.double(), atol=1e-4, rtol=0)
    own = f"{adversary}/W"
    assert float((weights_of(twins[0])[own] - weights_of(twins[1])[own]).abs().max()) > 1e-2
