"""What a site starts its jobs with: guarded processes. Named in the kit's ``resources.json``."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher

from veilgraph.deploy.guard.policy import PROGRAM


class HolderJobs(ClientProcessJobLauncher):  # type: ignore[misc]
    """Starts a holder's part of a job in a guarded process."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command line."""
        _use_program("holder-job", fl_ctx)
        return str(super().get_command(job_meta, fl_ctx))


class ServerJobs(ServerProcessJobLauncher):  # type: ignore[misc]
    """Starts the server's part of a job in a guarded process."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> str:
        """The command line."""
        _use_program("server-job", fl_ctx)
        return str(super().get_command(job_meta, fl_ctx))


def _use_program(role: str, fl_ctx: FLContext) -> None:
    fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)[JobProcessArgs.EXE_MODULE] = ("-m", f"{PROGRAM} {role}")
