"""What embeddings give away of the private attribute, and what they still give of the useful one and of the edges.

The attacker knows the private attribute of some nodes, trains every family of ``attackers`` on them, and is tested on
the rest. Who uses the embeddings knows the useful attribute of all nodes but those that the encoder was not told of,
and is tested on these; and knows the edges but those that the encoder was not given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from veilgraph.audit.pairs import NodeRows, learned_links, sample_pairs
from veilgraph.audit.statistics import MIN_TARGETS, Interval, intervals
from veilgraph.protocol.view import Floats
from veilgraph_embeddings.attackers import FAMILIES, GRAPH_FAMILIES, Attacker, Flags, View
from veilgraph_embeddings.measure import Told, best, told
from veilgraph_embeddings.world import Attribute, World

_MOST_LINKS: Final = 5000
"""Known edges that link prediction learns from, and held-out ones that it is tested on."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What the report is held against.

    Attributes:
        known: [N] bool, the nodes whose private value the attacker knows.
        unseen: [N] bool, the nodes whose useful value the encoder was not told.
        pairs: Tensor[2, E'] int64, the edges that it was not given.
        given: Tensor[2, E] int64, those that it was.
        edges_public: whether attackers have the latter.
        families: of models.
    """

    known: Flags
    unseen: Flags
    pairs: Tensor
    given: Tensor
    edges_public: bool
    families: tuple[str, ...]


@dataclass(frozen=True)
class Assessment:
    """What some embeddings tell.

    Attributes:
        hide: of the private attribute, by each family; with public edges also ``gnn`` and ``edges-alone``.
        keep: of the useful attribute, by each family.
        links: AUC of held-out edges against pairs that are none (He et al. 2021, attack 3); None with too few.
    """

    hide: tuple[Told, ...]
    keep: tuple[Told, ...]
    links: Interval | None

    @property
    def attack(self) -> Told:
        """The strongest on the private attribute that uses the embeddings."""
        return best([each for each in self.hide if each.family != "edges-alone"])

    @property
    def useful(self) -> Told:
        """The best on the useful attribute, by accuracy."""
        return max(self.keep, key=lambda each: each.accuracy.value)


def assess(rows: Tensor, world: World, held: HeldOut, *, seed: int) -> Assessment:
    """Mounts every attack, and every use, on some embeddings.

    Args:
        rows: Tensor[N, d].
        world: with all that is true.
        held: who knows what.
        seed: of the models and of the bootstrap.

    Raises:
        DataError: an attribute has too few nodes to tell.
    """
    seen = standardised(rows)
    near = row_means(held.given, world.num_nodes)
    alone: Mapping[str, Attacker] = {name: FAMILIES[name] for name in held.families}
    hide = by_families(
        seen, world.hide, held.known, near, {**alone, **(GRAPH_FAMILIES if held.edges_public else {})}, seed
    )
    keep = by_families(seen, world.keep, ~held.unseen, near, alone, seed)
    return Assessment(hide, keep, _links(seen, held, seed))


def by_families(
    seen: Floats,
    attribute: Attribute,
    known: Flags,
    near: sp.csr_array | None,
    families: Mapping[str, Attacker],
    seed: int,
) -> tuple[Told, ...]:
    """What each of some families tells of an attribute.

    Args:
        seen: [N, d] float64, of about unit scale.
        attribute: of the nodes; those without a value count for nothing.
        known: [N] bool, the nodes to learn from; the others are tested on.
        near: as ``attackers.View.near``.
        families: name → model.
        seed: of the models and of the bootstrap.
    """
    codes = attribute.codes.numpy()
    valued = codes >= 0
    learnt, targets = known & valued, ~known & valued
    view = View(seen, codes, len(attribute.classes), learnt, near, seed)
    shares = np.bincount(codes[learnt], minlength=view.classes) / max(1, int(learnt.sum()))
    return tuple(
        told(name, attack(view, targets), codes[targets], shares, seed=seed) for name, attack in families.items()
    )


def _links(seen: Floats, held: HeldOut, seed: int) -> Interval | None:
    pairs, given = held.pairs.numpy(), held.given.numpy()
    if pairs.shape[1] < MIN_TARGETS or given.shape[1] < MIN_TARGETS:
        return None
    nodes = len(seen)
    tested = sample_pairs(pairs, nodes, seed=seed, links=min(_MOST_LINKS, pairs.shape[1]), left_out=given)
    partial = sample_pairs(given, nodes, seed=seed + 1, links=min(_MOST_LINKS, given.shape[1]), left_out=pairs)
    scores = learned_links(NodeRows(seen), partial, tested.pairs, seed=seed)
    return intervals(scores, tested.truth, seed=seed, samples=200, figures=["auc"])["auc"]


def standardised(rows: Tensor) -> Floats:
    """Rows with columns of mean 0 and standard deviation 1, [N, d] float64; constant columns become 0."""
    values = rows.double().numpy()
    spread = values.std(axis=0)
    spread[spread == 0] = 1
    return np.asarray((values - values.mean(axis=0)) / spread)


def row_means(pairs: Tensor, nodes: int) -> sp.csr_array:
    """Edges with rows that sum to 1 (0 without any), [N, N]."""
    low, high = pairs.numpy()
    ends = np.concatenate([low, high]), np.concatenate([high, low])
    adjacency = sp.coo_array((np.ones(len(ends[0])), ends), shape=(nodes, nodes)).tocsr()
    degrees = np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1)
    return sp.csr_array(sp.diags_array(1 / degrees) @ adjacency)
