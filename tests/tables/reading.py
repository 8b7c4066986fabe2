"""Tables from rows that a test writes."""

from tests.tables.writing import party, write
from veilgraph.tables.nodes import read_nodes

FEATURES = (
    {"columns": "x", "missing": "mean"},
    {"columns": ["y", "z"], "missing": 7},
    {"columns": "kind", "categories": ["p", "q"], "missing": "category", "other": "zero"},
)


def table_of(folder, rows, features=FEATURES):
    write(folder / "nodes.csv", {"id": list(range(len(next(iter(rows.values()))))), **rows})
    return read_nodes(party(features), folder)
