"""How far the published matrix moves between neighbouring data: the sensitivity, derived from what changed.

A published matrix has N rows, each clipped to length C. A row that changes moves by at most C if it becomes zero and
by at most 2C otherwise, so a matrix of which n rows change moves by at most 2C·√n in the Frobenius norm. What is left
is to count the rows.

Rows. Let h^k(v) be node v's embedding after k of K hops. It is a function of h^(k−1)(v), of v's h^0, and of the
h^(k−1), degrees and edge weights of the nodes with an edge to v. Let D bound the edges at any node, in both of the
neighbouring graphs, and B(r) = 1 + D + … + D^r. At most B(r) nodes are within r edges of a given one.

1. *One node's features.* h^0 changes at that node only. If h^k changed within distance k of it, h^(k+1) changed within
   distance k + 1. So at most B(K) rows change.
2. *One edge {a, b}.* h^0 is the same. In hop 1 only a and b change, if an edge's weight depends on its target's degree
   alone (mean, sum, maximum, attention, appnp); from there as in 1 along the edges that both graphs share. So at most
   2·B(K − 1) rows change, and none at K = 0. Where weights depend on the source's degree as well (gcn), the neighbours
   of a and b change in hop 1 too: at most 2·B(K).
3. *One node's features and all its edges.* The node itself, and its at most D old and D new neighbours, change first,
   and then whatever those reach: at most 1 + 2D·B(K − 1) rows, with weights that depend on the source's degree
   1 + 2D·B(K).

What the count assumes:
- The function from data to rows is the same in both worlds: its weights are public, or were computed from what was
  published before. Weights that a holder trained on its own graph in the clear, or features scaled by statistics of a
  whole column, carry one node's influence to every row; then all N rows may change (``rows=N``).
- Activation, scaling to length 1 and clipping work row by row.
- A published row that is zero under zero-out is a statement about that row. One edge's or node's removal changes other
  rows to something that is not zero, so edges and nodes always cost the 2C of replacement, and being a replacement by
  nothing, removal is covered.
"""

from __future__ import annotations

import math
from typing import Literal

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event, GaussianEvent, LaplaceEvent, Neighbours, Unit, sensitivity_in_clips


def row_sensitivity(clip: float, neighbours: Neighbours) -> float:
    """How far one row moves in the norm it was clipped in: C under zero-out, 2C under replacement.

    Raises:
        ConfigError: ``clip`` is not finite and positive.
    """
    if not (math.isfinite(clip) and clip > 0):
        raise ConfigError(f"clip={clip!r} must be a finite number > 0: the largest length of a published row")
    return clip * sensitivity_in_clips(neighbours)


def rows_changed_by_edge(degree_bound: int | None, hops: int, num_nodes: int, *, source_degrees: bool = False) -> int:
    """How many published rows one edge more or less can change; counts 2 of this file's head.

    Args:
        degree_bound: D, most edges at a node in either graph (an edge given twice counts twice, own loops not at all).
        hops: K, from what is clear to the holder alone to what is published.
        num_nodes: N, which no count exceeds.
        source_degrees: an edge's weight depends on the degree of its source too, as gcn's.

    Raises:
        ConfigError: an argument is out of range, or there is no degree bound though the count needs one.
    """
    if hops == 0:
        return 0
    bound = _bound(degree_bound, "edge", hops)
    return min(num_nodes, 2 * _ball(bound, hops if source_degrees else hops - 1, num_nodes))


def rows_changed_by_node(
    degree_bound: int | None, hops: int, num_nodes: int, *, edges_too: bool = False, source_degrees: bool = False
) -> int:
    """How many published rows one node's other features can change; counts 1 and 3 of this file's head.

    Args:
        degree_bound: as in ``rows_changed_by_edge``.
        hops: K, from what is clear to the holder alone to what is published.
        num_nodes: N, which no count exceeds.
        edges_too: all edges of the node may differ as well.
        source_degrees: as in ``rows_changed_by_edge``.

    Raises:
        ConfigError: as ``rows_changed_by_edge``.
    """
    if hops == 0:
        return min(num_nodes, 1)
    bound = _bound(degree_bound, "node", hops)
    if not edges_too:
        return _ball(bound, hops, num_nodes)
    return min(num_nodes, 1 + 2 * bound * _ball(bound, hops if source_degrees else hops - 1, num_nodes))


def frobenius_sensitivity(clip: float, rows: int) -> float:
    """How far the published matrix moves in the Frobenius norm if at most ``rows`` rows change: 2C·√rows.

    Raises:
        ConfigError: an argument is out of range.
    """
    _check_whole("rows", rows)
    return row_sensitivity(clip, "replacement") * math.sqrt(rows)


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
    _check_whole("rows", rows, least=1)
    if isinstance(event, GaussianEvent):
        return GaussianEvent(event.noise_multiplier / math.sqrt(rows), "replacement", unit)
    return LaplaceEvent(event.scale_multiplier / rows, "replacement", unit)


def why_degree_bound(unit: Unit, hops: int) -> str | None:
    """Why a guarantee about ``unit`` over ``hops`` hops needs a degree bound; None where it needs none."""
    if unit not in ("edge", "node") or hops == 0:
        return None
    return (
        f"one {unit} can change every row that {hops} hops reach from it, and without a bound on the edges at a node "
        "that is every row"
    )


def _bound(degree_bound: int | None, unit: Unit, hops: int) -> int:
    _check_whole("hops", hops)
    if degree_bound is None:
        raise ConfigError(f"degree_bound is missing: {why_degree_bound(unit, hops)}; give one, or protect rows")
    _check_whole("degree_bound", degree_bound)
    return degree_bound


def _ball(degree_bound: int, radius: int, num_nodes: int) -> int:
    """B(radius), or N if that is less."""
    _check_whole("num_nodes", num_nodes)
    shell = ball = 1
    for _ in range(radius):
        shell *= degree_bound
        ball += shell
        if ball >= num_nodes:
            break
    return min(num_nodes, ball)


def _check_whole(name: str, value: object, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number >= {least}")
