"""The plaintext twin of a vertical job with what no baseline has, noise in what holders release; and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor
from typing_extensions import override

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.local.build import CustomModel
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.privacy.publisher import OPEN, Publisher
from veilgraph.privacy.randomised_response import LabelResponse
from veilgraph.protocol.cut import Release
from veilgraph.protocol.job import JobSettings, perturbed_splits
from veilgraph.protocol.judge import Objective
from veilgraph.protocol.releases import with_perturbed
from veilgraph.protocol.role import precision


def weights_of(network: PlainNetwork) -> dict[str, Tensor]:
    """``party/part.name`` → live weight, W blocks as ``party/W``, and ``party/W_own`` where there is one."""
    found = {
        f"{part}.{name}": tensor
        for part, module in network.modules().items()
        for name, tensor in module.state_dict().items()
    }
    found |= {f"{owner}/W": weight for owner, weight in network.embedding.weights().items()}
    return found | {f"{owner}/W_own": weight for owner, weight in network.embedding.own_weights().items()}


class NoisyNetwork(PlainNetwork):
    """All parts of a job's network, whose holders release by ``publishers`` of their own.

    ``perturbed`` are the labels, Tensor[n] int64, that are learned from under ``label_privacy``; None: true ones.
    """

    def __init__(
        self,
        settings: JobSettings,
        graphs: Sequence[PartyGraph],
        label_party: PartyId,
        custom: CustomModel | None = None,
        *,
        publishers: Mapping[PartyId, Publisher] = MappingProxyType({}),
        perturbed: Tensor | None = None,
    ) -> None:
        self._publishers = publishers
        is_summed = any(publisher.is_summed for publisher in publishers.values())
        super().__init__(settings, graphs, label_party, custom, is_summed=is_summed)
        private = settings.label_privacy
        if perturbed is not None and private is not None:
            common = next(graph for graph in graphs if graph.party == label_party).common_part()
            transition = LabelResponse(private.epsilon, self._objective.classes).transition()
            learned = with_perturbed(common, perturbed, perturbed_splits(settings))
            self._objective = Objective(learned, settings.train, precision(settings), transition)

    @override
    def _release(self, party: PartyId) -> Release | None:
        publisher = self._publishers.get(party, OPEN)
        if publisher.is_open:
            return None
        release = publisher.summand if publisher.is_summed else publisher.embeddings
        return lambda rows: release(rows, 0)

    @override
    def _cut(self, received: Tensor, party: PartyId, *, deep: bool = False) -> Tensor:
        """What a holder gets; the gradient that it gives back is released first."""
        publisher = self._publishers.get(party, OPEN)
        if publisher.is_open or not received.requires_grad:
            return received
        branch = received.view_as(received)

        def released(gradient: Tensor) -> Tensor:
            if publisher.is_summed and not deep:
                return publisher.summand(gradient, 0, "gradients").to(gradient.dtype)
            return publisher.gradients(gradient, 0, deep=deep)

        branch.register_hook(released)  # type: ignore[no-untyped-call]
        return branch
