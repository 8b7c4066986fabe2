"""What a job may reveal of its holders' data, by name, and in words what each name means.

docs/threat-model.md says for every option what each party learns; here it is said so that a party can state once, in
its own settings, what may be learnt from its data. Public facts (settings, counts, sizes, times) have no name.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, Literal

Revelation = Literal[
    "initial-embeddings",
    "initial-gradients",
    "single-initial-embeddings",
    "embedding-sums",
    "single-embeddings",
    "pooled-degrees",
    "single-degrees",
    "combined-embeddings",
    "output-embeddings",
    "combined-as-output",
    "training-rows",
    "label-holder-edges",
    "node-lists",
    "edge-lists",
    "embedding-maxima",
    "raw-features",
    "global-embeddings",
    "edge-gradients",
    "weight-gradients",
    "label-tallies",
    "single-summands",
    "column-statistics",
    "perturbed-features",
    "perturbed-labels",
]

STATEMENTS: Final = MappingProxyType[Revelation, str](
    {
        "initial-embeddings": "Every holder sees h0, the joint linear image of all holders' features of every node, "
        "after every change of its weights; the changes tell of inner products of the nodes' features.",
        "initial-gradients": "Every holder sees, in every step, the sum of all holders' gradients of h0, whose "
        "non-zero rows tell of the edges around the training nodes.",
        "single-initial-embeddings": "Each of two holders can subtract its own part from h0 and its gradient and has, "
        "in every step, the linear image of the other's features and the other's gradient exactly.",
        "embedding-sums": "The server sees the sum over the holders of every node's embeddings, which depend on all "
        "features and edges, and the gradient of that sum.",
        "single-embeddings": "The server sees every holder's embedding of every node by itself and, with more than one "
        "round or layer, every holder's gradients by themselves.",
        "pooled-degrees": "The server learns the exact sum over the holders of every node's degree, or of the weights "
        "of its edges.",
        "single-degrees": "The server learns every node's exact degree, or sum of edge weights, at every holder.",
        "combined-embeddings": "Every holder sees the combined embeddings of all rounds but the last; holders and "
        "server then know what goes into propagation and what comes out, from which edges can be inferred.",
        "output-embeddings": "The label holder sees the server's output for every node, and predicts from it.",
        "combined-as-output": "The label holder sees the last combined embedding of every node itself: with concat "
        "every holder's part alone, with two holders it can subtract its own; edges can be inferred.",
        "training-rows": "Gradients go in the clear: the server and every holder can infer which nodes are trained on "
        "and which of those share a class or, in paradigm horizontal, a holder the class itself.",
        "label-holder-edges": "Gradients in the clear are spread over the label holder's edges: the server and every "
        "holder learn of its edges around the training nodes.",
        "node-lists": "The server learns which nodes several holders know, by hashes under a key that it lacks.",
        "edge-lists": "The server learns which edges several holders have, by hashes under a key that it lacks, and a "
        "holder learns which of its edges an earlier holder has.",
        "embedding-maxima": "The server sees the element-wise maximum, or minimum, over the holders of every node's "
        "embeddings in every layer, which depend on all features and edges, and its gradient.",
        "raw-features": "The first layer shows the server raw features: joined with those of neighbours or, with "
        "update=concat and with aggregates mean and sum, by themselves.",
        "global-embeddings": "Every holder sees the global embeddings of its nodes, the last layer's being the "
        "aggregate itself, and where its own part prevails: others' features and edges there can be inferred.",
        "edge-gradients": "Gradients of layers before the last go in the clear: the server sees each holder's and every"
        " holder their sum at its nodes, and they tell of edges around the training nodes.",
        "weight-gradients": "Every holder sees, in every step, the sum over the holders of the gradients of the "
        "weights that all share, and of the loss.",
        "label-tallies": "Every holder learns the number of all training nodes and, at every evaluation, sums over "
        "the holders of losses and of how many nodes of each class, in each split, are taken for which.",
        "single-summands": "Each of two holders can subtract its own part from the sums of weight gradients, losses "
        "and class counts, and has the other's exactly.",
        "column-statistics": "Every holder learns how many rows all holders' tables have and every feature column's "
        "mean and variance over them, and each of two holders works out the other's exactly.",
        "perturbed-features": "The label holder, with model.initial.method=perturbed every holder, sees every node's "
        "features as the node itself perturbed them, with the job's ε; how many columns there are is in the clear.",
        "perturbed-labels": "The label holder sees labels under randomised response with the job's ε, and in the clear "
        "which nodes have one for training or validation.",
    }
)
"""Name → who learns what, in one sentence."""
