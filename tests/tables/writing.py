"""Small tables in every format that is read."""

import gzip

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from veilgraph.core.party_settings import parse_party_settings

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


def party(features=("x",), label=None, split=None, edges=(), nodes="nodes.csv", node_id="id"):
    """Settings; a feature may be a bare column name, an edge table its settings without the usual columns."""
    features = [{"columns": entry} if isinstance(entry, str) else entry for entry in features]
    content = {"file": nodes, "id": node_id, "features": features}
    if label is not None:
        content.update(label=label, split=split)
    edges = [{"file": "edges.csv", "source": "a", "target": "b"} | entry for entry in edges]
    return parse_party_settings({"party": "bank", "nodes": content, "edges": edges})
