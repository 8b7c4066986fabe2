"""How far what is published moves between neighbouring data: the sensitivity, derived from what changed.

**Noise on what came of all hops** (``rows_changed_by_edge``, ``rows_changed_by_node``).

One unit changes so many of the clipped rows of a published matrix: with T(r) = 1 + (D−1) + … + (D−1)^r over K hops,

- one node's features at most 1 + D·T(K − 1) rows (1 if K = 0);
- one edge at most 4·T(K − 1) rows (none if K = 0), and 4·T(K) where weights depend on the source's degree;
- one node's features and all its edges: there is no such count.

Rows change to something that is not zero, so edges and nodes always cost the 2C of replacement. The counts assume that
the function from data to rows is the same in both worlds; weights that a holder trained on its own graph in the clear
carry one node's influence to all N rows.

**Noise in every hop** (``aggregation_sensitivity``). λX_0 and K sums, shortened to B, of rows of length 1 over pairs of
weight at most 1 move together by the root of

- one edge: 2K, whatever the degrees are;
- one node's features: 4λ² + 4D;
- one node with all its edges, absent: λ² + K·(D + B²); replaced: 4λ² + 4·(D + B²) + (K − 1)·(2D + 4B²);
- one node's edges where rows are public: K·(D + B²) absent and K·(2D + 4B²) replaced.

λ, how long own rows are before their noise, follows from the share of the whole that is to be theirs.

Proofs: docs/proofs.md#rows-that-one-unit-changes and docs/proofs.md#noise-in-every-hop.
"""

from __future__ import annotations

import math
from typing import Literal

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event, Neighbours, Unit, check_whole
from veilgraph.privacy.settings import PrivacySettings


def rows_changed_by_edge(degree_bound: int | None, hops: int, num_nodes: int, *, source_degrees: bool = False) -> int:
    """How many published rows one edge more or less can change; count 2 of the head.

    Args:
        degree_bound: D of ``aggregation.bound_degrees``, which the propagated edges have gone through.
        hops: K, from what is clear to the holder alone to what is published.
        num_nodes: N, the number of published rows, which no count exceeds.
        source_degrees: an edge's weight depends on the degree of its source too, as gcn's.

    Raises:
        ConfigError: an argument is out of range, or there is no degree bound though the count needs one.
    """
    check_whole("num_nodes", num_nodes, 0)
    if hops == 0:
        return 0
    bound = _bound(degree_bound, "edge", hops)
    return min(num_nodes, 4 * _reach(bound, hops if source_degrees else hops - 1, num_nodes))


def rows_changed_by_node(degree_bound: int | None, hops: int, num_nodes: int) -> int:
    """How many published rows one node's features can change; count 1 of the head. As ``rows_changed_by_edge``."""
    check_whole("num_nodes", num_nodes, 0)
    if hops == 0:
        return min(num_nodes, 1)
    bound = _bound(degree_bound, "node", hops)
    return min(num_nodes, 1 + bound * _reach(bound, hops - 1, num_nodes))


def for_unit(event: Event, unit: Literal["edge", "node"], rows: int) -> Event:
    """What a release whose noise was chosen for single rows says about an edge or a node.

    Args:
        event: a release of unit ``row``, under either relation.
        unit: whom the returned event protects.
        rows: how many rows one such unit can change, ≥ 1.

    Returns:
        The event under replacement, with the noise over C·√rows (Gaussian) or C·rows (Laplace, whose clip is in ℓ1).

    Raises:
        ConfigError: the event is not about rows, or ``rows`` is less than 1.
    """
    if event.unit != "row":
        raise ConfigError(f"unit={event.unit!r}: only an event about rows can be read as one about an edge or a node")
    check_whole("rows", rows, 1)
    return event.of_unit(unit, rows)


def why_degree_bound(unit: Unit, hops: int) -> str | None:
    """Why a guarantee about ``unit`` over ``hops`` hops needs a degree bound; None where it needs none."""
    if unit not in ("edge", "node") or hops == 0:
        return None
    return (
        f"one {unit} can change every row that {hops} hops reach from it, and without a bound on the edges at a node "
        "that is every row"
    )


