"""Everything that a process of a site takes from outside, and from whom. What is not listed here is refused.

A process is a *cell* of FLARE's network, and its name says whose: ``server``, ``server.<job>``, ``<holder>``,
``<holder>.<job>`` or ``_admin_<session>``. A request has a channel and a topic, and what is not small travels as a
*stream*, whose own channel and topic lie inside FLARE's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from veilgraph.link.channel import CHANNEL

Who = Literal["server", "server job", "holder", "holder job", "administrator"]
"""Whose cell it is."""

OURS: Final = CHANNEL
"""Channel of our own messages: opaque bytes, which FLARE does not decode."""

STREAM: Final = "sm__STREAM"
STREAM_DATA: Final = "sm__DATA"
STREAM_NOTICES: Final = frozenset({"sm__ACK", "sm__ERROR"})
RETURN_ONLY: Final = "return_only"
"""A stream's channel when it answers a streamed request; its topic is that request's channel and topic."""

PROGRAM: Final = "veilgraph.deploy.guard.program"
"""The module that every process of a site runs."""

LOCAL_SCHEME: Final = "veilgraph-local"
"""Of the addresses at which the processes of one site meet."""

MAX_FRAME_BYTES: Final = 16 << 20
"""Largest frame between sites: pieces of messages have 4 MiB, FLARE's own 1 MiB."""

FOLDER_VARIABLE: Final = "VEILGRAPH_SOCKETS"
FOLDER_PREFIX: Final = "veilgraph-"
"""Where that socket lies: in a folder of mode 700 under the system's temporary one; a kit's path may be too long."""

NOTICE: Final = "refused"
"""Topic under which the server tells a site what it did not forward to it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A request that the cells of ``at`` take from the cells of ``origin``."""

    at: Who
    channel: str
    topic: str
    origin: Who
    streamed: bool = False


def _rules() -> Iterator[Rule]:
    # The messages of a job: sealed end to end, each answered by its receiver.
    for at, origins in {"holder job": ("holder job", "server job"), "server job": ("holder job",)}.items():
        for origin in origins:
            for topic in ("hello", "frame"):
                yield Rule(at, OURS, topic, origin)  # type: ignore[arg-type]
    yield Rule("holder", OURS, NOTICE, "server")

    # A site registers with the server and shows that it is there.
    for topic in ("challenge", "register", "quit", "heart_beat", "report_job_failure"):
        yield Rule("server", "task", topic, "holder")
    for topic in ("challenge", "register", "quit"):
        yield Rule("server", "task", topic, "administrator")

    # An administrator's commands (``COMMANDS``), and the upload of a job.
    yield Rule("server", "hci_channel", "command", "administrator", streamed=True)
    for topic in ("ObjectStreamer.Request", "ObjectStreamer.Abort"):
        yield Rule("server", "aux_communication", topic, "administrator", streamed=True)

    # The server has a site deploy, start and abort a job (``SITE_TOPICS``); the job's process says how it is.
    yield Rule("holder", "admin", "admin", "server")
    yield Rule("holder", "admin", "train.notify_job_status", "holder job")
    yield Rule("holder job", "client_command", "abort", "holder")
    for topic in ("get_clients", "update_run_status", "heartbeat"):
        yield Rule("server", "server_parent_listener", topic, "server job")
    for topic in ("abort", "handle_dead_job"):
        yield Rule("server job", "server_command", topic, "server", streamed=True)

    # The life of a job: a holder's process asks for its one task, and says that it has done it.
    for topic in ("get_task", "submit_update"):
        yield Rule("server job", "server_command", topic, "holder job", streamed=True)
    for topic in ("__sync_runner__", "__job_heartbeat__", "__task_check__"):
        yield Rule("server job", "aux_communication", topic, "holder job", streamed=True)
    for topic in ("__end_run__", "__abort_task__"):
        yield Rule("holder job", "aux_communication", topic, "server job", streamed=True)

    yield Rule("administrator", "hci_channel", "SESSION_EXPIRED", "server")

    # A cell says goodbye to the cells that it is connected with.
    for at, origin in (
        ("server", "holder"),
        ("server", "holder job"),
        ("server", "server job"),
        ("server", "administrator"),
        ("holder", "server"),
        ("holder", "holder job"),
        ("holder job", "holder"),
        ("holder job", "server"),
        ("server job", "server"),
        ("administrator", "server"),
    ):
        yield Rule(at, "cellnet.channel", "bye", origin)  # type: ignore[arg-type]


