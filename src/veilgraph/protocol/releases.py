"""What a release is of, and labels that are perturbed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from veilgraph.core.errors import ConfigError
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.label_publisher import LabelPublisher, perturbed_nodes
from veilgraph.privacy.release_cache import fingerprint
from veilgraph.protocol.job import JobSettings, perturbed_splits

RELEASE: Final = "release"


def depends_on(identity: str, graph: PartyGraph, nodes: Tensor | None = None) -> str:
    """Name the nodes that a release is about, by public facts: ``identity``, number and, for labels, ``nodes``."""
    return f"{identity}/{graph.common}" + ("" if nodes is None else f"/{fingerprint(nodes)}")


if TYPE_CHECKING:
    from veilgraph.protocol.role import RoleContext


def nodes_perturbed(graph: PartyGraph, splits: Sequence[str]) -> Tensor:
    """The common nodes whose labels are perturbed, by names of masks: Tensor[n] int64, ascending; or ``DataError``."""
    return perturbed_nodes(graph.labels, *(getattr(graph, split) for split in splits))


def labels_perturbed(job: JobSettings, graph: PartyGraph) -> tuple[Tensor, Tensor]:
    """The common nodes that perturb something, ascending, and the class that each perturbs: Tensor[n] int64 each.

    Raises ``DataError``: there are no labels or masks.
    """
    nodes, others = nodes_perturbed(graph, perturbed_splits(job)), job.noise.others_label
    assert graph.labels is not None
    if others is None:
        return nodes, graph.labels[nodes]
    return torch.arange(graph.common), torch.full((graph.common,), others).index_copy(0, nodes, graph.labels[nodes])


def with_perturbed(graph: PartyGraph, labels: Tensor, splits: Sequence[str]) -> PartyGraph:
    """The graph with other labels, in the order of ``nodes_perturbed``, at these nodes; the rest keep theirs."""
    nodes = nodes_perturbed(graph, splits)
    known = torch.empty(0, dtype=torch.int64) if graph.labels is None else graph.labels.clone()
    known[nodes] = labels
    return replace(graph, labels=known)


def learned_graph(session: RoleContext, graph: PartyGraph) -> tuple[PartyGraph, Tensor]:
    """Perturb a holder's labels of its common nodes for a job with ``label_privacy``, and pay before they are there.

    Gives the graph with them, and Tensor[c, c] float64, P(label of it = j | true label = i). Raises ``ConfigError``
    where its session has no ``LabelPublisher``, and ``BudgetSpent`` where a budget does not allow them.
    """
    publisher = session.publisher
    if not isinstance(publisher, LabelPublisher):
        raise ConfigError(f"label_privacy: {session.link.party} has no LabelPublisher; give its session one")
    learned = with_perturbed(graph, publisher.perturbed(), perturbed_splits(session.settings))
    return learned, publisher.response.transition()


def noised_labels(job: JobSettings) -> str:
    """Say in a sentence what is noised in a job of a kind that can noise labels alone."""
    if job.label_privacy is None:
        return "There is no differential privacy: nothing is noised."
    return (
        "Labels are perturbed at their holder, once, before training (randomised response, ε "
        f"{job.label_privacy.epsilon:g} of one label), and all that is computed of labels is of these; features and "
        "edges are not noised."
    )
