"""A job of perturbed features in words."""

from __future__ import annotations

from veilgraph.core.words import counted, listed
from veilgraph.paradigms.node_dp.settings import NodeDpJob


def describe(settings: NodeDpJob) -> list[str]:
    """A job in sentences."""
    release, labels = settings.release.features, settings.release.labels
    if release is None:
        return []
    learner, others = settings.data.label_party, listed(settings.releasing)
    sentences = [
        f"{learner} knows the graph, and learns. At {others} every node perturbs its own features a single time, by "
        f"{release.mechanism} with ε = {release.epsilon:g}, before anybody sees them.",
        f"{learner} averages the noise out over neighbours, {counted(settings.model.hops, 'hop')} far, and "
        "trains a network of two layers alone.",
    ]
    if labels is not None:
        sentences.append(
            f"Labels are {labels.holder}'s: each node perturbs its own by randomised response, with ε = "
            f"{labels.epsilon:g}; which nodes have one is in the clear."
        )
    else:
        sentences.append(f"{learner} has the labels itself and shows them to nobody.")
    return [*sentences, "What nodes release needs no trust in anybody: ε bounds what all parties together can infer."]
