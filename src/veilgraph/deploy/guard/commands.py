"""What passes between FLARE and its requests: an exact list of commands, each made anew from checked parts.

Commands that nobody here needs are never registered. A request that a site receives is made anew before FLARE looks at
it, and a job that the server receives is, before FLARE validates it.
"""

from __future__ import annotations

import atexit
import logging
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from nvflare.apis.fl_constant import AdminCommandNames
from nvflare.apis.job_def import JobMetaKey
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.fuel.hci.conn import Connection
from nvflare.fuel.hci.proto import MetaKey, MetaStatusValue, make_meta
from nvflare.fuel.hci.reg import CommandRegister
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.admin_defs import Message, error_reply
from nvflare.private.defs import RequestHeader, TrainingTopic, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.scheduler_constants import ShareableHeader

from veilgraph.core.files import write_whole
from veilgraph.deploy.guard.archive import MAX_ARCHIVE_BYTES, Refused, hold_app, hold_job
from veilgraph.deploy.guard.policy import COMMANDS, SITE_TOPICS, CellName, is_job_id
from veilgraph.deploy.guard.refusals import shown
from veilgraph.deploy.submission import APP, FOLDER, is_job_name
from veilgraph.link.refusals import RefusalLog

log = logging.getLogger("veilgraph")

_SUBMITTER: Final = (
    (RequestHeader.SUBMITTER_NAME, RequestHeader.SUBMITTER_ORG, RequestHeader.SUBMITTER_ROLE),
    (RequestHeader.USER_NAME, RequestHeader.USER_ORG, RequestHeader.USER_ROLE),
)
_RESERVATION: Final = re.compile(r"[0-9a-f-]{0,36}")
_TOLD: Final = re.compile(r"^\d{4}-\d\d-\d\d \S+ - veilgraph - INFO - .*\n?", re.MULTILINE)
"""A line of a job's log that the server may tell administrators. Errors, warnings and FLARE's lines are its own."""


def hold_request(request: Message, kit: Path) -> Message:
    """Make a server's request to a site anew; what is not listed here does not reach FLARE.

    The one job that is deployed is of the one form, and an administrator of the project signed it: FLARE would take
    the signature of any participant, the server's and another holder's among them.

    Args:
        request: as FLARE decoded it.
        kit: of the site.

    Raises:
        Refused: its topic, the job's id or another part is none.
    """
    job_id = request.get_header(RequestHeader.JOB_ID)
    if request.topic not in SITE_TOPICS or not is_job_id(job_id):
        raise Refused(f"{shown(request.topic)} for a job whose id is none")
    headers: dict[str, Any] = {RequestHeader.JOB_ID: job_id}
    body: object = {}
    match request.topic:
        case TrainingTopic.DEPLOY:
            app = hold_app(request.body, kit)
            body = app.archive
            headers[RequestHeader.APP_NAME] = APP
            headers |= {RequestHeader.REQUIRE_AUTHZ: "true", RequestHeader.ADMIN_COMMAND: AdminCommandNames.SUBMIT_JOB}
            for names in _SUBMITTER:  # by the certificate, not by the server's word
                headers |= zip(names, app.submitter, strict=True)
        case TrainingTopic.NOTIFY_JOB_STATUS:
            headers[RequestHeader.JOB_STATUS] = int(request.get_header(RequestHeader.JOB_STATUS))
    if request.topic in (TrainingTopic.DEPLOY, TrainingTopic.START_JOB):
        headers[RequestHeader.JOB_META] = _hold_meta(request.get_header(RequestHeader.JOB_META), job_id)
    if request.topic in (TrainingTopic.START_JOB, TrainingTopic.CANCEL_RESOURCE):
        reservation = request.get_header(ShareableHeader.RESOURCE_RESERVE_TOKEN)
        if not isinstance(reservation, str) or not _RESERVATION.fullmatch(reservation):
            raise Refused("it names no reservation of resources")
        headers[ShareableHeader.RESOURCE_RESERVE_TOKEN] = reservation
    made = Message(topic=request.topic, body=body)
    made.id = request.id
    made.set_headers(headers)
    return made


def _hold_meta(meta: object, job_id: str) -> dict[str, Any]:
    """What the server says of a job, made anew: by other keys FLARE chooses launchers, scopes, resources and code."""
    meta = meta if isinstance(meta, dict) else {}
    name, submitted = meta.get(JobMetaKey.JOB_NAME.value), meta.get(JobMetaKey.SUBMIT_TIME.value)
    sites = [CellName.read(client.get("name")) for client in meta.get(JobMetaKey.JOB_CLIENTS.value, ())]
    if not is_job_name(name) or not isinstance(submitted, float | int):
        raise Refused("the job has no name, or no time")
    return {
        JobMetaKey.JOB_ID.value: job_id,
        JobMetaKey.JOB_NAME.value: name,
        JobMetaKey.SUBMIT_TIME.value: submitted,
        JobMetaKey.RESOURCE_SPEC.value: {},
        JobMetaKey.JOB_CLIENTS.value: [{"name": site.site} for site in sites if site and site.who == "holder"],
    }


