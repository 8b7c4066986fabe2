"""The plaintext twin of a vertical job that learns from perturbed labels; and its weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.nn.local.build import CustomModel
from veilgraph.paradigms.vertical.twin import PlainNetwork
from veilgraph.privacy.randomised_response import LabelResponse
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


class PerturbedNetwork(PlainNetwork):
    """All parts of the network of a job with ``label_privacy``, learnt from ``perturbed`` labels, Tensor[n] int64."""

    def __init__(
        self,
        settings: JobSettings,
        graphs: Sequence[PartyGraph],
        label_party: PartyId,
        custom: CustomModel | None = None,
        *,
        perturbed: Tensor | None = None,
    ) -> None:
        super().__init__(settings, graphs, label_party, custom)
        private = settings.label_privacy
        if perturbed is not None and private is not None:
            common = next(graph for graph in graphs if graph.party == label_party).common_part()
            transition = LabelResponse(private.epsilon, self._objective.classes).transition()
            learned = with_perturbed(common, perturbed, perturbed_splits(settings))
            self._objective = Objective(learned, settings.train, precision(settings), transition)
