"""What a limit on ε protects, as party files and ledgers name it."""

from typing import Any, Final

ROWS: Final[dict[str, Any]] = {"epsilon_unit": "row", "epsilon_neighbours": "zero-out"}
EDGES: Final[dict[str, Any]] = {"epsilon_unit": "edge", "epsilon_neighbours": "replacement", "most_neighbours": 1000}
NODES: Final[dict[str, Any]] = {"epsilon_unit": "node", "epsilon_neighbours": "replacement"}
WITH_EDGES: Final[dict[str, Any]] = {
    "epsilon_unit": "node-edges",
    "epsilon_neighbours": "zero-out",
    "most_neighbours": 3,
}
LABELS: Final[dict[str, Any]] = {"epsilon_unit": "label", "epsilon_neighbours": "replacement"}
RECORDS: Final[dict[str, Any]] = {"epsilon_unit": "training-record", "epsilon_neighbours": "zero-out"}
