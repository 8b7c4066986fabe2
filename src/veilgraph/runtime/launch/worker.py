"""Entry point of one party's process.

``python -m veilgraph.runtime.launch.worker RUN WORK PARTY MACHINES REPORT WIRE ...``

MACHINES is how many processes share the party's local part, 1 for this one alone. REPORT is the descriptor of the file
for the error that it fails with; WIRE what joins the parties, with the arguments of its invitation.
Started by ``launch.processes.run_processes``; a user has no need to call it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from veilgraph.core.errors import VeilgraphError
from veilgraph.core.threads import run_and_leave
from veilgraph.link.factory import LINKS
from veilgraph.runtime.launch.processes import end_with_launcher, keep_freed_memory, report_failure, share_cores
from veilgraph.runtime.session.party import SimulatedWork, run_simulated
from veilgraph.runtime.store.run_directory import RunDirectory

_WORKS: dict[str, SimulatedWork] = {work: work for work in ("align", "train", "resume", "restart", "predict")}


def main(arguments: list[str]) -> int:
    """Run the party named by RUN WORK PARTY MACHINES REPORT WIRE ...; return 0, or the code of a reported failure."""
    path, work, party, machines, report, wire, *invitation = arguments
    end_with_launcher()
    keep_freed_memory()
    try:
        run = RunDirectory.open(Path(path))
        share_cores(len(run.settings.data.names) + 1)
        link = LINKS[wire].join(party, invitation, run.settings.timeout_s)
        run_simulated(run, party, _WORKS[work], link, machines=int(machines) if int(machines) > 1 else None)
    except VeilgraphError as error:
        return report_failure(error, int(report))
    return 0


if __name__ == "__main__":
    run_and_leave(lambda: main(sys.argv[1:]))
