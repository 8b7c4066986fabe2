"""How far the published matrix moves between neighbouring data: the sensitivity, derived from what changed.

A published matrix has N rows, each clipped to length C. A row that changes moves by at most C if it becomes zero and
by at most 2C otherwise, so a matrix of which n rows change moves by at most 2C·√n in the Frobenius norm. What is left
is to count the rows.

Let h^k(v) be node v's embedding after k of K hops. It is a function of h^(k−1)(v), of v's h^0, and of the h^(k−1) and
the weights of the edges that arrive at v, a weight being normalised by the degree of its target (mean, self-loop mean,
sum, maximum) or of its source as well (gcn). Edges are those that ``degree.bound_degrees`` keeps: a node has at most D
neighbours, D ≥ 1. Degrees are counted after it.

*Reach.* From a node at most D others are one edge away. Whoever is reached from a neighbour has at most D − 1 further
ones. So with T(r) = 1 + (D−1) + … + (D−1)^r, at most 1 + D·T(r − 1) nodes are within r edges of a node (1 if r = 0),
and at most T(r) if one of its D places is taken by a neighbour that does not count.

1. *One node's features.* The edges are the same, so the same are kept. h^0 changes at that node only, and if h^k
   changed within k edges of it, h^(k+1) changed within k + 1. At most **1 + D·T(K − 1)** rows change (1 if K = 0).

2. *One edge*: everything that is recorded between two nodes a and b, added, removed or replaced. h^0 is the same.
   - Added, or removed the other way round: with {a, b} at most two other pairs {a, c} and {b, d} differ in being kept
     (proof in ``degree``). So kept edges differ at F = {a, b, c, d} only, and each kept pair that differs has both its
     nodes in F. A node outside F has the same edges and, normalised by the target, the same weights in both graphs. It
     changes in a hop only if it, or a neighbour along an edge that *both* graphs keep, had changed before. So after K
     hops only nodes within K − 1 such edges of F differ. A node of F at which nothing differs need not be counted, and
     any other has at most D − 1 edges that both graphs keep, since one graph keeps a further one there. At most
     **4·T(K − 1)** rows change (none if K = 0).
   - Replaced: the kept pairs are the same. F = {a, b}, and their edges lead to at most D − 1 others each: 2·T(K − 1).
   - Where weights depend on the source's degree, hop 1 also changes the neighbours of F along edges that both graphs
     keep: at most **4·T(K)**.
   - An edge from a node to itself is always kept and no neighbour. It changes its node first, so at most
     1 + D·T(K − 2) = T(K − 1) + T(K − 2) rows (with K for K − 1 if weights depend on the source's degree), which the
     counts above cover.

One node's features *and all its edges* have no such count: one node's edges, even those that are not kept at the node
itself, may displace an edge at any number of other nodes.

What the counts assume:
- The function from data to rows is the same in both worlds: its weights are public, or were computed from what was
  published before. Weights that a holder trained on its own graph in the clear, or features scaled by statistics of a
  whole column, carry one node's influence to every row; then all N rows may change (``rows=N``).
- Activation, scaling to length 1 and clipping work row by row.
- A published row that is zero under zero-out is a statement about that row. One edge's removal changes other rows to
  something that is not zero, so edges and nodes always cost the 2C of replacement.
"""

from __future__ import annotations

from typing import Literal

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.event import Event
from veilgraph.privacy.units import Unit


def rows_changed_by_edge(degree_bound: int | None, hops: int, num_nodes: int, *, source_degrees: bool = False) -> int:
    """How many published rows one edge more or less can change; count 2 of this file's head.

    Args:
        degree_bound: D of ``degree.bound_degrees``, which the propagated edges have gone through.
        hops: K, from what is clear to the holder alone to what is published.
        num_nodes: N, the number of published rows, which no count exceeds.
        source_degrees: an edge's weight depends on the degree of its source too, as gcn's.

    Raises:
        ConfigError: an argument is out of range, or there is no degree bound though the count needs one.
    """
    _check_whole("num_nodes", num_nodes)
    if hops == 0:
        return 0
    bound = _bound(degree_bound, "edge", hops)
    return min(num_nodes, 4 * _reach(bound, hops if source_degrees else hops - 1, num_nodes))


def rows_changed_by_node(degree_bound: int | None, hops: int, num_nodes: int) -> int:
    """How many published rows one node's other features can change; count 1 of this file's head.

    Args:
        degree_bound: as in ``rows_changed_by_edge``.
        hops: K, from what is clear to the holder alone to what is published.
        num_nodes: N, the number of published rows, which no count exceeds.

    Raises:
        ConfigError: as ``rows_changed_by_edge``.
    """
    _check_whole("num_nodes", num_nodes)
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
    _check_whole("rows", rows, least=1)
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
    _check_whole("hops", hops)
    if degree_bound is None:
        raise ConfigError(f"degree_bound: missing: {why_degree_bound(unit, hops)}; give one, or protect rows")
    _check_whole("degree_bound", degree_bound, least=1)
    return degree_bound


def _reach(degree_bound: int, radius: int, num_nodes: int) -> int:
    """T(radius), or N if that is less."""
    shell = reach = 1
    for _ in range(radius):
        shell *= degree_bound - 1
        reach += shell
        if shell == 0 or reach >= num_nodes:
            break
    return min(num_nodes, reach)


def _check_whole(name: str, value: object, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number >= {least}")
