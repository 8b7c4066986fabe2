"""One graph divided among holders, as if organisations had its parts: for studies of public or made-up data.

parties = vg.simulate.vertically(vg.datasets.load("cora"), holders=3, seed=0)
run = vg.fit(vg.Job(data={"feature_scaling": "row"}), parties)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from veilgraph.core.arguments import check_several, wrong_type
from veilgraph.core.errors import ConfigError
from veilgraph.core.types import PartyId
from veilgraph.graph.partition import Knows, split_by_label, split_horizontally, split_vertically
from veilgraph.graph.party import PartyGraph
from veilgraph.graph.pooling import HorizontalPart
from veilgraph.graph.settings import MAX_HOLDERS, holder_names

if TYPE_CHECKING:  # seconds to import
    from torch_geometric.data import Data

__all__ = ["horizontally", "vertically"]

Holders = int | Sequence[PartyId]
"""How many, then named A, B, …; or their names."""


def vertically(
    data: Data,
    holders: Holders = 2,
    *,
    label_holder: PartyId | None = None,
    feature_proportions: Sequence[float] | None = None,
    edge_proportions: Sequence[float] | None = None,
    seed: int = 0,
) -> list[PartyGraph]:
    """Partitions columns and edges: all holders know all nodes (VFGNN 4.1).

    Args:
        data: ``x`` [N, F] dense or sparse, ``edge_index``, optional weights, ``y`` and masks.
        holders: number or names.
        label_holder: who gets labels and masks; default: the first.
        feature_proportions: share of the columns per holder in any unit; default: even.
        edge_proportions: share of the undirected edges per holder in any unit; default: even.
        seed: fixes the partition.

    Returns:
        One graph per holder, for ``fit``.

    Raises:
        ConfigError: ``holders`` is no number of holders.
        DataError: fewer columns than holders, proportions that do not fit, or data that break a rule.
    """
    names = _checked_names(holders)
    return split_vertically(
        data,
        names=names,
        feature_proportions=feature_proportions,
        edge_proportions=edge_proportions,
        label_holder=label_holder or names[0],
        seed=seed,
    )


def horizontally(
    data: Data,
    holders: Holders = 2,
    *,
    overlap: float = 0.0,
    mixed: float | None = None,
    knows: Knows = "own",
    seed: int = 0,
) -> list[HorizontalPart]:
    """Partitions nodes and edges: all holders have the same columns (SAPGNN 5.3 and 5.4).

    Args:
        data: as for ``vertically``.
        holders: number or names.
        overlap: share of the edges, in [0, 1], that a second holder has too.
        mixed: default: edges are dealt at random. A share in [0, 1]: nodes are dealt by class, and then this share of
            each holder's to the others; only edges between two nodes of one holder remain.
        knows: ``own``: a holder knows the nodes that were dealt to it or that its edges touch, and the labels of the
            former; ``all``: every node with its label.
        seed: fixes the partition.

    Returns:
        One part per holder, its graph and the ids of its rows, for ``fit``.

    Raises:
        ConfigError: ``holders`` is no number of holders, or ``overlap`` is given with ``mixed``.
        DataError: a share is out of range, a holder gets no node to train or validate on, or data break a rule.
    """
    names = _checked_names(holders)
    if mixed is None:
        return split_horizontally(data, names=names, seed=seed, overlap=overlap, knows=knows)
    if overlap:
        raise ConfigError(
            f"overlap={overlap}: nodes that are dealt by class (mixed={mixed}) share no edge; leave it out"
        )
    return split_by_label(data, names=names, seed=seed, mixed=mixed, knows=knows)


def _checked_names(holders: Holders) -> Sequence[PartyId]:
    """Return the given names, or A, B, … for a number; ``ConfigError`` for anything else."""
    if not isinstance(holders, int):
        check_several("holders", holders, "names, nor a number of holders")
        if holders is None or not all(isinstance(name, str) for name in holders):
            raise wrong_type("holders", holders, "a number of holders, or a list of names", "give one of these")
        return holders
    if not 1 <= holders <= MAX_HOLDERS:
        raise ConfigError(f"holders={holders}: a number from 1 to {MAX_HOLDERS}, or names; give one of these")
    return holder_names(holders)
