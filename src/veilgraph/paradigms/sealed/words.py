"""A sealed job in words."""

from __future__ import annotations

from veilgraph.core.words import counted, listed
from veilgraph.paradigms.sealed.settings import SealedJob


def describe(job: SealedJob) -> list[str]:
    """A job in sentences."""
    model, names = job.model, listed(job.data.names)
    told = "the class" if job.output == "classes" else "the probability of every class"
    network = "a linear model" if model.network == "linear" else f"a network with a hidden layer of {model.hidden}"
    return [
        f"{names} have other columns, and edges of their own, of the same nodes. All that they compute with is masked: "
        "nobody sees another's features, edges, degrees, labels or training nodes, nor any weight, gradient or score.",
        f"Rows are propagated {counted(model.hops, 'hop')} far over all holders' edges together, once, and {network} is "
        f"trained on them in {counted(job.train.epochs, 'step')} of SGD with momentum.",
        f"{job.data.label_party} learns {told} that is predicted for every node, and nothing else; the server deals "
        "random numbers, sees no message between holders, and must not collude with one of them.",
        "What all are told are sizes: nodes, columns, rounded numbers of edges, training nodes and classes.",
    ]
