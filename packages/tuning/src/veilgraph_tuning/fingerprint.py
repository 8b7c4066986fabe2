"""Whether a tuning goes on with the same data: a hash of what holders bring."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from veilgraph.protocol.organisation import Organisation
from veilgraph.protocol.plain_fitting import Inputs
from veilgraph.runtime.launch.inputs import write_tables


def fingerprint(inputs: Inputs) -> str:
    """SHA-256 (hex) of what holders bring: another one where any of it has changed.

    Raises:
        DataError: a table cannot be read.
    """
    if inputs.graphs:
        return inputs.digest()
    found = sha256()
    with TemporaryDirectory() as folder:
        for name, path in (inputs.settings.data.parties or {}).items():
            if name in inputs.tables:
                write_tables(inputs.tables[name], name, path := Path(folder) / name / "party.yaml")
            found.update(f"{name}{Organisation.read(path, name).digest()}".encode())
    return found.hexdigest()
