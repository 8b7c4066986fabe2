"""How the tables of the newest prediction have moved since training, of the parties whose part is here."""

from __future__ import annotations

from veilgraph.core.tensor_file import Record
from veilgraph.core.types import PartyId
from veilgraph.report.page.found import Found
from veilgraph.run.drifting import read_drift
from veilgraph.run.run_directory import RunDirectory


def drift(found: Found) -> dict[PartyId, Record]:
    """Party → what its newest prediction has found; none before that, and where no tables were read.

    Raises:
        RunError: a file is damaged.
    """
    run = RunDirectory(found.path)
    return {party: told for party in found.here if (told := read_drift(run.party_path(party)))}
