"""Small tables in every format that is read."""

import gzip
import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from veilgraph.graph.build import build_graph, common_first, read_edge_tables, read_table
from veilgraph.protocol.party_settings import parse_party_settings
from veilgraph.tables.edges import read_edges
from veilgraph.tables.encode import fit_encoding

IDS = pa.array(["u", "v", "007"])
RELATION = {"column": "kind", "weights": {"card": 0.5, "cash": 2.0}}
FORMATS = ("csv", "csv.gz", "parquet")


def write(path, columns):
    """Writes ``columns`` (name → values) in the format of the path's ending."""
    table = pa.table(columns)
    if path.name.endswith(".parquet"):
        pa.parquet.write_table(table, path)
        return
    text = pa.BufferOutputStream()
    pa.csv.write_csv(table, text)
    content = text.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content) if path.name.endswith(".gz") else content)


def with_classes(path, classes):
    """A draft whose owner has said which classes there can be, and taken the marks of comment away as it says."""
    decide = "  # decide: classes, then take away the marks of comment\n"
    head, mark, rest = path.read_text(encoding="utf-8").partition(decide)
    assert mark
    lines = rest.splitlines(keepends=True)
    end = next((place for place, line in enumerate(lines) if not line.startswith("  # ")), len(lines))
    label = "".join(re.sub("^  # ", "  ", line) for line in lines[:end]).replace("[..., ...]", f"[{classes}]")
    path.write_text(head + label + "".join(lines[end:]), encoding="utf-8")


def party(features=("x",), label=None, split=None, edges=(), nodes="nodes.csv", node_id="id", **more):
    """Settings; a feature may be a bare column name, an edge table its settings without the usual columns.

    ``more``: of the nodes, as ``join``; ``ids`` is the party's.
    """
    features = [{"columns": entry} if isinstance(entry, str) else entry for entry in features]
    content = {"file": nodes, "id": node_id, "features": features}
    if label is not None:
        content["label"] = label
    if split is not None:
        content["split"] = split
    edges = [{"file": "edges.csv", "source": "a", "target": "b"} | entry for entry in edges]
    ids = {"ids": more.pop("ids")} if "ids" in more else {}
    return parse_party_settings({"party": "bank", "nodes": content | more, "edges": edges} | ids)


def build(settings, folder, common=None, encoding=None, scaling="none", *, per_node=False):
    """The graph of a party's tables; ``common``: the ids that all holders know, each once, in their order."""
    table = read_table(settings, folder, encoding, scaling)
    encoding = fit_encoding(table, scaling) if encoding is None else encoding
    if common is None:
        return build_graph(settings, folder, table, encoding, per_node=per_node)
    places = {name: row for row, name in enumerate(table.ids.to_pylist())}
    order = common_first(len(places), np.array([places[name] for name in common], np.int64))
    edges = [each.move(order) for each in read_edge_tables(settings, folder, table)]
    table = table.take(order)
    return build_graph(settings, folder, table, encoding, len(common), per_node=per_node, tables=edges)


def read_edge_table(folder, columns, elsewhere=None, **settings):
    """A table of edges between ``IDS``, and to nodes ``elsewhere``."""
    write(folder / settings.get("file", "edges.csv"), columns)
    return read_edges(party(edges=[settings]).edges[0], folder, IDS, elsewhere=elsewhere)
