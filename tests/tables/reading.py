"""Tables from rows that a test writes."""

import pyarrow as pa

from tests.tables.writing import party, write
from veilgraph.tables.edges import read_edges
from veilgraph.tables.nodes import read_nodes

FEATURES = (
    {"columns": "x", "missing": "mean"},
    {"columns": ["y", "z"], "missing": 7},
    {"columns": "kind", "categories": ["p", "q"], "missing": "category", "other": "zero"},
)


def table_of(folder, rows, features=FEATURES):
    write(folder / "nodes.csv", {"id": list(range(len(next(iter(rows.values()))))), **rows})
    return read_nodes(party(features), folder)


IDS = pa.array(["u", "v", "007"])
RELATION = {"column": "kind", "weights": {"card": 0.5, "cash": 2.0}}


def read(folder, columns, elsewhere=None, **settings):
    """A table of edges between ``IDS``, and to nodes ``elsewhere``."""
    name = settings.get("file", "edges.csv")
    write(folder / name, columns)
    return read_edges(party(edges=[settings]).edges[0], folder, IDS, elsewhere=elsewhere)
