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
from veilgraph.core.keeper import Keeper
from veilgraph.core.secrets import new_name
from veilgraph.core.types import PartyId
from veilgraph.graph.party import PartyGraph
from veilgraph.privacy.single import fingerprint
from veilgraph.protocol.label_release import ReleasedLabels

RELEASE: Final = "release"
OWN_RELEASE: Final = "own_release"
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


class OwnRelease:
    """What one holder has released in a run, by channel (``privacy.single.SentRelease``).

    Args:
        keeper: of the party.
        depends: of ``depends_on``.

    Raises:
        RunError: the file is damaged.
    """

    def __init__(self, keeper: Keeper, depends: str) -> None:
        self.keeper = keeper
        self._depends_on = depends
        self._tensors: dict[str, Tensor] = {}
        self._draws: dict[str, str] = {}
        if (kept := keeper.get(OWN_RELEASE)) is None:
            return
        tensors, facts = kept
        try:
            if facts["depends_on"] == depends:
                self._tensors = dict(tensors)
                self._draws = dict(facts.get("draws", {}))  # none where an earlier release of veilgraph kept them
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"{keeper.place(OWN_RELEASE)}: damaged ({error}); restore it, or delete it, and the holder releases "
                "anew and pays"
            ) from error

    def get(self, channel: str) -> Tensor | None:
        """What was kept for that channel; None where nothing was, or it is of other nodes."""
        return self._tensors.get(channel)

    def put(self, channel: str, released: Tensor) -> None:
        """Keeps it, with the name of a new draw: it is on the disk when this returns."""
        self._draws[channel] = new_name()
        self._tensors[channel] = released
        self.keeper.put(OWN_RELEASE, self._tensors, {"depends_on": self._depends_on, "draws": self._draws})

    def draw(self, channel: str) -> str:
        """The name of the draw that what is kept for that channel came of; empty where it was kept without one."""
        return self._draws.get(channel, "")


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
