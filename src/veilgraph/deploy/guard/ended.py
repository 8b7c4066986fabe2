"""What the server's process notes of jobs that did not come to their end.

Whose process was the first to end without a word: FLARE stops the job for it, and tells nobody who. And that jobs have
ended which the server's last process, killed, left as running.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from nvflare.apis.fl_context import FLContext
from nvflare.fuel.common.exit_codes import ProcessExitCode
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import JobFailureMsgKey

from veilgraph.core.files import new_file
from veilgraph.deploy.guard.policy import CellName, is_job_id

OUTCOME_S: Final = 60.0
"""When a job's parties have all ended well, the server waits so long for every site to say that its process has, too.
FLARE would wait for a quarter of an hour."""
_ENDED: Final = "ended-first"
"""In the server's folder of the job."""
_CODES: Final = (ProcessExitCode.EXCEPTION, ProcessExitCode.CONFIG_ERROR, ProcessExitCode.INFRASTRUCTURE_ERROR)


def keep_who_ended(kit: Path) -> None:
    """From now on the server's process keeps who reports first that its part of a job ended, before it stops the job.

    Args:
        kit: the server's.
    """
    from nvflare.private.fed.server.fed_server import FederatedServer  # noqa: PLC0415  (slow, for the server alone)

    process = FederatedServer.process_job_failure

    def process_job_failure(server: FederatedServer, request: Message) -> Message:
        _keep(kit, request.get_header(MessageHeaderKey.ORIGIN), request.payload)
        return process(server, request)

    FederatedServer.process_job_failure = process_job_failure


def end_unfinished() -> None:
    """From now on the server's process, as it begins, notes as ended (abnormally) what its last one left as running.

    FLARE has the means and uses them nowhere: such a job is "running" for ever, and who waits for its end does so too.
    And it waits for ``OUTCOME_S`` at most for a site that was lost after its part was done.
    """
    from nvflare.private.fed.server.job_runner import JobRunner  # noqa: PLC0415  (slow, for the server alone)

    run = JobRunner.run

    def run_jobs(runner: JobRunner, fl_ctx: FLContext) -> None:
        runner.client_outcome_wait_timeout = OUTCOME_S
        runner.update_abnormal_finished_jobs([], fl_ctx)
        run(runner, fl_ctx)

    JobRunner.run = run_jobs


def ended_first(kit: Path, job_id: str) -> str | None:
    """The site of whom that was kept; None where nobody's process ended so."""
    try:
        found = CellName.read((kit / job_id / _ENDED).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if found is None else found.site


def _keep(kit: Path, origin: object, said: object) -> None:
    """The guard has compared ``origin`` with the certificate; the rest is a site's word about itself."""
    site = CellName.read(origin)
    if site is None or site.who != "holder" or not isinstance(said, dict):
        return
    job_id = said.get(JobFailureMsgKey.JOB_ID)
    if is_job_id(job_id) and said.get(JobFailureMsgKey.CODE) in _CODES:
        with suppress(OSError), new_file(kit / str(job_id) / _ENDED) as file:
            file.write(site.site.encode("ascii"))