RULES: Final = frozenset(_rules())
"""The list, of a project whose server deals."""

RELAY_RULES: Final = frozenset(
    rule for rule in RULES if rule.channel != OURS or "server job" not in (rule.at, rule.origin)
)
"""Of one in which another site deals: that is a client of the engine as holders are, and no message of a job is for the
server or from it."""

DIRECT: Final = frozenset({"cellnet.channel"})
"""Channels whose messages are about the connection on which they come: never forwarded."""

SITE_TOPICS: Final = frozenset(
    {
        "scheduler.check_resource",
        "scheduler.cancel_resource",
        "train.deploy",
        "train.start_job",
        "train.abort",
        "train.notify_job_status",
    }
)
"""What of ``admin`` a site has at all: no shell, no files, no deletion, restart or shutdown."""

COMMANDS: Final = frozenset(
    {
        "_cert_login",
        "_check_session",
        "_commands",
        "_logout",
        "check_status",
        "submit_job",
        "list_jobs",
        "get_job_meta",
        "get_job_log",
        "abort_job",
    }
)
"""What of FLARE's commands the server has for administrators: what ``session``, ``submit`` and ``control`` use."""

_JOB: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME: Final = re.compile(rf"(?P<site>[A-Za-z0-9][A-Za-z0-9_-]{{0,62}})(?:\.(?P<job>{_JOB}))?")
_ADMINISTRATOR: Final = re.compile(rf"_admin_{_JOB}")
_SERVER: Final = "server"


@dataclass(frozen=True, slots=True)
class CellName:
    """The name of a cell, read.

    Attributes:
        whole: as FLARE writes it.
        who: whose it is.
        site: ``server`` or the holder; an administrator's session.
        job: id of the job whose process it is; empty otherwise.
    """

    whole: str
    who: Who
    site: str
    job: str = ""

    @classmethod
    def read(cls, text: object) -> CellName | None:
        """The name, or None where no cell is called that."""
        if not isinstance(text, str):
            return None
        if _ADMINISTRATOR.fullmatch(text):
            return cls(text, "administrator", text)
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        site, job = match["site"], match["job"] or ""
        whose = _SERVER if site == _SERVER else "holder"
        return cls(text, f"{whose} job" if job else whose, site, job)  # type: ignore[arg-type]


def is_job_id(text: object) -> bool:
    """Whether it is an id as FLARE makes them for jobs; nothing else may become part of a path or a command line."""
    return isinstance(text, str) and re.fullmatch(_JOB, text) is not None


def allowed(
    at: CellName, channel: str, topic: str, origin: CellName, *, streamed: bool, rules: frozenset[Rule] = RULES
) -> bool:
    """Whether ``at`` takes this request from ``origin``, by ``RULES`` or ``RELAY_RULES``.

    A job's process talks with the processes of its own job and its own site's parent, a parent with its own jobs.
    """
    if at == origin or Rule(at.who, channel, topic, origin.who, streamed) not in rules:
        return False
    related = {
        ("holder", "holder job"): at.site == origin.site,
        ("holder job", "holder"): at.site == origin.site,
    }
    if at.job and origin.job:
        return at.job == origin.job
    return related.get((at.who, origin.who), True)


def is_sent(channel: str, topic: str) -> bool:
    """Whether any request is sent by this name, as FLARE sends it: what is streamed goes by the stream's."""
    if channel == STREAM:
        return topic == STREAM_DATA or topic in STREAM_NOTICES
    return any((rule.channel, rule.topic, rule.streamed) == (channel, topic, False) for rule in RULES)


def streams_between(one: CellName, other: CellName) -> bool:
    """Whether either may stream anything to the other, and so acknowledge or break off a stream."""
    pairs = {(one.who, other.who), (other.who, one.who)}
    same = not (one.job and other.job) or one.job == other.job
    return same and one != other and any(rule.streamed and (rule.at, rule.origin) in pairs for rule in RULES)