def _bound(degree_bound: int | None, unit: Unit, hops: int) -> int:
    check_whole("hops", hops, 0)
    if degree_bound is None:
        raise ConfigError(f"degree_bound: missing: {why_degree_bound(unit, hops)}; give one, or protect rows")
    return check_whole("degree_bound", degree_bound, 1)


def _reach(degree_bound: int, radius: int, num_nodes: int) -> int:
    """T(radius), or N if that is less."""
    shell = reach = 1
    for _ in range(radius):
        shell *= degree_bound - 1
        reach += shell
        if shell == 0 or reach >= num_nodes:
            break
    return min(num_nodes, reach)


def aggregation_sensitivity(
    unit: Unit,
    neighbours: Neighbours,
    hops: int,
    *,
    degree_bound: int | None = None,
    sum_clip: float | None = None,
    public_rows: bool = False,
    own_share: float | None = None,
) -> float:
    """How far all noisy matrices move together, √Σ Δ_k² where rows have length 1: the root of the sums of the head.

    Args:
        unit: edge, node or node-edges.
        neighbours: replacement, or for node-edges zero-out.
        hops: K ≥ 1.
        degree_bound: D, for node and node-edges.
        sum_clip: B, for node-edges.
        public_rows: whether X_0 is made of nothing that ε is about.
        own_share: s, what part of the square is the own row's; None: λ is 1.

    Raises:
        ConfigError: nothing is proven of such a unit and relation, or a bound is missing or out of range.
    """
    own, sums = _squares(unit, neighbours, hops, degree_bound, sum_clip, public_rows=public_rows)
    if own_share is None or own == 0:
        return math.sqrt(own + sums)
    return math.sqrt(sums / (1 - own_share))


def _squares(
    unit: Unit,
    neighbours: Neighbours,
    hops: int,
    degree_bound: int | None,
    sum_clip: float | None,
    *,
    public_rows: bool,
) -> tuple[float, float]:
    """Δ_0² where λ is 1, and Σ Δ_k² of the hops."""
    check_whole("hops", hops, 1)
    if unit == "edge" and neighbours == "replacement":
        return 0.0, 2.0 * hops
    if unit == "node" and neighbours == "replacement" and not public_rows:
        return 4.0, 4.0 * check_whole("degree_bound", degree_bound, 1)
    if unit != "node-edges":
        raise ConfigError(
            f"unit={unit!r} with neighbours={neighbours!r}: nothing is proven of noise in every hop for these; take "
            "edge or node with replacement, or node-edges"
        )
    bound = check_whole("degree_bound", degree_bound, 1)
    if sum_clip is None or not 0 < sum_clip <= bound:
        raise ConfigError(f"sum_clip={sum_clip!r} must be above 0 and at most the degree bound, {bound}")
    row = sum_clip**2
    if neighbours == "zero-out":
        return float(not public_rows), hops * (bound + row)
    later = 2 * bound + 4 * row
    if public_rows:
        return 0.0, hops * later
    return 4.0, 4 * (bound + row) + (hops - 1) * later


def sensitivity_of(privacy: PrivacySettings, *, public_rows: bool = False) -> float | None:
    """That of a job; None where its noise is not in every hop."""
    if privacy.aggregation is None:
        return None
    return aggregation_sensitivity(
        privacy.unit,
        privacy.relation,
        privacy.aggregation.hops,
        degree_bound=privacy.degree_bound,
        sum_clip=privacy.sum_clip,
        public_rows=public_rows,
        own_share=privacy.own_share,
    )


def own_length(privacy: PrivacySettings) -> float:
    """λ: how long own rows are before their noise, of a job that releases them."""
    moved, share = sensitivity_of(privacy), privacy.own_share
    if moved is None or share is None:
        return 1.0
    return moved * math.sqrt(share) / (1.0 if privacy.relation == "zero-out" else 2.0)


def rows_moved(privacy: PrivacySettings) -> int:
    """The most rows of one noisy matrix that one unit moves, absent or, where it is replaced, replaced."""
    if privacy.unit == "edge":
        return 2
    bound = check_whole("degree_bound", privacy.degree_bound, 1)
    if privacy.unit == "node":
        return bound
    return 1 + (bound if privacy.relation == "zero-out" else 2 * bound)
