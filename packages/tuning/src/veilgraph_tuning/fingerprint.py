"""Whether a tuning goes on with the same data: a hash of what holders bring."""

from __future__ import annotations

import json
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from veilgraph.privacy.release_cache import parts
from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.runtime.launch.inputs import write_tables


def fingerprint(inputs: Inputs) -> str:
    """SHA-256 (hex) of what holders bring: another one where any of it has changed.

    Raises:
        DataError: a table cannot be read.
    """
    found = sha256()
    for graph in inputs.graphs:
        for each in fields(graph):
            value = getattr(graph, each.name)
            if not isinstance(value, Tensor):
                found.update(f"{each.name}{value!r}".encode())
                continue
            for part in parts(value):
                found.update(f"{each.name}{part.dtype}{tuple(part.shape)}".encode())
                found.update(part.contiguous().numpy().data)
        found.update(json.dumps(inputs.ids.get(graph.party)).encode())
    with TemporaryDirectory() as folder:
        for name, path in (inputs.settings.data.parties or {}).items():
            if name in inputs.tables:
                write_tables(inputs.tables[name], name, path := Path(folder) / name / "party.yaml")
            found.update(f"{name}{Organisation.read(path, name).digest()}".encode())
    return found.hexdigest()
