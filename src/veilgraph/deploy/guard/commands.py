"""FLARE without the commands that nobody here needs: they are never registered, so nothing can call them.

What is left of a site's commands is checked once more where it takes names that become paths and command lines.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import Any

from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaKey
from nvflare.fuel.hci.reg import CommandRegister
from nvflare.fuel.utils.zip_utils import unzip_all_from_bytes
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor

from veilgraph.deploy.guard.policy import COMMANDS, SITE_TOPICS, is_job_id

log = logging.getLogger("veilgraph")

_DEPLOY = "train.deploy"
_ADMINISTRATOR = "project_admin"


class CheckedProcessor(RequestProcessor):  # type: ignore[misc]
    """A command of a site, for a job that has the id of a job: it becomes the name of a folder and an argument.

    What is deployed must be signed by administrators of the project, every part of it: FLARE would take the signature
    of any participant, the server's and another holder's among them.
    """

    def __init__(self, processor: RequestProcessor) -> None:
        self._processor = processor

    def get_topics(self) -> list[str]:
        """Those of the command."""
        return list(self._processor.get_topics())

    def process(self, req: Message, app_ctx: Any) -> Message:  # noqa: ANN401  (FLARE's)
        """Does it, or says why not."""
        job_id = req.get_header(RequestHeader.JOB_ID)
        if req.topic not in SITE_TOPICS or not is_job_id(job_id):
            return error_reply(f"refused: {req.topic} for a job whose id is none")
        if req.topic == _DEPLOY and not is_signed_by_administrators(req.body, Path(app_ctx.args.workspace)):
            log.warning("refused job %s: no administrator of this project signed it", job_id)
            return error_reply("refused: no administrator of this project signed the job")
        return self._processor.process(req, app_ctx)


def is_signed_by_administrators(content: object, kit: Path) -> bool:
    """Whether all parts of a deployed job have a valid signature by certificates of the role of administrators."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            unzip_all_from_bytes(content, folder)
            root = kit / "startup" / "rootCA.pem"
            verified, signers = verify_folder_signature_and_get_signers(folder, str(root))
        except Exception:  # noqa: BLE001  (whatever a stranger's archive does here, it is not a signed job)
            return False
    return verified and bool(signers) and all(role == _ADMINISTRATOR for _, _, role in signers)


def limit_site() -> None:
    """A holder's site registers the commands of ``SITE_TOPICS`` and no others."""
    register = FedAdminAgent.register_processor

    def register_processor(agent: FedAdminAgent, processor: RequestProcessor) -> None:
        topics = set(processor.get_topics())
        if topics <= SITE_TOPICS:
            register(agent, CheckedProcessor(processor))
        elif topics & SITE_TOPICS:
            raise RuntimeError(f"one processor for {sorted(topics)}: this FLARE is not the one that was checked")

    FedAdminAgent.register_processor = register_processor


def limit_server() -> None:
    """The server registers the commands of ``COMMANDS`` and no others."""
    add = CommandRegister.add_command

    def add_command(
        commands: CommandRegister, scope_name: str, cmd_name: str, *others: object, **named: object
    ) -> None:
        if cmd_name in COMMANDS:
            add(commands, scope_name, cmd_name, *others, **named)

    CommandRegister.add_command = add_command


def tell_ages() -> None:
    """The server says how long ago it heard of each site, as a negative time, and not when by its own clock.

    An administrator's clock may be minutes off, and a site is lost after seconds.
    """
    from nvflare.private.fed.server.training_cmds import TrainingCommandModule  # noqa: PLC0415  (slow, server alone)

    check = TrainingCommandModule.check_status

    def check_status(module: TrainingCommandModule, conn: Connection, args: list[str]) -> None:
        check(module, conn, args)
        for client in conn.buffer.meta.get(MetaKey.CLIENTS, ()):
            client[MetaKey.CLIENT_LAST_CONNECT_TIME] -= time.time()

    TrainingCommandModule.check_status = check_status
