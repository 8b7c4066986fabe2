"""The processes of a site: FLARE's own programs, behind the guard.

    python -m veilgraph.deploy.guard.program ROLE ARGUMENTS-OF-FLARE

``veilgraph net join`` starts a site so, and the site its jobs (``launchers``). A process that was started in another
way is not guarded, and a job's part refuses to run in it (``deploy.engine``).
"""

from __future__ import annotations

import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Final

from veilgraph.deploy.guard import hooks, orphans, seldom, sockets
from veilgraph.deploy.guard.policy import RELAY_RULES, RULES
from veilgraph.deploy.roles import read_roles

PROGRAMS: Final = {
    "server": "nvflare.private.fed.app.server.server_train",
    "holder": "nvflare.private.fed.app.client.client_train",
    "server-job": "nvflare.private.fed.app.server.runner_process",
    "holder-job": "nvflare.private.fed.app.client.worker_process",
}
"""Role of a process → FLARE's program for it."""


def main() -> None:
    """Sets up the guard for this process's role and runs FLARE's program in it."""
    role = sys.argv.pop(1)
    kit = Path(sys.argv[sys.argv.index("-m") + 1])
    os.umask(0o077)
    orphans.end_with_parent(orphans.GRACE_S if role.endswith("-job") else 0.0)
    sockets.register()
    seldom.thin()
    rules = RULES if read_roles(kit / "startup").dealer is None else RELAY_RULES
    if role in ("server", "holder"):  # a job's process has no use of what these import
        from veilgraph.deploy.guard import commands, ended  # noqa: PLC0415
        from veilgraph.deploy.guard.heard import Heard  # noqa: PLC0415
        from veilgraph.deploy.revocation import refuses  # noqa: PLC0415

        hooks.install(partial(refuses, kit), rules, Heard(kit).note)
        if role == "server":
            commands.limit_server(kit)
            commands.tell_ages()
            ended.keep_who_ended(kit)
            ended.end_unfinished()
        else:
            commands.limit_site(kit)
    else:
        hooks.install(rules=rules)
    runpy.run_module(PROGRAMS[role], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
