"""A single release in a party's part of a run, at who learns from it and at who makes it, so that it is not repeated.

``privacy.schedule: once`` releases embeddings, paradigm local perturbed features and labels, and the vertical method
``perturbed`` such features. Who learns from a release keeps it; who releases keeps the very bytes, and sends them again
for the same nodes, whatever has become of its data: a release that followed every change would show which there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from veilgraph.core.errors import RunError
from veilgraph.core.tensor_file import Keeper
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.release_cache import fingerprint
from veilgraph.protocol.label_release import ReleasedLabels

RELEASE: Final = "release"
LABELS: Final = "labels"
"""Name of private labels among what came."""


@dataclass(frozen=True, eq=False)
class Releases:
    """What a party works with.

    Attributes:
        number: of the release, the same at all holders.
        is_new: whether it was made in this session.
        tensors: at a holder that learns, by name, what came, as it crossed the wire; ``labels`` where these are
            private, and ``features/<holder>``: its own as well, where it releases, with rows for its own nodes below.
        columns: holder that releases → its d.
        classes: c, of private labels.
    """

    number: int
    is_new: bool
    tensors: Mapping[str, Tensor]
    columns: Mapping[PartyId, int]
    classes: int

    def labels(self, nodes: int) -> ReleasedLabels | None:
        """The labels that were released; None where the learner has its own.

        Raises:
            ProtocolError: they are of other data.
            KeyError: they are missing.
        """
        return ReleasedLabels.unpacked(self.tensors[LABELS], nodes, self.classes) if self.classes else None


class KeptRelease:
    """What one holder keeps of the newest release of all.

    Args:
        keeper: of the party.
        identity: of the alignment.
        graph: of the holder.

    Attributes:
        number: of the newest release; negative where it is of another alignment; 0 for none.
        tensors: by name, what the party was given, where the release holds.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, keeper: Keeper, identity: str, graph: PartyGraph) -> None:
        self._keeper = keeper
        self._depends_on = depends_on(identity, graph)
        self.number = 0
        self.tensors: Mapping[str, Tensor] = {}
        if (kept := keeper.get(RELEASE)) is None:
            return
        tensors, facts = kept
        try:
            same, number = facts["depends_on"] == self._depends_on, int(facts["number"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(keeper, error) from error
        self.number = number if same else -number
        self.tensors = tensors if same else {}

    def replace(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Keeps a new release: its number, and what the party was given of it."""
        self._keeper.put(RELEASE, tensors, {"number": number, "depends_on": self._depends_on})


def damaged(keeper: Keeper, what: object) -> RunError:
    """Of what was kept of the newest release of all."""
    return RunError(f"{keeper.place(RELEASE)}: damaged ({what}); delete it, and the holders release anew")


def depends_on(identity: str, graph: PartyGraph, nodes: Tensor | None = None) -> str:
    """Return the name of the nodes that a release is of, in their order: of public facts alone.

    Args:
        identity: of the alignment.
        graph: of the holder.
        nodes: whose labels are released.
    """
    return f"{identity}/{graph.common}" + ("" if nodes is None else f"/{fingerprint(nodes)}")
