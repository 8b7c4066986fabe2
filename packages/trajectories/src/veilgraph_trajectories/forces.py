"""Social forces of Helbing & Molnár, *Social force model for pedestrian dynamics*, Phys. Rev. E 51, 4282 (1995).

All are accelerations in m/s² and pure functions of arrays, over M people or Q pairs of them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.floating[Any]]

RELAXATION: Final = 0.5
"""τ in seconds, within which people find their speed again."""
TOP_SPEED: Final = 1.3
"""Times the desired speed: nobody is faster."""
_REPULSION: Final = 2.0
"""V⁰ in m²/s²; the paper has 2.1."""
_REACH: Final = 1.0
"""σ in metres; the paper has 0.3, with which a crowd jerks from frame to frame."""
_LOOK_AHEAD: Final = 1.0
"""Δt in seconds, that people think ahead for others; the paper has 2."""
_BORDER: Final = 5.0
"""U⁰ in m²/s²; the paper has 10."""
_BORDER_REACH: Final = 0.4
"""R in metres; the paper has 0.2."""
_SIGHT: Final = float(np.cos(np.deg2rad(100)))
"""Cosine of φ: people see 2φ = 200°."""
_BEHIND: Final = 0.5
"""c: how much of what is not seen counts."""
BODY: Final = 0.4
"""Metres: across a body, seen from above."""
_STIFFNESS: Final = 400.0
"""k/m in 1/s² of bodies that touch. Of Helbing, Farkas & Vicsek, Nature 407, 487 (2000), who have 1500, for panic."""
_TINY: Final = 1e-9


def driving(velocities: Real, directions: Real, speeds: Real) -> Real:
    """Towards the desired speed in the desired direction, eq. 2: (v⁰e − v)/τ.

    Args:
        velocities: float64 [M, 2], m/s.
        directions: float64 [M, 2], unit vectors e.
        speeds: float64 [M], v⁰.
    """
    return np.asarray((speeds[..., None] * directions - velocities) / RELAXATION)


def between(r: Real, velocities: Real, look: Real) -> Real:
    """What one does to another, eqs. 3, 4, 8, 9: −w·∇V⁰exp(−b/σ), b half the small axis of an ellipse.

    b = ½√((|r| + |r − s|)² − |s|²), s the one's next step, its velocity times Δt; w is 1 for who is in the other's
    sight, else c. Bodies that touch are pressed apart besides.

    Args:
        r: float64 [Q, 2], metres from the one to the other.
        velocities: float64 [Q, 2], velocities of the one, m/s.
        look: float64 [Q, 2], unit vectors in which the other looks.
    """
    step = velocities * _LOOK_AHEAD
    ahead = r - step
    far, near = _length(r), _length(ahead)
    across = far + near
    b = 0.5 * np.sqrt(np.maximum(across**2 - _dot(step, step), _TINY))
    push = _REPULSION / _REACH * np.exp(-b / _REACH) * across / (4 * b) * (r / far + ahead / near)
    push *= np.where(-_dot(push, look) >= _SIGHT * _length(push), 1.0, _BEHIND)
    push += _STIFFNESS * np.maximum(BODY - far, 0) * r / far
    return push


def borders(positions: Real, obstacles: Real) -> Real:
    """What obstacles do to each, eq. 5: −∇U⁰exp(−d/R), d the distance to an obstacle's surface.

    Args:
        positions: float64 [M, 2], metres.
        obstacles: float64 [O, 5], of a scene.
    """
    away = positions[:, None] - nearest(positions[:, None], obstacles[:, :2], obstacles[:, 2:4])
    distance = _length(away)
    size = _BORDER / _BORDER_REACH * np.exp(-np.maximum(distance - obstacles[:, 4:], 0) / _BORDER_REACH)
    return np.asarray((size * away / distance).sum(axis=1))


def nearest(points: Real, one: Real, other: Real) -> Real:
    """The point of a segment that is nearest to a point; arrays [..., 2] that broadcast."""
    along = other - one
    share = _dot(points - one, along) / np.maximum(_dot(along, along), _TINY)
    return np.asarray(one + np.clip(share, 0, 1) * along)


def unit(vectors: Real) -> Real:
    """The same directions, of length 1; [..., 2]."""
    return np.asarray(vectors / _length(vectors))


def capped(velocities: Real, most: Real) -> Real:
    """Velocities [..., 2] of a length of at most [...]."""
    return np.asarray(velocities * np.minimum(1, most[..., None] / _length(velocities)))


def _length(vectors: Real) -> Real:
    """[..., 1], never 0."""
    return np.asarray(np.sqrt(np.maximum(_dot(vectors, vectors), _TINY**2)))


def _dot(one: Real, other: Real) -> Real:
    """[..., 1]; several times as fast as a sum over two columns."""
    return np.asarray((one[..., 0] * other[..., 0] + one[..., 1] * other[..., 1])[..., None])
