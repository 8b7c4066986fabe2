"""``noise``: differentially private embeddings, without weights that anything was learnt by.

One release of H (``embedding.aggregation``) with Gaussian noise from the operating system's randomness. Neither the
useful attribute nor the private one is read. It costs (ε, δ) about each of two units, by itself: one node's features,
and one edge. A node with its m edges is m + 1 steps apart: ``epsilon_of_node`` says what that comes to.
"""

from __future__ import annotations

from typing import ClassVar, Final

import torch
from pydantic import Field

from veilgraph.core.errors import ConfigError
from veilgraph.privacy.accountant import analytic_multiplier, gaussian_epsilon
from veilgraph.privacy.event import AggregationEvent, Unit
from veilgraph.privacy.mechanism import Gaussian
from veilgraph.privacy.noise import granularity
from veilgraph.privacy.settings import fitting_delta
from veilgraph_embeddings.aggregation import Sensitivity, aggregated, first_rows_of
from veilgraph_embeddings.method import Embedded, Method, MethodSettings, Tools
from veilgraph_embeddings.world import World

_TOLD: Final = (1, 5, 20)
"""Numbers of edges of a node of which a report says what it and they cost together."""


class NoiseSettings(MethodSettings):
    """What the release may cost, and what it is of."""

    epsilon: float = Field(gt=0)
    """ε of the release, of a node's features and of an edge"""
    delta: float | None = Field(None, gt=0, lt=1)
    """its δ; null: the largest power of ten up to 1/(10·N) and 1e-4"""
    hops: int = Field(2, ge=0, le=32)
    """K, sums over neighbours; 0: a node's own row only"""
    degree_bound: int = Field(10, ge=1)
    """D, most neighbours in a sum, and its divisor"""


class Noise(Method[NoiseSettings]):
    """Random projection, sums over at most D neighbours, noise."""

    settings: ClassVar[type[MethodSettings]] = NoiseSettings
    words: ClassVar[str] = (
        "Sums of randomly projected features over neighbours, with Gaussian noise. The ε below bounds what the "
        "embeddings tell of one node's features, the edges being what they are, and of one edge. It does not bound "
        "what they tell of a node by what its neighbours are like."
    )
    is_private: ClassVar[bool] = True

    @staticmethod
    def embed(world: World, settings: NoiseSettings, tools: Tools) -> Embedded:
        """See ``Method.embed``; neither attribute is read, and the ledgers have the cost before the noise is drawn."""
        hops, bound = settings.hops, settings.degree_bound
        delta = fitting_delta(world.num_nodes) if settings.delta is None else settings.delta
        if hops and delta * (edges := world.pairs.shape[1]) >= 1:
            raise ConfigError(
                f"method.delta={delta:g} with {edges} edges: where δ is 1 over their number, one can be published as "
                f"it is within any ε; set it well below {1 / edges:.3g}",
                key="method.delta",
                value=delta,
            )
        shape = (world.num_nodes, settings.dim)
        first = first_rows_of(world.features, settings.dim, tools.streams)
        deviation, moved = calibrated(settings.epsilon, delta, hops, bound, shape)
        costs = [AggregationEvent(2 * deviation / by, "replacement", unit) for unit, by in _units(moved)]
        rows = aggregated(first, world.pairs, hops, bound)
        released = tools.door.release(rows, Gaussian(1.0, deviation), costs, delta, settings.epsilon)
        facts = {
            "epsilon": settings.epsilon,
            "delta": delta,
            "standard_deviation": deviation,
            "sensitivity_node": moved.node,
            "sensitivity_edge": moved.edge,
            "epsilon_of_node_with_edges": {
                str(edges): epsilon_of_node(moved, deviation, delta, edges) for edges in _TOLD
            },
            "released_before": released.again,
        }
        return Embedded(released.rows.float(), {"features": torch.empty(0)}, facts, released.paid)


def calibrated(
    epsilon: float, delta: float, hops: int, bound: int, shape: tuple[int, int]
) -> tuple[float, Sensitivity]:
    """The noise's standard deviation with which neither unit costs more than ε, and how far each moves H on its grid.

    Args:
        epsilon: of one release.
        delta: of it.
        hops: K.
        bound: D.
        shape: (N, d).

    Raises:
        ConfigError: so many entries on a grid as fine as the noise's would move further than the noise.
    """
    multiplier, exact = analytic_multiplier(epsilon, delta), Sensitivity.of(hops, bound)
    deviation = multiplier * max(exact.node, exact.edge)
    for _ in range(64):
        moved = exact.on_grid(granularity(deviation), shape, hops, bound)
        needed = multiplier * max(moved.node, moved.edge)
        if needed <= deviation:
            return deviation, moved
        deviation = needed * (1 + 1e-12)
    raise ConfigError(
        f"method.epsilon={epsilon!r} is too little for {shape[0]} nodes with dim={shape[1]}: rounding alone would "
        "move so many numbers further than the noise; take a larger epsilon or a smaller dim",
        key="method.epsilon",
        value=epsilon,
    )


def epsilon_of_node(moved: Sensitivity, deviation: float, delta: float, edges: int) -> float:
    """ε at δ between two graphs that differ in one node's features and in that many edges, by the triangle."""
    return gaussian_epsilon((moved.node + edges * moved.edge) / deviation, delta)


def _units(moved: Sensitivity) -> list[tuple[Unit, float]]:
    units: list[tuple[Unit, float]] = [("node", moved.node), ("edge", moved.edge)]
    return [each for each in units if each[1]]