def limit_site(kit: Path) -> None:
    """A holder's site registers the commands of ``SITE_TOPICS`` and no others, and every request passes the gate."""
    register, dispatch = FedAdminAgent.register_processor, FedAdminAgent._dispatch_request
    refusals = RefusalLog(lambda source, words: log.warning("refused the server's request: %s", words))
    atexit.register(refusals.close)

    def register_processor(agent: FedAdminAgent, processor: RequestProcessor) -> None:
        topics = set(processor.get_topics())
        if topics <= SITE_TOPICS:
            register(agent, processor)
        elif topics & SITE_TOPICS:
            raise RuntimeError(f"one processor for {sorted(topics)}: this FLARE is not the one that was checked")

    def dispatch_request(agent: FedAdminAgent, request: CellMessage) -> CellMessage:
        try:
            request.payload = hold_request(request.payload, kit)
        except Exception as error:  # noqa: BLE001  (a request of any type and content may come)
            why = str(error) if isinstance(error, Refused) else "it cannot be read"
            refusals.add(("server",), why, why)
            return new_cell_message({}, error_reply(f"refused: {why}"))
        return dispatch(agent, request)

    FedAdminAgent.register_processor = register_processor
    FedAdminAgent._dispatch_request = dispatch_request


def limit_server(kit: Path) -> None:
    """The server registers the commands of ``COMMANDS`` and no others, and every job passes the gate.

    Args:
        kit: the server's.
    """
    add = CommandRegister.add_command

    def add_command(commands: CommandRegister, scope_name: str, cmd_name: str, **named: Any) -> None:  # noqa: ANN401
        if cmd_name == "submit_job":
            named["handler"] = partial(_submit, named["handler"], kit)
        if cmd_name == "get_job_log":
            named["handler"] = partial(_get_log, named["handler"])
        if cmd_name in COMMANDS:
            add(commands, scope_name, cmd_name, **named)

    CommandRegister.add_command = add_command
    _limit_uploads()
    _limit_logs()
    _limit_deployment(kit)


_Handler = Callable[[Connection, list[str]], None]


def _submit(handler: _Handler, kit: Path, conn: Connection, args: list[str]) -> None:
    try:
        if args[1:] != [FOLDER]:
            raise Refused("submit with the same release")
        uploaded = Path(conn.get_prop(ConnProps.FILE_LOCATION) or "")
        write_whole(uploaded, hold_job(uploaded.read_bytes(), kit))
    except (Refused, OSError) as error:
        why = f"refused: {error if isinstance(error, Refused) else 'no job was uploaded'}"
        log.warning("%s", why)
        conn.append_error(why, meta=make_meta(MetaStatusValue.INVALID_JOB_DEFINITION, why))
        return
    conn.set_prop(ConnProps.CUSTOM_PROPS, None)
    handler(conn, args)


def _get_log(handler: _Handler, conn: Connection, args: list[str]) -> None:
    handler(conn, args[:2])  # no other file, and no site's


def _limit_logs() -> None:
    from nvflare.private.fed.server.job_cmds import JobCommandModule  # noqa: PLC0415  (slow, for the server alone)

    read = JobCommandModule._read_server_job_log

    def read_told(module: JobCommandModule, *given: object, **named: object) -> str | None:
        text = read(module, *given, **named)
        return None if text is None else "".join(_TOLD.findall(text))

    JobCommandModule._read_server_job_log = read_told


def _limit_uploads() -> None:
    """An upload larger than any job ends, and its file goes when the command is done."""
    from nvflare.apis.fl_context import FLContext  # noqa: PLC0415  (as above)
    from nvflare.apis.shareable import Shareable  # noqa: PLC0415
    from nvflare.apis.streaming import StreamContext  # noqa: PLC0415
    from nvflare.app_common.streamers import file_streamer  # noqa: PLC0415
    from nvflare.fuel.hci.server.hci import AdminServer  # noqa: PLC0415

    consumer = file_streamer._ChunkConsumer
    consume, process = consumer.consume, AdminServer._process_upload

    def consume_some(upload: Any, shareable: Shareable, stream_ctx: StreamContext, fl_ctx: FLContext) -> object:  # noqa: ANN401
        if upload.received_size + len(shareable.get(file_streamer.KEY_DATA) or b"") > MAX_ARCHIVE_BYTES:
            raise Refused(f"an upload of at most {MAX_ARCHIVE_BYTES} bytes is allowed")
        return consume(upload, shareable, stream_ctx, fl_ctx)

    def process_upload(server: AdminServer, stream_ctx: StreamContext, fl_ctx: FLContext, **named: object) -> object:
        try:
            return process(server, stream_ctx, fl_ctx, **named)
        finally:
            Path(file_streamer.FileStreamer.get_file_location(stream_ctx)).unlink(missing_ok=True)

    consumer.consume, AdminServer._process_upload = consume_some, process_upload


def _limit_deployment(kit: Path) -> None:
    """What the server deploys at itself passes the gate again: a job may have been submitted to an older release."""
    from nvflare.private.fed.utils.app_deployer import AppDeployer  # noqa: PLC0415  (as above)

    deploy = AppDeployer.deploy

    def deploy_held(deployer: AppDeployer, *, app_data: bytes, **named: object) -> str:
        try:
            app = hold_app(app_data, kit)
        except Refused as error:
            return f"refused: {error}"
        return str(deploy(deployer, app_data=app.archive, **named) or "")

    AppDeployer.deploy = deploy_held


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
