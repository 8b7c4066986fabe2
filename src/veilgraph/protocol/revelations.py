"""What jobs may reveal of their holders' data, by name, and in words what each name means.

So a party can state once, in its own settings, what may be learnt from its data. A paradigm has revelations of its own
beside its rows; here is what several have. Public facts (settings, counts, sizes, times) have no name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from veilgraph.core.types import PartyId
from veilgraph.protocol.job import JobSettings

J_contra = TypeVar("J_contra", bound=JobSettings, contravariant=True)


def _publishing(job: JobSettings) -> Sequence[PartyId]:
    return job.publishing


@dataclass(frozen=True, eq=False)
class Told(Generic[J_contra]):
    """What messages of a paradigm's jobs may reveal.

    Attributes:
        name: by which a party's limits call it, in every paradigm for the same.
        statement: who learns what, in one sentence.
        cause: the settings that make a job's messages reveal it; empty where a party's own tables do.
        whose: the parties of whose data it tells others something.
        part_of: name of what tells this and more, so that who accepts that accepts this; empty for none.
        jobs: in which it is revealed, for the documentation, where its rows' facts do not say so.
    """

    name: str
    statement: str
    cause: Callable[[J_contra], str]
    whose: Callable[[J_contra], Sequence[PartyId]] = _publishing
    jobs: str = ""
    part_of: str = ""


# fmt: off
EMBEDDING_SUMS: Final = (
    "embedding-sums", "The server sees the sum over the holders of every node's embeddings, which depend on all "
    "features and edges, and the gradient of that sum.")
SINGLE_EMBEDDINGS: Final = (
    "single-embeddings", "The server sees every holder's embedding of every node by itself and, with more than one "
    "round or layer, every holder's gradients by themselves.")
POOLED_DEGREES: Final = (
    "pooled-degrees", "The server learns the exact sum over the holders of every node's degree, or of the weights of "
    "its edges.")
SINGLE_DEGREES: Final = (
    "single-degrees", "The server learns every node's exact degree, or sum of edge weights, at every holder.")
TRAINING_ROWS: Final = (
    "training-rows", "Gradients go in the clear: the server and every holder can infer which nodes are trained on and "
    "which of those share a class or, in paradigm horizontal, a holder the class itself.")
TARGET_SUMS: Final = (
    "target-sums", "Every holder, in paradigm averaging the server too, learns, before the first round, how many "
    "training nodes there are together, and the sums over these of targets, of their sizes and of their squares.")
PERTURBED_FEATURES: Final = (
    "perturbed-features", "The label holder, with model.initial.method=perturbed every holder, sees every node's "
    "features as the node itself perturbed them, with the job's ε; how many columns there are is in the clear.")
# fmt: on
"""Name and statement of what jobs of several paradigms reveal."""
