"""A job of perturbed features in words."""

from __future__ import annotations

from veilgraph.core.words import counted, listed
from veilgraph.paradigms.node_dp.settings import NodeDpJob


def against(settings: NodeDpJob) -> str:
    """Against whom the ε of the learner's edges holds."""
    return f"whoever is given {listed(settings.summing)}'s model, predictions or scores"


def once(settings: NodeDpJob) -> str:
    """What the learner's release costs later."""
    return (
        f"predictions on the same data cost nothing more; where {listed(settings.summing)}'s have changed, sums are "
        "made anew and paid for"
    )


def not_bounded(settings: NodeDpJob) -> list[str]:
    """What the ε of the learner's edges is not about, a sentence each."""
    if settings.privacy is None:
        return []
    learner = listed(settings.summing)
    own = (
        f"{learner} uses its own columns and labels in the clear: what its model tells of these no ε bounds."
        if settings.uses_own_columns
        else f"{learner} does not use its own columns. It uses labels in the clear: what its model tells of these no ε "
        "bounds."
    )
    return [
        own,
        f"It does not hold against {learner} itself, which has the edges and keeps them in the run's directory.",
    ]


def describe(settings: NodeDpJob) -> list[str]:
    """A job in sentences."""
    release, labels = settings.release.features, settings.release.labels
    if release is None:
        return []
    learner, others = settings.data.label_party, listed(settings.releasing)
    sentences = [
        f"{learner} knows the graph, and learns. At {others} every node perturbs its own features a single time, by "
        f"{release.mechanism} with ε = {release.epsilon:g}, before anybody sees them.",
        _learning(settings),
    ]
    if labels is not None:
        sentences.append(
            f"Labels are {labels.holder}'s: each node perturbs its own by randomised response, with ε = "
            f"{labels.epsilon:g}; which nodes have one is in the clear."
        )
    else:
        sentences.append(f"{learner} has the labels itself and shows them to nobody.")
    return [*sentences, "What nodes release needs no trust in anybody: ε bounds what all parties together can infer."]


def _learning(settings: NodeDpJob) -> str:
    learner = settings.data.label_party
    hops = None if settings.privacy is None else settings.privacy.aggregation
    if hops is None:
        return (
            f"{learner} averages the noise out over neighbours, {counted(settings.model.hops, 'hop')} far, and "
            "trains a network of two layers alone."
        )
    return (
        f"{learner} trains a network of two layers alone, without its graph. Of its edges it computes nothing but sums "
        f"of what that takes a node's neighbours for, in {counted(hops.hops, 'hop')}, once and with noise, which its "
        "ledger counts; what it predicts, and its model, follow from these."
    )
