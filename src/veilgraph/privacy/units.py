"""What differential privacy is about: the unit that is protected, and the relation between neighbouring data."""

from __future__ import annotations

from typing import Literal

Neighbours = Literal["zero-out", "replacement"]
"""A row becomes zero (it moves by at most the clip C), or any other row within the clip (at most 2C)."""

Unit = Literal["row", "edge", "node", "node-edges", "label"]
"""What one neighbouring step changes: one published row, one edge, one node's features, these and all its edges, one
label.
"""

Calibration = Literal["analytic", "classical"]
"""The exact formula, or the textbook's as VFGNN uses it."""
